"""Handing due jobs to the delivery queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.answers import Declined, Dispatch, Sent
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from taskharbor.core.answers import Unsent
    from taskharbor.core.model import Job
    from taskharbor.drivers.memory.tables import Tables


def dispatch(
    tables: Tables, queue: str, *, now: datetime, limit: int, lock: timedelta, unclaimed: int
) -> list[Dispatch]:
    if queue in tables.rows.paused:
        return []
    waiting = [tables.rows.jobs[job_id] for job_id in tables.rows.waiting[queue]]
    ripe = sorted((job for job in waiting if _is_dispatchable(job, now)), key=_turn)
    room = unclaimed - sum(job.dispatch_at is not None and job.scheduled_for <= now for job in waiting)
    return [_mark(tables, job, now, lock) for job in list(_within(ripe, room))[:limit]]


def _is_dispatchable(job: Job, now: datetime) -> bool:
    return job.scheduled_for <= now and not job.is_exhausted and (job.dispatch_at is None or job.dispatch_at <= now)


def _turn(job: Job) -> tuple[int, datetime, object]:
    return job.priority, job.dispatch_at or job.scheduled_for, job.id


def _within(jobs: list[Job], room: int) -> Iterator[Job]:
    """Pass every re-send, and of the others as many as there is room for."""
    for job in jobs:
        if job.dispatch_at is None:
            room -= 1
            if room < 0:
                continue
        yield job


def _mark(tables: Tables, job: Job, now: datetime, lock: timedelta) -> Dispatch:
    marked = replace(
        job,
        status=Status.ENQUEUED,
        sends=job.sends + 1,
        resends=job.resends + 1,
        dispatch_at=now + lock,
    )
    tables.put(marked, now=now)
    return Dispatch(marked.id, marked.sends, marked.resends, now + lock)


def dispatched(tables: Tables, result: Sent | Unsent | Declined, now: datetime) -> bool:
    if isinstance(result, Declined):
        return _decline(tables, result, now)
    made = result.dispatch
    job = tables.rows.jobs.get(made.job_id)
    if job is None or job.status is not Status.ENQUEUED or (job.sends, job.dispatch_at) != (made.seq, made.dispatch_at):
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
