"""How attempts and jobs end: what claiming, settling, expiring and burying have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.answers import Death
from taskharbor.core.model import Attempt, AttemptOutcome, DeadTaskEvent, OutboxRow
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import Token
    from taskharbor.core.model import Job
    from taskharbor.core.states import Event
    from taskharbor.drivers.memory.tables import Tables


def is_expired(job: Job, now: datetime) -> bool:
    """The lease no longer gives any right."""
    return job.lease_expires_at is not None and job.lease_expires_at <= now


def clock_hold_until(tables: Tables, now: datetime) -> datetime | None:
    """Until when nobody may bring back ended leases, because the clock jumped."""
    jump = tables.rows.jump
    return jump.hold if jump is not None and now < jump.hold else None


def lost_attempt(tables: Tables, job: Job) -> tuple[AttemptOutcome, int]:
    """Return what an ended lease was lost to, and how many attempts count then."""
    jump, end = tables.rows.jump, job.lease_expires_at
    if jump is not None and end is not None and jump.before < end <= jump.after:
        return AttemptOutcome.CLOCK, job.attempt_count - 1
    return AttemptOutcome.LOST, job.attempt_count


def record_attempt(
    tables: Tables,
    job: Job,
    *,
    now: datetime,
    event: Event,
    status: Status,
    outcome: AttemptOutcome,
    failure: Failure | None = None,
    token: Token | None = None,
    by: str | None = None,
) -> None:
    """Write down what *job*, as it was before the move, has come through: under its lease's token or another.

    (job, token) names one attempt: its first row stays.
    """
    under = token or job.lease_token
    assert under is not None  # noqa: S101  a job that ends an attempt holds a lease
    attempt = Attempt(
        job_id=job.id,
        token=under,
        life=job.life,
        attempt=job.attempt_count,
        worker_id=by or job.worker_id,
        started_at=None if by else job.processing_started_at,
        ended_at=now,
        event=event,
        status=status,
        outcome=outcome,
        failure=failure,
    )
    tables.rows.attempts[job.id].setdefault(under, attempt)


def dead_letter(tables: Tables, job: Job, *, now: datetime, reason: str, error: str) -> Death:
    """Store *job* as a dead letter, together with the event that tells of it."""
    dead = replace(
        job,
        status=Status.DEAD,
        dead_at=now,
        dead_reason=reason,
        last_error=error,
        failed_at=now,
        completed_at=now,
        dispatch_at=None,
    )
    tables.put(dead, now=now)
    event = DeadTaskEvent(
        job_id=dead.id,
        life=dead.life,
        type=dead.type,
        queue=dead.queue,
        worker_id=dead.worker_id,
        attempt_count=dead.attempt_count,
        max_attempts=dead.max_attempts,
        error=error,
        dead_at=now,
    )
    tables.rows.outbox[event.event_id] = OutboxRow(event=event, next_at=now)
    return Death(
        job_id=event.job_id,
        type=event.type,
        queue=event.queue,
        life=event.life,
        attempt_count=event.attempt_count,
        reason=reason,
    )
