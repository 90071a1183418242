"""Insert, dispatch, cancel, requeue and reschedule jobs."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from taskharbor.core.errors import IdempotencyConflict, IllegalTransition, JobNotFound
from taskharbor.core.failure import Failure
from taskharbor.core.model import AttemptOutcome, Job
from taskharbor.core.results import Cancellation, Declined, Dispatch, Enqueued, Sent, Transitioned
from taskharbor.core.states import Event, Status, next_statuses
from taskharbor.drivers.memory.attempts import record_attempt
from taskharbor.drivers.memory.tables import KeyHolder
from taskharbor.drivers.notices import cancel_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob
    from taskharbor.core.results import Unsent
    from taskharbor.drivers.memory.tables import Tables
    from taskharbor.drivers.records import RequeueChange

Answer = Transitioned | IllegalTransition | JobNotFound


def insert(tables: Tables, new: NewJob, now: datetime, *, repeat: bool) -> Enqueued | IdempotencyConflict:
    if repeat and new.id in tables.rows.jobs:
        return Enqueued(new.id, existed=True)
    if new.idempotency_key is not None:
        key = tables.rows.keys.setdefault((new.queue, new.idempotency_key), KeyHolder(new.id, new.digest))
        if key.digest != new.digest:
            return IdempotencyConflict(new.queue, new.idempotency_key, key.holder)
        if key.holder != new.id:
            return Enqueued(key.holder, existed=True)
    job = Job(
        id=new.id,
        type=new.type,
        queue=new.queue,
        priority=new.priority,
        payload=new.payload,
        status=Status.PENDING,
        scheduled_for=new.scheduled_for or now + new.delay,
        timeout=new.timeout,
        created_at=new.created_at,
        attempt_count=0,
        max_attempts=new.max_attempts,
        idempotency_key=new.idempotency_key,
        metadata=MappingProxyType(dict(new.metadata)),  # callers cannot change the stored row
    )
    tables.put(job, now=now)
    return Enqueued(new.id, existed=False)


def dispatch(
    tables: Tables, queue: str, *, now: datetime, limit: int, lock: timedelta, unclaimed: int
) -> list[Dispatch]:
    if queue in tables.rows.paused:
        return []
    waiting = [tables.rows.jobs[job_id] for job_id in tables.rows.waiting[queue]]
    eligible = sorted((job for job in waiting if _is_dispatchable(job, now)), key=_dispatch_order)
    max_new = unclaimed - sum(job.dispatch_at is not None and job.scheduled_for <= now for job in waiting)
    return [_mark_enqueued(tables, job, now, lock) for job in list(_limit_new(eligible, max_new))[:limit]]


def _is_dispatchable(job: Job, now: datetime) -> bool:
    return job.scheduled_for <= now and not job.is_exhausted and (job.dispatch_at is None or job.dispatch_at <= now)


def _dispatch_order(job: Job) -> tuple[int, datetime, object]:
    return job.priority, job.dispatch_at or job.scheduled_for, job.id


def _limit_new(jobs: list[Job], max_new: int) -> Iterator[Job]:
    """Yield all resends, and at most *max_new* of the other jobs."""
    for job in jobs:
        if job.dispatch_at is None:
            max_new -= 1
            if max_new < 0:
                continue
        yield job


def _mark_enqueued(tables: Tables, job: Job, now: datetime, lock: timedelta) -> Dispatch:
    marked = replace(
        job,
        status=Status.ENQUEUED,
        sends=job.sends + 1,
        resends=job.resends + 1,
        dispatch_at=now + lock,
    )
    tables.put(marked, now=now)
    return Dispatch(marked.id, marked.sends, marked.resends, now + lock)


def record_dispatch(tables: Tables, result: Sent | Unsent | Declined, now: datetime) -> bool:
    if isinstance(result, Declined):
        return _decline(tables, result, now)
    sent = result.dispatch
    job = tables.rows.jobs.get(sent.job_id)
    if job is None or job.status is not Status.ENQUEUED or (job.sends, job.dispatch_at) != (sent.seq, sent.dispatch_at):
        return False
    if isinstance(result, Sent):
        moved = replace(job, sent_at=now, dispatch_at=now + result.retry_in)
    else:
        moved = replace(job, resends=job.resends - 1, dispatch_at=now)
    tables.put(moved, now=now)
    return True


def _decline(tables: Tables, result: Declined, now: datetime) -> bool:
    job = tables.rows.jobs.get(result.job_id)
    if job is None or job.status is not Status.ENQUEUED or job.sends != result.seq:
        return False
    tables.put(replace(job, dispatch_at=now), now=now)
    return True


def cancel(tables: Tables, job_id: JobId, now: datetime) -> Answer:
    job = tables.rows.jobs.get(job_id)
    if job is None:
        return JobNotFound(job_id)
    if not next_statuses(job.status, Event.CANCEL):
        return IllegalTransition(job_id, job.status, Event.CANCEL)
    if job.status is Status.PROCESSING:
        moved = replace(job, cancel_requested_at=job.cancel_requested_at or now)
        tables.rows.topics.add(cancel_topic(job.worker_id or ""))
        return Transitioned(job_id, tables.put(moved, now=now).status)
    moved = replace(job, status=Status.CANCELED, completed_at=now, dispatch_at=None)
    canceled = Cancellation(job_id=job_id, type=job.type, queue=job.queue)
    return Transitioned(job_id, tables.put(moved, now=now).status, canceled)


def requeue(tables: Tables, job_id: JobId, new: RequeueChange, *, due: datetime, now: datetime) -> Answer:
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
        max_attempts=job.attempt_count + (new.budget or _attempts_of_life(tables, job)),
        scheduled_for=due,
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


def _attempts_of_life(tables: Tables, job: Job) -> int:
    """Return how many attempts the current life of *job* allows: its maximum, less what earlier lives have used."""
    history = tables.rows.attempts.get(job.id, {}).values()
    return job.max_attempts - sum(
        each.attempt for each in history if each.event is Event.REQUEUE and each.life == job.life - 1
    )


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
