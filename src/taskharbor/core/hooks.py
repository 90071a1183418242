"""Hook events. A hook is a function that receives them after they are committed.

A hook may count, log or trace. It cannot change a job. Events of single jobs that happen thousands of times in a second
come in batches, one event for each statement: an event for each job would cost more than the metrics made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import AttemptOutcome, Claim, Job, Lease, NewJob
    from taskharbor.core.results import Enqueued, RefusalReason
    from taskharbor.core.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsEnqueued:
    """Jobs were stored. ``results[i].existed``: ``jobs[i]`` was not, since a job with its idempotency key existed."""

    jobs: Sequence[NewJob]
    results: Sequence[Enqueued]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsDispatched:
    """The ids of *count* due jobs of *queue* were sent for the first time since they became due."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsResent:
    """The ids of *count* jobs of *queue* were sent again: no worker has claimed them."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReceived:
    """A worker received *count* messages of *queue*."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRejected:
    """A message of *queue* named a job of another queue. Nothing was claimed, and the message is deleted."""

    queue: str
    job_id: JobId
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDeclined:
    """A worker declined *count* jobs that messages of *queue* named: the store sends them again."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesDeleted:
    """A worker deleted *count* messages of *queue*: their jobs are settled or declined."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsClaimed:
    """A worker claimed jobs of *queue*."""

    queue: str
    claims: Sequence[Claim]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRefused:
    """The store refused to let a worker claim a job that a message of *queue* named."""

    queue: str
    job_id: JobId
    reason: RefusalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsStarted:
    """The handlers of claimed jobs are called: they were passed to their threads or to the event loop."""

    jobs: Sequence[Job]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSucceeded:
    """The successes of jobs are committed. The handler of ``jobs[i]`` ran for ``run_seconds[i]``."""

    jobs: Sequence[Job]
    run_seconds: Sequence[float]
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt failed; ``status`` is the job's status after it: if it is DEAD, `JobDead` follows.

    The job is retried at ``retry_at``, or not at all if that is None. ``exception`` is what the handler raised: None if
    it raised nothing, and if the worker has a *redact*, which an exception would bypass. ``run_seconds`` is None if the
    handler was not called.
    """

    job: Job
    status: Status
    failure: Failure
    ended_at: datetime
    retry_at: datetime | None
    run_seconds: float | None
    exception: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReturned:
    """An attempt was snoozed or released (``outcome``), and is not counted."""

    job: Job
    status: Status
    outcome: AttemptOutcome
    run_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """A worker lost its lease. It stops the handler and records nothing."""

    job: Job
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExpired:
    """A janitor or a claim ended the expired leases of *job_ids*: their workers have recorded no outcome."""

    job_ids: Sequence[JobId]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCanceled:
    """A job was canceled, and with it an attempt if it was running.

    ``job`` is the claimed job of the worker that stopped it. It is None if no worker did: the job waited, or its worker
    had died.
    """

    job_id: JobId
    type: str
    queue: str
    job: Job | None = None
    run_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDead:
    """A job became a dead letter by a worker's outcome or by the janitor. ``job`` is the worker's claimed job.

    ``exception`` is what its handler raised last, as in `AttemptFailed`.
    """

    job_id: JobId
    type: str
    queue: str
    life: int
    attempt_count: int
    reason: str
    job: Job | None = None
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPublished:
    """The outbox relay published *count* dead-letter events; *failed* others will be retried, *given_up* will not."""

    count: int
    failed: int
    given_up: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageBegan:
    """*service*, "store" or "queue service", is unavailable to this process; calls are retried."""

    service: str
    exception: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageEnded:
    """*service* is available again after *duration*."""

    service: str
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJumped:
    """The store's clock jumped by *jump*, negative if backwards. No lease is reclaimed for one lease."""

    jump: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLost:
    """The sync handler of *job* did not return within a lease after its timeout: *lost* of *total* slots are lost."""

    job: Job
    lost: int
    total: int


HookEvent = (
    JobsEnqueued
    | JobsDispatched
    | JobsResent
    | MessagesReceived
    | MessageRejected
    | MessagesDeclined
    | MessagesDeleted
    | JobsClaimed
    | ClaimRefused
    | JobsStarted
    | JobsSucceeded
    | AttemptFailed
    | AttemptReturned
    | AttemptLost
    | LeasesExpired
    | JobCanceled
    | JobDead
    | EventsPublished
    | OutageBegan
    | OutageEnded
    | ClockJumped
    | SlotLost
)
Hook = Callable[[HookEvent], None]
