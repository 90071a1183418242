"""What a driver is asked and what it answers, item by item.

An item that was refused is answered by an error of `taskharbor.core.errors`,
returned in its place and not raised.
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
    """The job is stored. ``existed``: it was before, under this id; or an earlier one holds its key, and is named."""

    id: JobId
    existed: bool


_bare: Final = object.__new__
_ThawedEnqueued: Final = mutable_twin(Enqueued)


def new_enqueued(job_id: JobId) -> Enqueued:
    """Return ``Enqueued(job_id, existed=False)``, in half its time: there may be thousands at once."""
    answer = _bare(_ThawedEnqueued)
    answer.id, answer.existed = job_id, False
    answer.__class__ = Enqueued
    return answer  # type: ignore[no-any-return]


class RefusalReason(StrEnum):
    """Why a claim by id was refused; where several hold, the first of this list is told."""

    NOT_FOUND = "not found"
    OTHER_QUEUE = "other queue"
    """The job belongs to another queue than the one the claim is for."""
    FINAL = "final"
    LEASED = "leased"
    NOT_ENQUEUED = "not enqueued"
    CANCEL_REQUESTED = "cancel requested"
    SPENT = "spent"
    PAUSED = "paused"
    UNHANDLED = "unhandled"
    NOT_DUE = "not due"


@dataclass(frozen=True, slots=True)
class Refused:
    """The job was not claimed.

    ``until`` is when asking again may help, where the store knows: the end of the
    other's lease, or the due time. ``sends`` is the seq of the newest message.
    """

    job_id: JobId
    reason: RefusalReason
    until: datetime | None = None
    sends: int = 0


@dataclass(frozen=True, slots=True)
class Extended:
    """The lease runs on; somebody may have asked for the job to be canceled."""

    lease: Lease
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """The row is locked by another transaction: neither extended nor settled this time, and not lost."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Settlement:
    """How the attempt under this lease ended."""

    lease: Lease
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome is committed under this lease's token, and left the job in ``status``."""

    job_id: JobId
    status: Status


@dataclass(frozen=True, slots=True)
class Transitioned:
    """An operator's call took effect, and the job is in ``status`` now."""

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
    """The message went out; without a claim it is sent again after ``retry_in``."""

    dispatch: Dispatch
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class Unsent:
    """The message certainly did not go out."""

    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class Declined:
    """A message was given back unclaimed: the store shall ring again when the job can run."""

    job_id: JobId
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A job that became a dead letter, and what a report of that needs."""

    job_id: JobId
    type: str
    queue: str
    life: int
    attempt_count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """An expired lease that was ended, and where its job went. ``death`` is set if that is DEAD."""

    job_id: JobId
    token: Token
    status: Status
    death: Death | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The event with this id reached its queue."""

    event_id: str


@dataclass(frozen=True, slots=True)
class Unpublished:
    """The event did not get through: try again after ``retry_in``, or never (None: given up)."""

    event_id: str
    error: str
    retry_in: timedelta | None


class Kept(StrEnum):
    """Why a job was not removed by a prune or a purge; if several hold, the first of this list is given."""

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
    """Which jobs to list. None asks for all; the bounds are of ``created_at``, *until* excluded.

    *tag* is a key and the value that the metadata must have for it. *fingerprint* is of the error
    that killed a dead letter.
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
    """Some jobs, newest id first, and where to go on: None at the end, and only there."""

    jobs: tuple[JobSummary, ...]
    after: JobId | None

    @classmethod
    def of(cls, found: Sequence[JobSummary], *, limit: int, edge: JobId | None) -> Self:
        """Return the first *limit* of *found*; *edge* is the last job that was looked at, None if none lies behind."""
        jobs = tuple(found[:limit])
        return cls(jobs, jobs[-1].id if jobs and len(found) > limit else edge)


_REACH: Final = 1_000


def scan_limit(limit: int) -> int:
    """Return how many jobs a store looks at for a page of *limit*: a filter that fits nobody ends there, too."""
    return max(_REACH, limit + 1)  # one more tells whether there is a next page


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """A queue as people see it.

    ``counts`` has every status, ``oldest_due`` is the due time of the job that has waited longest.
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
    """Dead letters of one queue and type that died of the same error, as of the last roll-up or newer."""

    queue: str
    type: str
    fingerprint: str
    count: int
    error: str
    first_at: datetime
    last_at: datetime
    sample: JobId
