"""Taking jobs: by queue, by id, and from those who lost them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.answers import Reason, Refused
from taskharbor.core.claims import refusal
from taskharbor.core.model import Claim, Lease
from taskharbor.core.states import Event, Status
from taskharbor.drivers.memory.endings import give_back, hold_until, record

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from taskharbor.core.claims import Taker
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.memory.tables import Entry, Tables


def take_due(
    tables: Tables,
    queue: str,
    taker: Taker,
    *,
    now: datetime,
    limit: int,
    patience: timedelta,
    wait: timedelta,
) -> list[Claim]:
    """Take the first *limit* jobs in line that are ripe."""

    def is_ripe(job: Job) -> bool:
        waited = now - job.scheduled_for
        is_due = waited > patience if job.status is Status.ENQUEUED else waited >= wait
        return is_due and not job.is_spent and taker.may_take(job, now)

    if queue in tables.rows.paused:
        return []
    return _take_in_line(tables, queue, is_ripe, taker, now=now, limit=limit)


def _take_in_line(
    tables: Tables,
    queue: str,
    is_ripe: Callable[[Job], bool],
    taker: Taker,
    *,
    now: datetime,
    limit: int,
) -> list[Claim]:
    line = tables.rows.lines[queue]
    claims: list[Claim] = []
    passed_over: list[Entry] = []
    try:
        for entry in line.pop_due(now) if limit > 0 else ():
            job = tables.rows.jobs.get(entry[2])
            if job is None or not job.status.is_waiting or (job.priority, job.scheduled_for) != entry[:2]:
                continue  # an entry of the past
            passed_over.append(entry)
            if is_ripe(job):
                claims.append(_lease(tables, job, taker, now))
                passed_over.pop()
            if len(claims) == limit:
                break
    finally:  # whatever went wrong, no job drops out of line
        line.put_back(passed_over)
    return claims


def take_over(tables: Tables, queue: str, taker: Taker, *, now: datetime, limit: int) -> list[Claim]:
    """Take jobs whose lease is over, longest over first."""
    inflight = [tables.rows.jobs[job_id] for job_id in tables.rows.inflight]
    ended = [job for job in inflight if _refusal(tables, queue, job, taker, now) is None]
    ended.sort(key=lambda job: (job.lease_expires_at, job.id))
    return [_lease(tables, job, taker, now) for job in ended[: max(limit, 0)]]


def claim(tables: Tables, queue: str, job_id: JobId, taker: Taker, now: datetime) -> Claim | Refused:
    job = tables.rows.jobs.get(job_id)
    if job is None:
        return Refused(job_id, Reason.NOT_FOUND)
    refusal = _refusal(tables, queue, job, taker, now)
    if refusal is not None:
        return Refused(job_id, *refusal, job.sends)
    # Its message arrived, so it was sent: the enqueuer may not have noted that yet, or may have died before.
    return _lease(tables, replace(job, sent_at=job.sent_at or now), taker, now)


def _refusal(
    tables: Tables, queue: str, job: Job, taker: Taker, now: datetime
) -> tuple[Reason, datetime | None] | None:
    _, attempts = give_back(tables, job)
    return refusal(
        job,
        taker,
        queue=queue,
        now=now,
        hold=hold_until(tables, now),
        attempts=attempts,
        is_paused=job.queue in tables.rows.paused,
    )


def _lease(tables: Tables, job: Job, taker: Taker, now: datetime) -> Claim:
    attempts = job.attempt_count
    if job.lease_token is not None:
        lost, attempts = give_back(tables, job)
        record(tables, job, now=now, event=Event.RECLAIM, status=Status.PROCESSING, outcome=lost)
    lease = Lease(job.id, taker.token, now + taker.lease)
    leased = replace(
        job,
        status=Status.PROCESSING,
        lease_token=lease.token,
        lease_expires_at=lease.expires_at,
        worker_id=taker.worker,
        processing_started_at=now,
        attempt_count=attempts + 1,
        dispatch_at=None,
        resends=0,
    )
    return Claim(tables.put(leased, now=now), lease)
