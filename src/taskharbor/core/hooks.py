"""What happened, told to whoever watches: plain functions that take a fact.

A hook sees facts after they are committed. It may count, log or trace; nothing it
does changes a job.
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
    """A job was stored, or was found under its idempotency key."""

    job_id: JobId
    type: str
    queue: str
    existed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClaimed:
    """A worker took a job."""

    claim: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSucceeded:
    """A job's success is committed."""

    job: Job
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt failed, and where that left its job."""

    job: Job
    status: Status
    failure: Failure
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReturned:
    """An attempt was snoozed or released: it does not count."""

    job: Job
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCanceled:
    """A job was called off."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDead:
    """A job became a dead letter, by a worker's outcome or by the janitor. ``job`` is what the worker had claimed."""

    job_id: JobId
    type: str
    queue: str
    life: int
    attempt_count: int
    reason: str
    job: Job | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """A worker found that it holds a job no longer; it stops, and records nothing."""

    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRejected:
    """A message of *queue* named a job of another queue: it claimed nothing, and is deleted."""

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
