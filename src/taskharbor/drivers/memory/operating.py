"""What people do to jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from taskharbor.core.answers import Transitioned
from taskharbor.core.errors import IllegalTransition, JobNotFound
from taskharbor.core.failure import Failure
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Event, Status, next_statuses
from taskharbor.drivers.memory.endings import record_attempt

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.ids import JobId, Token
    from taskharbor.drivers.memory.tables import Tables

Answer = Transitioned | IllegalTransition | JobNotFound


def cancel(tables: Tables, job_id: JobId, now: datetime) -> Answer:
    job = tables.rows.jobs.get(job_id)
    if job is None:
        return JobNotFound(job_id)
    if not next_statuses(job.status, Event.CANCEL):
        return IllegalTransition(job_id, job.status, Event.CANCEL)
    if job.status is Status.PROCESSING:
        moved = replace(job, cancel_requested_at=job.cancel_requested_at or now)
    else:
        moved = replace(job, status=Status.CANCELED, completed_at=now, dispatch_at=None)
    return Transitioned(job_id, tables.put(moved, now=now).status)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequeue:
    """What a requeue gives, and who gives it."""

    token: Token
    budget: int
    by: str
    reason: str
    scheduled_for: datetime
    queue: str | None
    payload: bytes | None


def requeue(tables: Tables, job_id: JobId, new: MemoryRequeue, now: datetime) -> Answer:
    job = tables.rows.jobs.get(job_id)
    if job is None or new.queue not in {None, job.queue}:
        return JobNotFound(job_id)
    if new.token in tables.rows.attempts.get(job_id, ()):
        return Transitioned(job_id, Status.PENDING)
    if not next_statuses(job.status, Event.REQUEUE):
        return IllegalTransition(job_id, job.status, Event.REQUEUE)
    record_attempt(
        tables,
        job,
        token=new.token,
        by=new.by,
        now=now,
        event=Event.REQUEUE,
        status=Status.PENDING,
        outcome=AttemptOutcome.REQUEUED,
        failure=Failure(message=new.reason),
    )
    revived = replace(
        job,
        status=Status.PENDING,
        payload=job.payload if new.payload is None else new.payload,
        life=job.life + 1,
        max_attempts=job.attempt_count + new.budget,
        scheduled_for=new.scheduled_for,
        cancel_requested_at=None,
        dead_at=None,
        dead_reason=None,
        completed_at=None,
        dispatch_at=None,
        sent_at=None,
        releases=0,
        resends=0,
        settled_token=None,
        result=None,
        progress=None,
    )
    return Transitioned(job_id, tables.put(revived, now=now).status)


def reschedule(
    tables: Tables,
    job_id: JobId,
    now: datetime,
    *,
    due: datetime | None,
    priority: int | None,
) -> Answer:
    job = tables.rows.jobs.get(job_id)
    if job is None:
        return JobNotFound(job_id)
    if not next_statuses(job.status, Event.RESCHEDULE):
        return IllegalTransition(job_id, job.status, Event.RESCHEDULE)
    moved = replace(
        job,
        scheduled_for=due or job.scheduled_for,
        priority=job.priority if priority is None else priority,
        dispatch_at=None,
    )
    return Transitioned(job_id, tables.put(moved, now=now).status)
