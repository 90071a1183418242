"""What the holder of a lease may do: extend it, and record how its attempt ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.claims import refusal_reason
from taskharbor.core.errors import JobNotFound, JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.core.model import Attempt, AttemptOutcome, Claim, DeadTaskEvent, Job, Lease, OutboxRow
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED
from taskharbor.core.results import Death, Extended, RefusalReason, Refused, Settled
from taskharbor.core.states import Event, Status, status_after

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from taskharbor.core.claims import Claimant
    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Progress
    from taskharbor.core.outcome import Outcome
    from taskharbor.drivers.memory.tables import Entry, Tables


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


def extend(tables: Tables, held: Lease, lease: timedelta, now: datetime) -> Extended | JobNotFound | LeaseLost:
    job = _held(tables, held, now)
    if not isinstance(job, Job):
        return job
    tables.put(replace(job, lease_expires_at=now + lease), now=now)
    return Extended(Lease(job.id, held.token, now + lease), job.cancel_requested_at is not None)


def save_progress(tables: Tables, held: Lease, progress: Progress, now: datetime) -> bool:
    job = _held(tables, held, now)
    if not isinstance(job, Job):
        return False
    tables.put(replace(job, progress=progress), now=now)
    return True


def settle(tables: Tables, lease: Lease, outcome: Outcome, now: datetime) -> Settled | JobNotFound | LeaseLost:
    before = _settled_before(tables, lease, outcome)
    if before is not None:
        return Settled(lease.job_id, before)
    job = _held(tables, lease, now)
    if not isinstance(job, Job):
        return job
    ended = _end_attempt(job, outcome)
    status = status_after(
        outcome.event,
        sent=ended.sent_at is not None,
        exhausted=ended.is_exhausted,
        cancel_requested=ended.cancel_requested_at is not None,
    )
    _land(tables, ended, status, outcome, now)
    if outcome.event is not Event.ACK:
        record_attempt(
            tables,
            job,
            now=now,
            event=outcome.event,
            status=status,
            outcome=outcome.attempt_outcome,
            failure=outcome.recorded_failure,
        )
    return Settled(job.id, status)


def _held(tables: Tables, lease: Lease, now: datetime) -> Job | JobNotFound | LeaseLost:
    """Return the job if *lease* gives a right to it, else the first reason why not."""
    job = tables.rows.jobs.get(lease.job_id)
    if job is None:
        return JobNotFound(lease.job_id)
    if job.status is not Status.PROCESSING:
        return JobNotInflight(lease.job_id)
    if job.lease_token != lease.token:
        return LeaseMismatch(lease.job_id)
    return LeaseExpired(lease.job_id) if is_expired(job, now) else job


def _settled_before(tables: Tables, lease: Lease, outcome: Outcome) -> Status | None:
    """Return where this very settlement led, if it is committed already."""
    job = tables.rows.jobs.get(lease.job_id)
    if job is None:
        return None
    if outcome.event is Event.ACK:
        return job.status if job.status is Status.SUCCEEDED and job.settled_token == lease.token else None
    attempt = tables.rows.attempts.get(job.id, {}).get(lease.token)
    return attempt.status if attempt is not None and attempt.event is outcome.event else None


def _end_attempt(job: Job, outcome: Outcome) -> Job:
    """Take the lease away, and the attempt back where it does not count."""
    is_release = outcome.event is Event.RELEASE
    gives_back = outcome.event is Event.SNOOZE or (is_release and job.releases < outcome.bound)
    return replace(
        job,
        attempt_count=job.attempt_count - gives_back,
        releases=job.releases + is_release,
        settled_token=job.lease_token,
        lease_token=None,
        lease_expires_at=None,
    )


def _land(tables: Tables, job: Job, status: Status, outcome: Outcome, now: datetime) -> None:
    """Store *job* in the state its outcome leads to."""
    error = None if outcome.recorded_failure is None else str(outcome.recorded_failure) or None
    if status is Status.DEAD:
        reason = outcome.reason if outcome.event is Event.FAIL and outcome.reason else ATTEMPTS_EXHAUSTED
        dead_letter(tables, job, now=now, reason=reason, error=error or reason)
        return
    has_failed = outcome.event is Event.RETRY
    is_put_off = status.is_waiting and outcome.event in {Event.RETRY, Event.SNOOZE}
    landed = replace(
        job,
        status=status,
        result=outcome.result,
        completed_at=now if status.is_final else None,
        scheduled_for=now + outcome.delay if is_put_off else job.scheduled_for,
        last_error=error if has_failed else job.last_error,
        failed_at=now if has_failed else job.failed_at,
    )
    tables.put(landed, now=now)
