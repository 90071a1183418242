"""Attempts: lease jobs, extend leases, record outcomes, and write dead letters."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from taskharbor.core.claims import refusal_reason
from taskharbor.core.errors import JobNotFound, JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.core.model import Attempt, AttemptOutcome, Claim, DeadTaskEvent, Job, Lease, OutboxRow
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED
from taskharbor.core.results import Death, Extended, RefusalReason, Refused, Settled
from taskharbor.core.states import Event, Status, status_after
from taskharbor.core.statistics import HOUR, MINUTE, Metric, begin_of
from taskharbor.core.trace_context import ATTEMPT_TRACEPARENT, TRACEPARENT
from taskharbor.drivers.memory.inspector import fingerprint

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
    """Return whether the job's lease has expired."""
    return job.lease_expires_at is not None and job.lease_expires_at <= now


def clock_hold_until(tables: Tables, now: datetime) -> datetime | None:
    """Return when the current clock hold ends, or None. During a hold, no expired lease is reclaimed."""
    jump = tables.rows.jump
    return jump.hold if jump is not None and now < jump.hold else None


def lost_attempt(tables: Tables, job: Job) -> tuple[AttemptOutcome, int]:
    """Return why an expired lease was lost, and the number of attempts that count."""
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
    """Record an attempt of *job*, in its state before the change, under *token* or the token of its lease.

    (job, token) identifies one attempt; its first row is kept.
    """
    attempt_token = token or job.lease_token
    assert attempt_token is not None  # noqa: S101  a job that ends an attempt holds a lease
    attempt = Attempt(
        job_id=job.id,
        token=attempt_token,
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
    kept = tables.rows.attempts[job.id].setdefault(attempt_token, attempt)
    if kept is attempt and outcome in {AttemptOutcome.LOST, AttemptOutcome.CLOCK}:
        tables.rows.tallies[Metric.ATTEMPTS, begin_of(now, MINUTE), job.queue, job.type, outcome.value] += 1


def dead_letter(tables: Tables, job: Job, *, now: datetime, reason: str, error: str) -> Death:
    """Store *job* as a dead letter, together with its outbox event."""
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
    tables.rows.dead_hours[dead.queue, dead.type, fingerprint(tables, dead) or "", begin_of(now, HOUR)] += 1
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
        worker_id=event.worker_id,
        traceparent=dead.metadata.get(TRACEPARENT),
    )


def claim_due(
    tables: Tables,
    queue: str,
    claimant: Claimant,
    *,
    now: datetime,
    limit: int,
    overdue_after: timedelta,
    min_wait: timedelta,
) -> list[Claim]:
    """Lease the first *limit* jobs of *queue* that are eligible."""

    def is_eligible(job: Job) -> bool:
        waited = now - job.scheduled_for
        is_due = waited > overdue_after if job.status is Status.ENQUEUED else waited >= min_wait
        return is_due and not job.is_exhausted and claimant.may_take(job, now)

    if queue in tables.rows.paused:
        return []
    return _claim_in_order(tables, queue, is_eligible, claimant, now=now, limit=limit)


def _claim_in_order(
    tables: Tables,
    queue: str,
    is_eligible: Callable[[Job], bool],
    claimant: Claimant,
    *,
    now: datetime,
    limit: int,
) -> list[Claim]:
    ready = tables.rows.ready[queue]
    claims: list[Claim] = []
    unclaimed: list[Entry] = []
    try:
        for entry in ready.pop_due(now) if limit > 0 else ():
            job = tables.rows.jobs.get(entry[2])
            if job is None or not job.status.is_waiting or (job.priority, job.scheduled_for) != entry[:2]:
                continue  # a stale entry
            unclaimed.append(entry)
            if is_eligible(job):
                claims.append(_lease(tables, job, claimant, now))
                unclaimed.pop()
            if len(claims) == limit:
                break
    finally:  # keep the entries of unclaimed jobs even after an error
        ready.put_back(unclaimed)
    return claims


def reclaim_expired(tables: Tables, queue: str, claimant: Claimant, *, now: datetime, limit: int) -> list[Claim]:
    """Reclaim jobs with expired leases, earliest expiry first."""
    inflight = [tables.rows.jobs[job_id] for job_id in tables.rows.inflight]
    ended = [job for job in inflight if _refusal(tables, queue, job, claimant, now) is None]
    ended.sort(key=lambda job: (job.lease_expires_at, job.id))
    return [_lease(tables, job, claimant, now) for job in ended[: max(limit, 0)]]


def claim(tables: Tables, queue: str, job_id: JobId, claimant: Claimant, now: datetime) -> Claim | Refused:
    job = tables.rows.jobs.get(job_id)
    if job is None:
        return Refused(job_id, RefusalReason.NOT_FOUND)
    refusal = _refusal(tables, queue, job, claimant, now)
    if refusal is not None:
        return Refused(job_id, *refusal, job.sends)
    # The message arrived, so it was sent, even if the enqueuer has not recorded that, or died before it could.
    return _lease(tables, replace(job, sent_at=job.sent_at or now), claimant, now)


def _refusal(
    tables: Tables, queue: str, job: Job, claimant: Claimant, now: datetime
) -> tuple[RefusalReason, datetime | None] | None:
    _, attempts = lost_attempt(tables, job)
    return refusal_reason(
        job,
        claimant,
        queue=queue,
        now=now,
        hold=clock_hold_until(tables, now),
        attempts=attempts,
        is_paused=job.queue in tables.rows.paused,
    )


def _lease(tables: Tables, job: Job, claimant: Claimant, now: datetime) -> Claim:
    attempts = job.attempt_count
    if job.lease_token is not None:
        lost, attempts = lost_attempt(tables, job)
        record_attempt(tables, job, now=now, event=Event.RECLAIM, status=Status.PROCESSING, outcome=lost)
    lease = Lease(job.id, claimant.token, now + claimant.lease)
    leased = replace(
        job,
        status=Status.PROCESSING,
        lease_token=lease.token,
        lease_expires_at=lease.expires_at,
        worker_id=claimant.worker,
        processing_started_at=now,
        attempt_count=attempts + 1,
        dispatch_at=None,
        resends=0,
    )
    # A copy: a claimed job belongs to its worker.
    return Claim(copy(tables.put(leased, now=now)), lease, is_reclaim=job.lease_token is not None)


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


def cancel_requested(tables: Tables, held: Lease, now: datetime) -> bool:
    job = _held(tables, held, now)
    return isinstance(job, Job) and job.cancel_requested_at is not None


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
    if outcome.event is not Event.ACK:  # before the job is stored: the group of a dead letter is that of its attempt
        record_attempt(
            tables,
            job,
            now=now,
            event=outcome.event,
            status=status,
            outcome=outcome.attempt_outcome,
            failure=outcome.recorded_failure,
        )
    _store_outcome(tables, ended, status, outcome, now)
    return Settled(job.id, status)


def _held(tables: Tables, lease: Lease, now: datetime) -> Job | JobNotFound | LeaseLost:
    """Return the job if *lease* is valid, else the first error that applies."""
    job = tables.rows.jobs.get(lease.job_id)
    if job is None:
        return JobNotFound(lease.job_id)
    if job.status is not Status.PROCESSING:
        return JobNotInflight(lease.job_id)
    if job.lease_token != lease.token:
        return LeaseMismatch(lease.job_id)
    return LeaseExpired(lease.job_id) if is_expired(job, now) else job


def _settled_before(tables: Tables, lease: Lease, outcome: Outcome) -> Status | None:
    """Return the status that this settlement led to, if it is already committed."""
    job = tables.rows.jobs.get(lease.job_id)
    if job is None:
        return None
    if outcome.event is Event.ACK:
        return job.status if job.status is Status.SUCCEEDED and job.settled_token == lease.token else None
    attempt = tables.rows.attempts.get(job.id, {}).get(lease.token)
    return attempt.status if attempt is not None and attempt.event is outcome.event else None


def _end_attempt(job: Job, outcome: Outcome) -> Job:
    """Remove the lease, keep the trace context, and do not count a snooze or a release within the bound."""
    is_release, bound = outcome.event is Event.RELEASE, outcome.bound
    is_uncounted = outcome.event is Event.SNOOZE or (is_release and (bound is None or job.releases < bound))
    metadata = job.metadata
    if outcome.traceparent is not None and outcome.event is not Event.ACK:
        metadata = MappingProxyType({**metadata, ATTEMPT_TRACEPARENT: outcome.traceparent})
    return replace(
        job,
        metadata=metadata,
        attempt_count=job.attempt_count - is_uncounted,
        releases=job.releases + (is_release and bound is not None),
        settled_token=job.lease_token,
        lease_token=None,
        lease_expires_at=None,
    )


def _store_outcome(tables: Tables, job: Job, status: Status, outcome: Outcome, now: datetime) -> None:
    """Store *job* in the status that *outcome* leads to."""
    error = None if outcome.recorded_failure is None else str(outcome.recorded_failure) or None
    if status is Status.DEAD:
        reason = outcome.reason if outcome.event is Event.FAIL and outcome.reason else ATTEMPTS_EXHAUSTED
        dead_letter(tables, job, now=now, reason=reason, error=error or reason)
        return
    has_failed = outcome.event is Event.RETRY
    is_delayed = status.is_waiting and outcome.event in {Event.RETRY, Event.SNOOZE}
    settled = replace(
        job,
        status=status,
        result=outcome.result,
        completed_at=now if status.is_final else None,
        scheduled_for=now + outcome.delay if is_delayed else job.scheduled_for,
        last_error=error if has_failed else job.last_error,
        failed_at=now if has_failed else job.failed_at,
    )
    tables.put(settled, now=now)
