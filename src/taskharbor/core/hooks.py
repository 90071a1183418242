"""Hook events. A hook is a function that receives them after they are committed.

A hook may count, log or trace. It cannot change a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim, Job, Lease
    from taskharbor.core.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnqueued:
    """A job was stored, or a job with its idempotency key existed."""

    job_id: JobId
    type: str
    queue: str
    existed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClaimed:
    """A worker claimed a job."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded:
    """A job's success is committed."""

    job: Job
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt failed; ``status`` is the job's status after it."""

    job: Job
    status: Status
    failure: Failure
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReturned:
    """An attempt was snoozed or released, and is not counted."""

    job: Job
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCanceled:
    """A job was canceled."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDead:
    """A job became a dead letter by a worker's outcome or by the janitor. ``job`` is the worker's claimed job."""

    job_id: JobId
    type: str
    queue: str
    life: int
    attempt_count: int
    reason: str
    job: Job | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """A worker lost its lease. It stops the handler and records nothing."""

    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRejected:
    """A message of *queue* named a job of another queue. Nothing was claimed, and the message is deleted."""

    queue: str
    job_id: JobId
    message_id: str


HookEvent = (
    JobEnqueued
    | JobClaimed
    | JobSucceeded
    | AttemptFailed
    | AttemptReturned
    | JobCanceled
    | JobDead
    | AttemptLost
    | MessageRejected
)
Hook = Callable[[HookEvent], None]
