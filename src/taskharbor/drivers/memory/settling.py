"""What the holder of a lease may do: extend it, and record how its attempt ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taskharbor.core.answers import Extended, Settled
from taskharbor.core.errors import JobNotFound, JobNotInflight, LeaseExpired, LeaseLost, LeaseMismatch
from taskharbor.core.model import Job, Lease
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED
from taskharbor.core.states import Event, Status, status_after
from taskharbor.drivers.memory.endings import dead_letter, is_expired, record_attempt

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from taskharbor.core.model import Progress
    from taskharbor.core.outcome import Outcome
    from taskharbor.drivers.memory.tables import Tables


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
        spent=ended.is_exhausted,
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
