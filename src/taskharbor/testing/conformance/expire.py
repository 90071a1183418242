"""Expiring the leases of lost workers, burying jobs without attempts left, and clock jumps."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.model import AttemptOutcome, Claim
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, LEASE_LOST, Outcome
from taskharbor.core.results import Cancellation, Expired, Settled
from taskharbor.core.states import Event, Status
from taskharbor.testing.conformance.subject import LEASE, TICK

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Subject

JUMP = timedelta(hours=1)


def expire(subject: Subject, *, limit: int = 10) -> list[Expired]:
    return subject.driver.maintenance.expire(limit=limit)


def jump(subject: Subject, by: timedelta = JUMP) -> None:
    """Move the store's clock and report the jump, as the janitor does."""
    expected = subject.clock.now()
    subject.advance(by)
    subject.driver.maintenance.report_clock_jump(expected=expected, lease=LEASE)


def test_a_lost_workers_lease_is_expired_at_the_instant_it_ends(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(LEASE)

    answers = expire(subject)

    job, now = subject.job(job_id), subject.clock.now()
    assert answers == [Expired(job_id, claim.lease.token, Status.FAILED)]
    assert (job.status, job.scheduled_for, job.last_error, job.failed_at) == (Status.FAILED, now, LEASE_LOST, now)
    assert (job.lease_token, job.lease_expires_at, job.settled_token) == (None, None, None)
    assert (job.attempt_count, job.worker_id) == (1, "worker")


def test_a_live_lease_is_never_expired(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    before = subject.everything(job_id)
    subject.advance(LEASE - TICK)

    assert expire(subject) == []
    assert subject.everything(job_id) == before


def test_an_extended_lease_is_not_expired_at_its_original_end(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(TICK)
    subject.driver.extend([claim.lease], lease=LEASE)
    subject.advance(LEASE - TICK)

    assert expire(subject) == []


def test_an_expired_attempt_is_recorded_as_lost(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take(worker="dead")
    subject.advance(LEASE)

    expire(subject)

    [attempt] = subject.attempts(job_id)
    assert (attempt.token, attempt.attempt, attempt.worker_id) == (claim.lease.token, 1, "dead")
    assert (attempt.event, attempt.status, attempt.outcome) == (Event.EXPIRE, Status.FAILED, AttemptOutcome.LOST)
    assert attempt.ended_at == subject.clock.now()


def test_an_expired_job_claimed_by_message_returns_to_enqueued(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.claim(job_id)
    subject.advance(LEASE)

    [answer] = expire(subject)

    assert answer.status is Status.ENQUEUED
    assert subject.job(job_id).dispatch_at is None


def test_a_job_that_killed_its_last_worker_is_dead(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=1)
    subject.take(worker="last")
    subject.advance(LEASE)

    [answer] = expire(subject)

    job, now = subject.job(job_id), subject.clock.now()
    assert answer.status is Status.DEAD
    assert (job.dead_reason, job.dead_at, job.completed_at, job.last_error) == (
        ATTEMPTS_EXHAUSTED,
        now,
        now,
        LEASE_LOST,
    )
    assert (job.worker_id, job.attempt_count) == ("last", 1)
    assert [row.event.worker_id for row in subject.outbox(job_id)] == ["last"]


def test_an_expired_job_with_a_cancel_request_is_canceled(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=1)
    subject.take()
    subject.cancel(job_id)
    subject.advance(LEASE)

    [answer] = expire(subject)

    assert answer.status is Status.CANCELED
    assert answer.cancellation == Cancellation(job_id=job_id, type="greet", queue="default")
    assert subject.job(job_id).completed_at == subject.clock.now()
    assert subject.outbox(job_id) == []


def test_an_ended_lease_is_expired_once(subject: Subject) -> None:
    subject.bring(Status.PROCESSING)
    subject.advance(LEASE)
    expire(subject)

    assert expire(subject) == []


def test_leases_are_expired_oldest_first_up_to_the_limit(subject: Subject) -> None:
    first = subject.bring(Status.PROCESSING)
    subject.advance(TICK)
    second = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)

    assert [answer.job_id for answer in expire(subject, limit=1)] == [first]
    assert [answer.job_id for answer in expire(subject, limit=1)] == [second]


def test_leases_of_a_paused_queue_are_expired(subject: Subject) -> None:
    subject.bring(Status.PROCESSING)
    subject.driver.control.pause(["default"], by="ops")
    subject.advance(LEASE)

    assert len(expire(subject)) == 1


def test_a_poison_job_dies_after_exactly_its_attempts(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=3)
    deaths = 0
    while claims := subject.reserve():
        assert claims[0].job.attempt_count == deaths + 1
        subject.advance(LEASE)
        expire(subject)
        deaths += 1
        assert deaths < 10

    assert (deaths, subject.job(job_id).status) == (3, Status.DEAD)
    assert [attempt.attempt for attempt in subject.attempts(job_id)] == [1, 2, 3]


def test_a_waiting_job_with_exhausted_attempts_is_buried(subject: Subject) -> None:
    job_id = subject.insert()
    subject.exhaust(job_id)

    buried = subject.driver.maintenance.bury(limit=10)

    job, now = subject.job(job_id), subject.clock.now()
    assert [death.job_id for death in buried] == [job_id]
    assert (job.status, job.dead_at, job.completed_at, job.dead_reason) == (Status.DEAD, now, now, ATTEMPTS_EXHAUSTED)
    assert len(subject.outbox(job_id)) == 1


def test_jobs_with_attempts_left_and_jobs_that_run_are_not_buried(subject: Subject) -> None:
    subject.bring(Status.PROCESSING, max_attempts=1)
    subject.bring(Status.FAILED, max_attempts=2)
    subject.insert(delay=timedelta(days=1))

    assert subject.driver.maintenance.bury(limit=10) == []


def test_no_more_jobs_are_buried_than_asked_for(subject: Subject) -> None:
    for _ in range(3):
        subject.exhaust(subject.insert())

    assert [len(subject.driver.maintenance.bury(limit=2)) for _ in range(3)] == [2, 1, 0]


def lease_and_jump(subject: Subject, **fields: object) -> JobId:
    job_id = subject.bring(Status.PROCESSING, **fields)
    jump(subject)
    return job_id


def test_after_a_clock_jump_no_lease_is_expired_for_one_lease_period(subject: Subject) -> None:
    lease_and_jump(subject)
    subject.advance(LEASE - TICK)

    assert expire(subject) == []
    assert subject.reserve() == []


def test_an_attempt_lost_to_a_clock_jump_does_not_count(subject: Subject) -> None:
    job_id = lease_and_jump(subject)
    subject.advance(LEASE)

    [answer] = expire(subject)

    assert answer.status is Status.FAILED
    assert subject.job(job_id).attempt_count == 0
    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.CLOCK]


def test_a_last_attempt_lost_to_a_clock_jump_is_retried(subject: Subject) -> None:
    job_id = lease_and_jump(subject, max_attempts=1)
    subject.advance(LEASE)

    expire(subject)

    assert subject.job(job_id).status is Status.FAILED
    assert subject.take().job.attempt_count == 1


def test_a_job_lost_to_a_clock_jump_is_reclaimed_and_counts_once(subject: Subject) -> None:
    job_id = lease_and_jump(subject, max_attempts=1)
    subject.advance(LEASE)

    [claim] = subject.reserve()

    assert (claim.job.id, claim.job.attempt_count) == (job_id, 1)
    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.CLOCK]


def test_a_lease_that_ended_before_the_jump_counts_as_lost(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)
    jump(subject)
    subject.advance(LEASE)

    expire(subject)

    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.LOST]


def test_a_lease_made_after_the_jump_counts_as_lost(subject: Subject) -> None:
    jump(subject)
    job_id = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)

    expire(subject)

    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.LOST]
    assert subject.job(job_id).attempt_count == 1


def test_a_lease_made_after_the_jump_is_reclaimed_as_lost(subject: Subject) -> None:
    jump(subject)
    job_id = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)

    [claim] = subject.reserve()

    assert (claim.job.id, claim.job.attempt_count) == (job_id, 2)
    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.LOST]


def test_a_jump_reported_by_two_janitors_is_one_jump(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    expected = subject.clock.now()
    subject.advance(JUMP)
    subject.driver.maintenance.report_clock_jump(expected=expected, lease=LEASE)
    subject.advance(timedelta(seconds=1))
    late = subject.clock.now() - timedelta(seconds=1)
    subject.driver.maintenance.report_clock_jump(expected=late, lease=LEASE)
    subject.advance(LEASE)

    expire(subject)

    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.CLOCK]


def test_after_a_jump_back_leases_far_in_the_future_are_shortened(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    jump(subject, -JUMP)

    assert subject.job(claim.job.id).lease_expires_at == subject.clock.now() + LEASE
    assert subject.settle(claim, Outcome.ack()) == Settled(claim.job.id, Status.SUCCEEDED)


def test_after_a_jump_back_shorter_leases_are_left_alone(subject: Subject) -> None:
    job_id = subject.insert()
    subject.take(lease=timedelta(seconds=5))
    jump(subject, -timedelta(seconds=1))

    assert subject.job(job_id).lease_expires_at == subject.clock.now() + timedelta(seconds=6)


def test_new_jobs_are_reserved_during_a_clock_hold(subject: Subject) -> None:
    jump(subject)
    subject.insert()

    [claim] = subject.reserve()

    assert isinstance(claim, Claim)


def test_a_jump_back_ends_the_hold_of_a_jump_ahead(subject: Subject) -> None:
    jump(subject)
    jump(subject, -JUMP)
    job_id = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)

    expire(subject)

    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.LOST]
    assert subject.job(job_id).attempt_count == 1


def test_a_shorter_report_does_not_shorten_a_hold(subject: Subject) -> None:
    lease_and_jump(subject)
    expected = subject.clock.now() - TICK
    subject.driver.maintenance.report_clock_jump(expected=expected, lease=TICK)
    subject.advance(LEASE - TICK)

    assert expire(subject) == []


def test_after_a_jump_back_a_duty_can_be_claimed_at_once(subject: Subject) -> None:
    subject.driver.maintenance.claim_duty("expire", every=timedelta(seconds=5))
    jump(subject, -JUMP)

    assert subject.driver.maintenance.claim_duty("expire", every=timedelta(seconds=5))


def test_a_jump_back_does_not_delay_a_due_duty(subject: Subject) -> None:
    subject.driver.maintenance.claim_duty("expire", every=TICK)
    subject.advance(2 * TICK)
    subject.driver.maintenance.report_clock_jump(expected=subject.clock.now(), lease=LEASE)
    subject.advance(-TICK)

    assert subject.driver.maintenance.claim_duty("expire", every=TICK)


def test_after_a_jump_back_a_lease_is_reclaimed_before_its_due_time(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    jump(subject, -JUMP)
    subject.advance(LEASE)

    [claim] = subject.reserve()

    assert claim.job.id == job_id
