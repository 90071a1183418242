"""Everything that happened in a simulated world, in the order it happened."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from taskharbor.core.model import Claim, Lease, NewJob, WorkerRecord
from taskharbor.core.results import Enqueued, Expired, Extended, Settled, Settlement, Skipped, Transitioned
from taskharbor.delivery.transport import IncomingMessage, OutgoingMessage
from taskharbor.testing.simulation.world import EPOCH, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Job
    from taskharbor.testing.simulation.world import Process, World

COMMITTED = frozenset({"ok", "lost", "late", "killed after", "failed after"})
"""What may become of a call that took effect: its answer arrived, or got lost, or was given up before it came."""
RECLAIMING_VERBS: Final = frozenset({"reserve", "claim", "expire"})
PLAIN: Final = (str, int, float, datetime, timedelta, UUID)


@dataclass(frozen=True, slots=True)
class RowChange:
    """What a call did to one row."""

    before: Job | None
    after: Job | None

    @property
    def job_id(self) -> JobId:
        row = self.after or self.before
        assert row is not None  # noqa: S101  a move of nothing is never made
        return row.id

    def __str__(self) -> str:
        old, new = ("-" if row is None else f"{row.status}:{row.attempt_count}" for row in (self.before, self.after))
        return f"{shown(self.job_id)} {old}→{new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCall:
    """A call of the store: what was asked, what became of it, what was answered, and which rows it changed."""

    at: datetime
    """By the store's clock, which may jump."""
    happened_at: datetime
    """By the world's own, as of all other happenings."""
    process: str
    verb: str
    asked: Mapping[str, Any]
    fate: str
    answer: Any = None
    moves: tuple[RowChange, ...] = ()

    @property
    def is_committed(self) -> bool:
        return self.fate in COMMITTED

    def __str__(self) -> str:
        asked = " ".join(f"{name}={_brief(value)}" for name, value in self.asked.items())
        moves = "; ".join(map(str, self.moves))
        return f"{self.process} {self.verb} {asked} [{self.fate}] {_brief(self.answer)} | {moves}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerBegan:
    """A handler began. ``is_held``: its lease was good at that moment, by the store's own row."""

    at: datetime
    process: str
    job_id: JobId
    attempt: int
    token: Token
    is_held: bool
    overlaps: tuple[Token, ...] = ()
    """Attempts of the same job that run elsewhere in undisturbed processes and heed what they are told."""

    def __str__(self) -> str:
        return f"{self.process} begins {shown(self.job_id)} attempt {self.attempt} {shown(self.token)} {self.is_held}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerEnded:
    """A handler ended: with a result, or with an error of this name."""

    at: datetime
    process: str
    job_id: JobId
    token: Token
    error: str | None
    result: Any
    disturbed_at: datetime
    """When something last kept its process from its work."""

    def __str__(self) -> str:
        return f"{self.process} ends {shown(self.job_id)} {shown(self.token)} {self.error or _brief(self.result)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Anything else: a death, a pause, a new phase, an error that nobody caught."""

    at: datetime
    process: str
    what: str

    def __str__(self) -> str:
        return f"{self.process} {self.what}"


Happening = DriverCall | HandlerBegan | HandlerEnded | Note


@dataclass(slots=True)
class History:
    """What happened, and what was found wrong with it while it happened."""

    world: World
    happenings: list[Happening] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    is_closed: bool = False

    def add(self, happening: Happening) -> None:
        if not self.is_closed:
            self.happenings.append(happening)

    def note(self, process: Process | None, what: str) -> None:
        self.add(Note(at=self.world.true_time(), process="world" if process is None else process.name, what=what))

    def violated(self, what: str) -> None:
        if not self.is_closed:
            self.violations.append(f"{_clock(self.world.true_time())} {what}")

    def lines(self) -> list[str]:
        return [
            f"{_clock(each.happened_at if isinstance(each, DriverCall) else each.at)} {each}"
            for each in self.happenings
        ]

    def digest(self) -> str:
        """Return a name for this very history: equal for equal ones, whichever process made them."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def _clock(moment: datetime) -> str:
    return f"{(moment - EPOCH).total_seconds():10.4f}"


def _brief(value: Any) -> str:
    """Say what matters of an argument or an answer. Sets are sorted: their own order is not the same everywhere."""
    if isinstance(value, PLAIN):
        return shown(value)
    match value:
        case None:
            return ""
        case list() | tuple():
            return f"[{', '.join(map(_brief, value))}]"
        case set() | frozenset() | dict():
            return _brief(sorted(value.items() if isinstance(value, dict) else value))
        case Exception():
            return type(value).__name__
    return next((text for of in _FORMS if (text := of(value)) is not None), shown(value))


def _of_claim(value: Any) -> str | None:
    return f"{shown(value.job.id)}#{value.job.attempt_count}" if isinstance(value, Claim) else None


def _of_lease(value: Any) -> str | None:
    if isinstance(value, Settlement):
        return f"{_brief(value.lease)} {value.outcome.event}"
    if isinstance(value, Lease):
        return f"{shown(value.job_id)}@{shown(value.token)}"
    return f"{type(value).__name__} {_brief(value.lease)}" if isinstance(value, Extended | Skipped) else None


def _of_job(value: Any) -> str | None:
    if isinstance(value, NewJob | WorkerRecord):
        return shown(value.id)
    if isinstance(value, Enqueued):
        return f"{shown(value.id)}{' existed' if value.existed else ''}"
    return f"{shown(value.job_id)} {value.status}" if isinstance(value, Settled | Transitioned | Expired) else None


def _of_message(value: Any) -> str | None:
    return value.body if isinstance(value, OutgoingMessage | IncomingMessage) else None


_FORMS: Final = (_of_claim, _of_lease, _of_job, _of_message)
