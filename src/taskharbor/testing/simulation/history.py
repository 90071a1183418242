"""The history of a simulation: driver calls, handler runs and notes, in order, with the violations found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from taskharbor.core.model import Claim, Lease, NewJob, WorkerRecord
from taskharbor.core.results import Enqueued, Expired, Extended, Settled, Settlement, Skipped, Transitioned
from taskharbor.delivery.transport import IncomingMessage, OutgoingMessage
from taskharbor.testing.simulation.world import EPOCH, short_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Job
    from taskharbor.testing.simulation.world import Process, World

COMMITTED = frozenset({"ok", "lost", "late", "killed after", "failed after"})
"""The fates of calls that took effect: the reply arrived, was lost, or came after its caller gave up."""
RECLAIMING_VERBS: Final = frozenset({"reserve", "claim", "expire"})
SCALARS: Final = (str, int, float, datetime, timedelta, UUID)


@dataclass(frozen=True, slots=True)
class RowChange:
    """The change that a call made to one row."""

    before: Job | None
    after: Job | None

    @property
    def job_id(self) -> JobId:
        row = self.after or self.before
        assert row is not None  # noqa: S101  at least one of the two rows is set
        return row.id

    def __str__(self) -> str:
        old, new = ("-" if row is None else f"{row.status}:{row.attempt_count}" for row in (self.before, self.after))
        return f"{short_name(self.job_id)} {old}→{new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCall:
    """A call of the store or the queue service: its arguments, fate, answer and row changes."""

    at: datetime
    """By the store's clock, which may jump."""
    happened_at: datetime
    """By the simulation's clock, which all other entries use."""
    process: str
    verb: str
    arguments: Mapping[str, Any]
    fate: str
    answer: Any = None
    changes: tuple[RowChange, ...] = ()

    @property
    def is_committed(self) -> bool:
        return self.fate in COMMITTED

    def __str__(self) -> str:
        arguments = " ".join(f"{name}={_brief(value)}" for name, value in self.arguments.items())
        changes = "; ".join(map(str, self.changes))
        return f"{self.process} {self.verb} {arguments} [{self.fate}] {_brief(self.answer)} | {changes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerBegan:
    """A handler began. ``is_held``: its lease was valid then, by the row in the store."""

    at: datetime
    process: str
    job_id: JobId
    attempt: int
    token: Token
    is_held: bool
    overlaps: tuple[Token, ...] = ()
    """Attempts of the same job whose stoppable handlers still run in undisturbed processes."""

    def __str__(self) -> str:
        job, token = short_name(self.job_id), short_name(self.token)
        return f"{self.process} begins {job} attempt {self.attempt} {token} {self.is_held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerEnded:
    """A handler ended with a result or with an error of this name."""

    at: datetime
    process: str
    job_id: JobId
    token: Token
    error: str | None
    result: Any
    disturbed_at: datetime
    """When the process was last delayed."""

    def __str__(self) -> str:
        job, token = short_name(self.job_id), short_name(self.token)
        return f"{self.process} ends {job} {token} {self.error or _brief(self.result)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Any other entry: a killed or paused process, a new phase, an uncaught error."""

    at: datetime
    process: str
    what: str

    def __str__(self) -> str:
        return f"{self.process} {self.what}"


Happening = DriverCall | HandlerBegan | HandlerEnded | Note


@dataclass(slots=True)
class History:
    """All entries of a simulation, and the violations found while it ran."""

    world: World
    happenings: list[Happening] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    is_closed: bool = False

    def add(self, happening: Happening) -> None:
        if not self.is_closed:
            self.happenings.append(happening)

    def note(self, process: Process | None, what: str) -> None:
        self.add(Note(at=self.world.true_time(), process="world" if process is None else process.name, what=what))

    def add_violation(self, what: str) -> None:
        if not self.is_closed:
            self.violations.append(f"{_clock(self.world.true_time())} {what}")

    def lines(self) -> list[str]:
        return [
            f"{_clock(each.happened_at if isinstance(each, DriverCall) else each.at)} {each}"
            for each in self.happenings
        ]

    def digest(self) -> str:
        """Return a hash of the lines. Equal histories have equal digests in every process."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def _clock(time: datetime) -> str:
    return f"{(time - EPOCH).total_seconds():10.4f}"


def _brief(value: Any) -> str:
    """Format an argument or an answer. Sets are sorted because their order differs between processes."""
    if isinstance(value, SCALARS):
        return short_name(value)
    match value:
        case None:
            return ""
        case list() | tuple():
            return f"[{', '.join(map(_brief, value))}]"
        case set() | frozenset() | dict():
            return _brief(sorted(value.items() if isinstance(value, dict) else value))
        case Exception():
            return type(value).__name__
    return next((text for format_value in _FORMATTERS if (text := format_value(value)) is not None), short_name(value))


def _format_claim(value: Any) -> str | None:
    return f"{short_name(value.job.id)}#{value.job.attempt_count}" if isinstance(value, Claim) else None


def _format_lease(value: Any) -> str | None:
    if isinstance(value, Settlement):
        return f"{_brief(value.lease)} {value.outcome.event}"
    if isinstance(value, Lease):
        return f"{short_name(value.job_id)}@{short_name(value.token)}"
    return f"{type(value).__name__} {_brief(value.lease)}" if isinstance(value, Extended | Skipped) else None


def _format_job(value: Any) -> str | None:
    if isinstance(value, NewJob | WorkerRecord):
        return short_name(value.id)
    if isinstance(value, Enqueued):
        return f"{short_name(value.id)}{' existed' if value.existed else ''}"
    return f"{short_name(value.job_id)} {value.status}" if isinstance(value, Settled | Transitioned | Expired) else None


def _format_message(value: Any) -> str | None:
    return value.body if isinstance(value, OutgoingMessage | IncomingMessage) else None


_FORMATTERS: Final = (_format_claim, _format_lease, _format_job, _format_message)
