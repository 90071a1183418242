"""Stored bulk operations: one action on many jobs, which any process can continue after another one died.

An operation visits jobs in steps. A store performs a step and moves the operation to its next step in one commit, so
no job is touched twice, none is left out, and a stopped operation touches no further job.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NewType, Self
from uuid import UUID

from taskharbor.core.ids import JobId, Token
from taskharbor.core.results import Cancellation, JobFilter
from taskharbor.core.states import TRANSITIONS, Event, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OperationId = NewType("OperationId", UUID)


class OperationKind(StrEnum):
    """What an operation does to each job."""

    REQUEUE = "requeue"
    CANCEL = "cancel"
    RESCHEDULE = "reschedule"
    PURGE = "purge"

    @property
    def statuses(self) -> frozenset[Status]:
        """The statuses that a job can have for this operation to change it."""
        return _STATUSES[self]

    @property
    def acts_on_finished_jobs(self) -> bool:
        """Whether its jobs have ended. Jobs that ended after the operation was created are then left out."""
        return all(status.is_final for status in self.statuses)


_STATUSES: Final[Mapping[OperationKind, frozenset[Status]]] = MappingProxyType(
    {
        OperationKind.REQUEUE: TRANSITIONS[Event.REQUEUE].sources,
        OperationKind.CANCEL: TRANSITIONS[Event.CANCEL].sources,
        OperationKind.RESCHEDULE: TRANSITIONS[Event.RESCHEDULE].sources,
        OperationKind.PURGE: frozenset({Status.DEAD}),
    }
)


class OperationState(StrEnum):
    """Where an operation stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"

    @property
    def is_open(self) -> bool:
        """Whether the operation may still touch jobs."""
        return self in {OperationState.WAITING, OperationState.RUNNING}


class OperationRefusal(StrEnum):
    """Why an operation left a job unchanged."""

    NOT_FOUND = "not_found"
    NOT_ALLOWED = "not_allowed"
    """The state of the job does not allow it."""
    LATER = "later"
    """The job was created, or has ended, after the operation was created."""
    UNPUBLISHED = "unpublished"
    """The dead-letter event of the job is not published yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOptions:
    """The arguments of an operation, for each of its jobs.

    *budget* is for a requeue. *delay*, *scheduled_for* and *priority* are as in `Driver.requeue` and
    `Driver.reschedule`; *delay* begins when the job is changed. A purge leaves out jobs that died less than
    *older_than* before the operation was created; with *gives_up*, it gives up their unpublished events. *rate* is how
    many jobs are changed per second.
    """

    budget: int | None = None
    delay: timedelta | None = None
    scheduled_for: datetime | None = None
    priority: int | None = None
    older_than: timedelta | None = None
    gives_up: bool = False
    rate: float | None = None

    def to_json(self) -> str:
        """Return the options that differ from their defaults as JSON."""
        return _to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the options of what `to_json` returned."""
        values = json.loads(text)
        for name in ("delay", "older_than"):
            if name in values:
                values[name] = timedelta(seconds=values[name])
        if "scheduled_for" in values:
            values["scheduled_for"] = _time(values["scheduled_for"])
        return cls(**values)


def filter_to_json(wanted: JobFilter) -> str:
    """Return the fields of a filter that are not None as JSON."""
    return _to_json(wanted)


def filter_from_json(text: str) -> JobFilter:
    """Return the filter of what `filter_to_json` returned."""
    values = json.loads(text)
    for name in ("since", "until"):
        if name in values:
            values[name] = _time(values[name])
    if "statuses" in values:
        values["statuses"] = frozenset(map(Status, values["statuses"]))
    if "tag" in values:
        values["tag"] = tuple(values["tag"])
    return JobFilter(**values)


def _to_json(record: Any) -> str:
    given = {each.name: getattr(record, each.name) for each in fields(record)}
    return json.dumps(
        {name: _plain(value) for name, value in given.items() if value is not None and value is not False},
        sort_keys=True,
    )


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return sorted(value) if isinstance(value, frozenset) else value


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOperation:
    """An operation to store: on the jobs that match *filter*, or on those of *job_ids*.

    *matched* is how many jobs a preview found, and *is_capped* whether it stopped counting there. *digest* identifies
    the request, so that a repeat with the same id differs from another request.
    """

    id: OperationId
    kind: OperationKind
    by: str
    reason: str = ""
    filter: JobFilter | None = None
    job_ids: tuple[JobId, ...] = ()
    options: OperationOptions = field(default_factory=OperationOptions)
    matched: int = 0
    is_capped: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A stored operation, and how far it is.

    ``next_at`` is when its next step may be performed. ``cursor`` is the id below which the search of matching jobs
    continues, and ``is_searched`` whether that search has ended. ``job_ids`` are the jobs that are still to be changed
    by their ids: those that were given, and those that another transaction had locked. ``step`` counts the steps that
    were performed. ``refused`` counts unchanged jobs by `OperationRefusal`.
    """

    id: OperationId
    kind: OperationKind
    by: str
    reason: str
    filter: JobFilter | None
    options: OperationOptions
    matched: int
    is_capped: bool
    digest: str
    state: OperationState
    created_at: datetime
    next_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stopped_by: str | None = None
    cursor: JobId | None = None
    is_searched: bool = False
    job_ids: tuple[JobId, ...] = ()
    step: int = 0
    done: int = 0
    refused: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def statuses(self) -> frozenset[Status]:
        """The statuses that a job must have when it is changed: it may have changed since it was found."""
        wanted = None if self.filter is None else self.filter.statuses
        return self.kind.statuses if wanted is None else self.kind.statuses & wanted

    @property
    def until(self) -> datetime:
        """The time after which a job came too late to join, by `came_at`."""
        return self.created_at - (self.options.older_than or timedelta(0))

    def came_at(self, *, created_at: datetime, completed_at: datetime | None) -> datetime | None:
        """Return when a job became one that the operation may change: when it ended, or else when it was created."""
        return completed_at if self.kind.acts_on_finished_jobs else created_at


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStep:
    """A step to perform on ``operation``, as it was read: its jobs, and where the operation continues.

    *job_ids* are the first of the operation's own, if its search has ended, or were found by its search, which
    continues below *cursor* or *is_searched*. The next step may be performed *pause* after the time at which this
    one was due, or, if that was more than *catch_up* ago, after now - *catch_up*. If all jobs of the step are locked
    by other transactions, it may be performed *locked_pause* from now.
    """

    operation: Operation
    job_ids: tuple[JobId, ...]
    cursor: JobId | None = None
    is_searched: bool = True
    pause: timedelta = timedelta(0)
    catch_up: timedelta = timedelta(0)
    locked_pause: timedelta = timedelta(seconds=1)

    @property
    def token(self) -> Token:
        """The token of its requeues: it depends on the operation and the number of the step only."""
        return step_token(self.operation.id, self.operation.step)


def step_token(operation_id: OperationId, step: int) -> Token:
    """Return the token of the requeues of a step, by which their jobs can be recognized later."""
    return Token(UUID(bytes=sha256(operation_id.bytes + step.to_bytes(8)).digest()[:16], version=4))


@dataclass(slots=True)
class StepResult:
    """What a store did in a step: how many jobs it changed, why it left others, and which were locked by others.

    ``canceled`` are the jobs that became CANCELED; the cancel of running ones is only requested.
    """

    done: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    locked: list[JobId] = field(default_factory=list)
    canceled: list[Cancellation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PerformedStep:
    """The operation after a step that was performed, and the jobs that the step has canceled."""

    operation: Operation
    canceled: tuple[Cancellation, ...] = ()


def after_step(step: OperationStep, result: StepResult, *, now: datetime) -> Operation:
    """Return the operation after *step*, at the store's time *now*."""
    before = step.operation
    left = before.job_ids[len(step.job_ids) :] if before.is_searched else before.job_ids
    job_ids = (*left, *result.locked)
    is_done = step.is_searched and not job_ids
    is_blocked = bool(result.locked) and not result.done and not result.refused
    next_at = now + step.locked_pause if is_blocked else max(before.next_at, now - step.catch_up) + step.pause
    return replace(
        before,
        state=OperationState.DONE if is_done else OperationState.RUNNING,
        next_at=next_at,
        started_at=before.started_at or now,
        ended_at=now if is_done else None,
        cursor=step.cursor,
        is_searched=step.is_searched,
        job_ids=job_ids,
        step=before.step + 1,
        done=before.done + result.done,
        refused=dict(Counter(before.refused) + result.refused),
    )


def is_due(operation: Operation, step: OperationStep, *, now: datetime) -> bool:
    """Return whether *step* is the next one of the stored *operation*, and may be performed now."""
    return operation.state.is_open and operation.step == step.operation.step and operation.next_at <= now


def operation_id_of(key: str, by: str) -> OperationId:
    """Return the id of the operation that *by* creates with an idempotency key."""
    return OperationId(UUID(bytes=sha256(f"{by}\0{key}".encode()).digest()[:16], version=4))


def sort_refusals(refused: Mapping[str, int]) -> dict[str, int]:
    """Return the counts in the order of `OperationRefusal`."""
    known: Sequence[str] = [*OperationRefusal]
    return {reason: refused[reason] for reason in (*known, *sorted(set(refused) - set(known))) if refused.get(reason)}
