"""Taking jobs: by queue, by id, and from those who lost them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.answers import RefusalReason, Refused
from taskharbor.core.claims import refusal_reason
from taskharbor.core.model import Claim, Lease
from taskharbor.core.states import Event, Status
from taskharbor.drivers.memory.endings import clock_hold_until, lost_attempt, record_attempt

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from taskharbor.core.claims import Claimant
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.memory.tables import Entry, Tables


def claim_due(
    tables: Tables,
    queue: str,
    taker: Claimant,
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
        return is_due and not job.is_exhausted and taker.may_take(job, now)

    if queue in tables.rows.paused:
        return []
    return _claim_in_order(tables, queue, is_ripe, taker, now=now, limit=limit)


def _claim_in_order(
    tables: Tables,
    queue: str,
    is_ripe: Callable[[Job], bool],
    taker: Claimant,
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


def reclaim_expired(tables: Tables, queue: str, taker: Claimant, *, now: datetime, limit: int) -> list[Claim]:
    """Take jobs whose lease is over, longest over first."""
    inflight = [tables.rows.jobs[job_id] for job_id in tables.rows.inflight]
    ended = [job for job in inflight if _refusal(tables, queue, job, taker, now) is None]
    ended.sort(key=lambda job: (job.lease_expires_at, job.id))
    return [_lease(tables, job, taker, now) for job in ended[: max(limit, 0)]]


def claim(tables: Tables, queue: str, job_id: JobId, taker: Claimant, now: datetime) -> Claim | Refused:
    job = tables.rows.jobs.get(job_id)
    if job is None:
        return Refused(job_id, RefusalReason.NOT_FOUND)
    refusal = _refusal(tables, queue, job, taker, now)
    if refusal is not None:
        return Refused(job_id, *refusal, job.sends)
    # Its message arrived, so it was sent: the enqueuer may not have noted that yet, or may have died before.
    return _lease(tables, replace(job, sent_at=job.sent_at or now), taker, now)


def _refusal(
    tables: Tables, queue: str, job: Job, taker: Claimant, now: datetime
) -> tuple[RefusalReason, datetime | None] | None:
    _, attempts = lost_attempt(tables, job)
    return refusal_reason(
        job,
        taker,
        queue=queue,
        now=now,
        hold=clock_hold_until(tables, now),
        attempts=attempts,
        is_paused=job.queue in tables.rows.paused,
    )


def _lease(tables: Tables, job: Job, taker: Claimant, now: datetime) -> Claim:
    attempts = job.attempt_count
    if job.lease_token is not None:
        lost, attempts = lost_attempt(tables, job)
        record_attempt(tables, job, now=now, event=Event.RECLAIM, status=Status.PROCESSING, outcome=lost)
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
