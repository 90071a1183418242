"""The inputs and per-item results of driver calls.

For a refused item, a driver returns an error of `taskharbor.core.errors` in the item's position.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from taskharbor.core.ids import JobId, first_id_at, time_of, uuid_from_int
from taskharbor.core.model import mutable_twin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.ids import Token
    from taskharbor.core.model import JobSummary, Lease
    from taskharbor.core.outcome import Outcome
    from taskharbor.core.states import Event, Status


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The job is stored. ``existed``: this id was stored before, or ``id`` is an earlier job with the same key."""

    id: JobId
    existed: bool


_bare: Final = object.__new__
_MutableEnqueued: Final = mutable_twin(Enqueued)


def new_enqueued(job_id: JobId) -> Enqueued:
    """Return ``Enqueued(job_id, existed=False)`` in half the time: a bulk insert makes thousands."""
    answer = _bare(_MutableEnqueued)
    answer.id, answer.existed = job_id, False
    answer.__class__ = Enqueued
    return answer  # type: ignore[no-any-return]


class RefusalReason(StrEnum):
    """Why a claim by id was refused. If several reasons apply, the first in this order is returned."""

    NOT_FOUND = "not found"
    OTHER_QUEUE = "other queue"
    """The job is not in the queue of the claim."""
    FINAL = "final"
    LEASED = "leased"
    NOT_ENQUEUED = "not enqueued"
    CANCEL_REQUESTED = "cancel requested"
    EXHAUSTED = "exhausted"
    PAUSED = "paused"
    UNHANDLED = "unhandled"
    NOT_DUE = "not due"


@dataclass(frozen=True, slots=True)
class Refused:
    """The job was not claimed.

    ``until`` is when a new claim may succeed, if known: the end of the current lease, or the due
    time. ``sends`` is the seq of the newest message.
    """

    job_id: JobId
    reason: RefusalReason
    until: datetime | None = None
    sends: int = 0


@dataclass(frozen=True, slots=True)
class Extended:
    """The lease was extended. ``cancel_requested`` is whether the job should be canceled."""

    lease: Lease
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """The row was locked by another transaction: not extended or settled, but the lease is not lost."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of the attempt under this lease."""

    lease: Lease
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome is committed under the lease's token; the job is in ``status``."""

    job_id: JobId
    status: Status


_MutableSettlement: Final = mutable_twin(Settlement)
_MutableSettled: Final = mutable_twin(Settled)


def new_settlements(ended: Iterable[tuple[Lease, Outcome]]) -> list[Settlement]:
    """Return ``Settlement(…)`` of each pair in half the time: a worker makes thousands in a second."""
    made = []
    for lease, outcome in ended:
        settlement = _bare(_MutableSettlement)
        settlement.lease, settlement.outcome = lease, outcome
        settlement.__class__ = Settlement
        made.append(settlement)
    return made


def new_settled(job_ids: Iterable[JobId], status: Status) -> list[Settled]:
    """Return ``Settled(…)`` of each job in half the time."""
    made = []
    for job_id in job_ids:
        answer = _bare(_MutableSettled)
        answer.job_id, answer.status = job_id, status
        answer.__class__ = Settled
        made.append(answer)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """A job that became CANCELED without a worker's outcome, with the data that its report needs."""

    job_id: JobId
    type: str
    queue: str


@dataclass(frozen=True, slots=True)
class Transitioned:
    """An operator's call took effect; the job is in ``status``. ``cancellation`` is set if the call canceled it."""

    job_id: JobId
    status: Status
    cancellation: Cancellation | None = None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A due job, locked for sending until ``dispatch_at``. ``seq`` goes into the message."""

    job_id: JobId
    seq: int
    resends: int
    dispatch_at: datetime


@dataclass(frozen=True, slots=True)
class Sent:
    """The message was sent. If the job is not claimed, it is resent after ``retry_in``."""

    dispatch: Dispatch
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class Unsent:
    """The message was certainly not sent."""

    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class Declined:
    """A message was declined: the store must resend it when the job can run."""

    job_id: JobId
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A job that became a dead letter, with the data that its report needs.

    ``worker_id`` is the worker that ran it last; ``traceparent`` is that of its enqueue, if it has one.
    """

    job_id: JobId
    type: str
    queue: str
    life: int
    attempt_count: int
    reason: str
    worker_id: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """An expired lease that was ended, and its job's new status.

    ``death`` is set if that is DEAD, and ``cancellation`` if it is CANCELED.
    """

    job_id: JobId
    token: Token
    status: Status
    death: Death | None = None
    cancellation: Cancellation | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The event with this id was published."""

    event_id: str


@dataclass(frozen=True, slots=True)
class Unpublished:
    """The event was not published. It is retried after ``retry_in``, or given up if that is None."""

    event_id: str
    error: str
    retry_in: timedelta | None


class Kept(StrEnum):
    """Why a prune or a purge kept a job. If several reasons apply, the first in this order is returned."""

    NOT_FOUND = "not_found"
    NOT_DEAD = "not_dead"
    TOO_YOUNG = "too_young"
    UNPUBLISHED = "unpublished"
    IN_USE = "in_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """How many jobs were removed, and how many were kept, by reason."""

    count: int
    kept: Mapping[Kept, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list. None matches all. *since* and *until* (exclusive) apply to ``created_at``.

    *tag* is a metadata key and its value. *fingerprint* is that of a dead letter's last error. *worker* holds the job
    or ran it last, *schedule* created it, and *id_prefix* are the first hexadecimal digits of its id.
    """

    queue: str | None = None
    type: str | None = None
    statuses: frozenset[Status] | None = None
    since: datetime | None = None
    until: datetime | None = None
    tag: tuple[str, str] | None = None
    fingerprint: str | None = None
    worker: str | None = None
    schedule: str | None = None
    id_prefix: str | None = None

    def id_bounds(self, after: JobId | None = None) -> tuple[JobId, JobId]:
        """Return the lowest id that can match and one above the highest, which is at most *after*.

        Ids are UUIDv7 and contain the time of their creation. A job may have been stored with an id of a clock that
        differs from the clock of its ``created_at`` by up to `MAX_ID_SKEW`.
        """
        prefix = self.id_prefix or ""
        lowest, highest = int(prefix.ljust(_ID_DIGITS, "0"), 16), int(prefix.ljust(_ID_DIGITS, "f"), 16)
        if self.since is not None:
            lowest = max(lowest, first_id_at(self.since - MAX_ID_SKEW).int)
        if self.until is not None:
            highest = min(highest, first_id_at(self.until + MAX_ID_SKEW).int)
        above = min(highest + 1, _MAX_ID if after is None else after.int)
        return JobId(uuid_from_int(lowest)), JobId(uuid_from_int(above))


_ID_DIGITS: Final = 32
_MAX_ID: Final = (1 << 128) - 1
MAX_ID_SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of jobs, newest id first. ``after`` is the cursor of the next page, None on the last one."""

    jobs: tuple[JobSummary, ...]
    after: JobId | None

    @classmethod
    def of(cls, found: Sequence[JobSummary], *, limit: int, edge: JobId | None) -> Self:
        """Return the first *limit* of *found*. *edge* is the last job scanned, None if there are no more jobs."""
        jobs = tuple(found[:limit])
        return cls(jobs, jobs[-1].id if jobs and len(found) > limit else edge)

    @property
    def looked_back_to(self) -> datetime | None:
        """The creation time of the oldest job that was scanned; None if all jobs were."""
        return None if self.after is None else time_of(self.after)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of the scanned jobs match. ``after`` is where the next scan continues, None if it was the last one."""

    count: int
    after: JobId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A worker's call that the token check refused: a settlement, or the extension of a lease.

    The store sets ``at``. (job id, token) identifies the attempt, and with it the worker.
    """

    job_id: JobId
    token: Token
    event: Event
    at: datetime | None = None


_MIN_SCANNED_JOBS: Final = 1_000


def scan_limit(limit: int) -> int:
    """Return how many jobs a store scans for a page of *limit*, so that a filter without matches stays cheap."""
    return max(_MIN_SCANNED_JOBS, limit + 1)  # one more shows whether there is a next page


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The statistics of a queue.

    ``counts`` has every status. ``oldest_due`` is the due time of the job that has waited longest. A paused queue with
    ``paused_until`` is resumed then.
    """

    name: str
    counts: dict[Status, int]
    oldest_due: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str = ""
    paused_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCount:
    """How many jobs of a queue reached a final state within one minute."""

    minute: datetime
    queue: str
    status: Status
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Dead letters of one queue and type with the same error, at least as new as the last roll-up."""

    queue: str
    type: str
    fingerprint: str
    count: int
    error: str
    first_at: datetime
    last_at: datetime
    sample: JobId
