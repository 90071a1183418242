"""The inputs and per-item results of driver calls.

For a refused item, a driver returns an error of `taskharbor.core.errors` in the item's position.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from taskharbor.core.model import mutable_twin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import JobSummary, Lease
    from taskharbor.core.outcome import Outcome
    from taskharbor.core.states import Status


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


@dataclass(frozen=True, slots=True)
class Transitioned:
    """An operator's call took effect; the job is in ``status``."""

    job_id: JobId
    status: Status


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
    """A job that became a dead letter, with the data that its report needs."""

    job_id: JobId
    type: str
    queue: str
    life: int
    attempt_count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """An expired lease that was ended, and its job's new status. ``death`` is set if that is DEAD."""

    job_id: JobId
    token: Token
    status: Status
    death: Death | None = None


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

    *tag* is a metadata key and its value. *fingerprint* is that of a dead letter's last error.
    """

    queue: str | None = None
    type: str | None = None
    statuses: frozenset[Status] | None = None
    since: datetime | None = None
    until: datetime | None = None
    tag: tuple[str, str] | None = None
    fingerprint: str | None = None


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


_MIN_SCANNED_JOBS: Final = 1_000


def scan_limit(limit: int) -> int:
    """Return how many jobs a store scans for a page of *limit*, so that a filter without matches stays cheap."""
    return max(_MIN_SCANNED_JOBS, limit + 1)  # one more shows whether there is a next page


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The statistics of a queue.

    ``counts`` has every status. ``oldest_due`` is the due time of the job that has waited longest.
    """

    name: str
    counts: dict[Status, int]
    oldest_due: datetime | None
    paused_at: datetime | None
    paused_by: str | None


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
