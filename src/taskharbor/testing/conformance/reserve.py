"""Reserving due jobs of a queue, and reclaiming jobs with expired leases."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.codec import JsonCodec
from taskharbor.core.ids import new_token
from taskharbor.core.model import Claim, Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, LOCK, OVERDUE_AFTER, TICK

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Subject


def ids(claims: list[Claim]) -> list[JobId]:
    return [claim.job.id for claim in claims]


def test_a_due_job_is_leased_to_the_worker_that_asks(subject: Subject) -> None:
    job_id, token = subject.insert(), new_token()

    [claim] = subject.reserve(token=token, worker="w-1")

    job = subject.job(job_id)
    assert claim == Claim(job, Lease(job_id, token, subject.clock.now() + LEASE))
    assert (job.status, job.worker_id) == (Status.PROCESSING, "w-1")
    assert (job.lease_token, job.lease_expires_at) == (token, subject.clock.now() + LEASE)
    assert job.processing_started_at == subject.clock.now()


def test_a_claimed_job_is_an_object_of_its_own(subject: Subject) -> None:
    job_id, codec = subject.insert(), JsonCodec()
    claim = subject.take()
    [read_back] = subject.driver.read_back([claim.lease.token])

    for job in (claim.job, read_back.job):
        job.use_codec(codec)
        assert job.codec is codec

    assert subject.job(job_id).codec is not codec


def test_an_attempt_counts_from_the_claim_on(subject: Subject) -> None:
    subject.insert()

    assert subject.take().job.attempt_count == 1


def test_a_job_is_not_reserved_before_it_is_due(subject: Subject) -> None:
    subject.insert(delay=timedelta(hours=1))
    subject.advance(timedelta(hours=1) - TICK)

    assert subject.reserve() == []


def test_a_job_is_reserved_at_the_instant_it_is_due(subject: Subject) -> None:
    job_id = subject.insert(delay=timedelta(hours=1))
    subject.advance(timedelta(hours=1))

    assert ids(subject.reserve()) == [job_id]


def test_the_lowest_priority_number_runs_first(subject: Subject) -> None:
    last, first, middle = subject.insert(priority=2), subject.insert(priority=-1), subject.insert()

    assert ids(subject.reserve(limit=3)) == [first, middle, last]


def test_at_one_priority_the_job_due_first_runs_first(subject: Subject) -> None:
    now = subject.clock.now()
    later, earlier = subject.insert(scheduled_for=now - TICK), subject.insert(scheduled_for=now - 2 * TICK)

    assert ids(subject.reserve(limit=2)) == [earlier, later]


def test_at_one_time_the_older_id_runs_first(subject: Subject) -> None:
    inserted = [subject.insert() for _ in range(20)]

    assert ids(subject.reserve(limit=20)) == inserted


def test_a_stream_of_new_jobs_does_not_starve_a_retried_one(subject: Subject) -> None:
    retried = subject.bring(Status.FAILED)
    subject.advance(TICK)
    subject.insert()

    assert ids(subject.reserve()) == [retried]


def test_no_more_jobs_are_reserved_than_asked_for(subject: Subject) -> None:
    for _ in range(3):
        subject.insert()

    assert len(subject.reserve(limit=2)) == 2
    assert len(subject.reserve(limit=2)) == 1


def test_a_limit_of_zero_reserves_no_job(subject: Subject) -> None:
    subject.insert()

    assert subject.reserve(limit=0) == []


def test_jobs_of_other_queues_are_left_alone(subject: Subject) -> None:
    subject.insert(queue="mail")

    assert subject.reserve("default") == []
    assert len(subject.reserve("mail")) == 1


def test_jobs_of_other_types_are_not_reserved(subject: Subject) -> None:
    subject.insert(type="unknown")
    known = subject.insert(type="known")

    assert ids(subject.reserve(types=["known"])) == [known]


def test_a_skipped_job_can_be_reserved_by_others(subject: Subject) -> None:
    job_id = subject.insert(type="rare")
    subject.reserve(types=["known"])

    assert ids(subject.reserve(types=["rare"])) == [job_id]


def test_an_empty_list_of_types_reserves_no_job(subject: Subject) -> None:
    subject.insert()

    assert subject.reserve(types=[]) == []


def test_a_paused_queue_gives_no_job_until_it_is_resumed(subject: Subject) -> None:
    subject.insert()
    subject.driver.control.pause(["default"], by="ops")
    assert subject.reserve() == []

    subject.driver.control.resume(["default"])

    assert len(subject.reserve()) == 1


def test_pausing_one_queue_leaves_the_others_running(subject: Subject) -> None:
    subject.insert(queue="mail")
    subject.driver.control.pause(["default"], by="ops")

    assert len(subject.reserve("mail")) == 1


def test_a_leased_job_is_not_reserved_again(subject: Subject) -> None:
    subject.insert()
    subject.take()
    subject.advance(LEASE - TICK)

    assert subject.reserve() == []


def test_one_token_covers_all_jobs_of_a_call(subject: Subject) -> None:
    subject.insert()
    subject.insert()
    token = new_token()

    claims = subject.reserve(limit=2, token=token)

    assert {claim.lease.token for claim in claims} == {token}


def test_a_failed_job_is_reserved_when_its_delay_has_passed(subject: Subject) -> None:
    job_id = subject.insert()
    subject.settle(subject.take(), Outcome.retry(after=timedelta(minutes=5), failure=BOOM))
    subject.advance(timedelta(minutes=5))

    [claim] = subject.reserve()

    assert (claim.job.id, claim.job.attempt_count) == (job_id, 2)


def test_a_failed_job_is_not_reserved_before_its_delay_has_passed(subject: Subject) -> None:
    subject.insert()
    subject.settle(subject.take(), Outcome.retry(after=timedelta(minutes=5), failure=BOOM))
    subject.advance(timedelta(minutes=5) - TICK)

    assert subject.reserve() == []


def test_an_enqueued_job_is_not_reserved_until_it_is_overdue(subject: Subject) -> None:
    subject.bring(Status.ENQUEUED)
    subject.advance(OVERDUE_AFTER)

    assert subject.reserve() == []


def test_an_enqueued_job_is_reserved_when_it_is_overdue(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.advance(OVERDUE_AFTER + TICK)

    [claim] = subject.reserve()

    job = claim.job
    assert (job.id, job.status, job.dispatch_at, job.resends) == (job_id, Status.PROCESSING, None, 0)


def test_an_overdue_only_reserve_skips_jobs_that_are_not_overdue(subject: Subject) -> None:
    job_id = subject.insert()
    subject.advance(OVERDUE_AFTER - TICK)
    assert subject.reserve(overdue_only=True) == []

    subject.advance(TICK)
    [claim] = subject.reserve(overdue_only=True)
    assert claim.job.id == job_id

    subject.settle(claim, Outcome.retry(after=timedelta(0), failure=BOOM))
    assert subject.reserve(overdue_only=True) == []
    subject.advance(OVERDUE_AFTER)
    assert ids(subject.reserve(overdue_only=True)) == [job_id]


def test_a_skipped_enqueued_job_does_not_block_those_behind_it(subject: Subject) -> None:
    subject.bring(Status.ENQUEUED)
    behind = subject.insert()

    assert ids(subject.reserve()) == [behind]


def test_a_job_is_not_due_after_the_clock_was_set_back(subject: Subject) -> None:
    subject.insert(delay=timedelta(hours=1))
    subject.advance(timedelta(hours=1))
    subject.reserve(types=[])
    subject.advance(-TICK)

    assert subject.reserve() == []


def test_a_rescheduled_job_is_reserved_in_its_new_order(subject: Subject) -> None:
    now = subject.clock.now()
    moved = subject.insert(scheduled_for=now - 3 * TICK)
    other = subject.insert(scheduled_for=now - 2 * TICK)
    subject.driver.reschedule([moved], scheduled_for=now - TICK)

    assert ids(subject.reserve(limit=2)) == [other, moved]


def test_a_job_rescheduled_before_it_was_reserved_is_not_reserved_twice(subject: Subject) -> None:
    job_id = subject.insert(delay=timedelta(hours=1))
    subject.driver.reschedule([job_id], delay=timedelta(0))
    subject.take()
    subject.advance(timedelta(hours=1))

    assert subject.reserve(reclaim=False) == []


def test_a_job_with_exhausted_attempts_is_never_reserved(subject: Subject) -> None:
    subject.exhaust(subject.insert())

    assert subject.reserve() == []


def test_a_lease_is_reclaimed_at_the_instant_it_ends(subject: Subject) -> None:
    job_id = subject.insert()
    subject.take(worker="dead")
    subject.advance(LEASE)
    token = new_token()

    claims = subject.reserve(token=token, worker="successor")

    job = subject.job(job_id)
    assert claims == [Claim(job, Lease(job_id, token, subject.clock.now() + LEASE))]
    assert (job.lease_token, job.worker_id, job.processing_started_at) == (token, "successor", subject.clock.now())


def test_a_reclaim_counts_as_an_attempt(subject: Subject) -> None:
    subject.insert()
    subject.take()
    subject.advance(LEASE)

    assert subject.take().job.attempt_count == 2


def test_a_lost_attempt_is_recorded_under_its_old_token(subject: Subject) -> None:
    job_id = subject.insert()
    started = subject.clock.now()
    lost = subject.take(worker="dead")
    subject.advance(LEASE)

    subject.take(worker="successor")

    [attempt] = subject.attempts(job_id)
    assert (attempt.token, attempt.worker_id, attempt.attempt, attempt.life) == (lost.lease.token, "dead", 1, 1)
    assert (attempt.event, attempt.outcome, attempt.status) == ("reclaim", "LOST", Status.PROCESSING)
    assert (attempt.started_at, attempt.ended_at) == (started, subject.clock.now())


def test_waiting_jobs_are_reserved_before_expired_leases_oldest_expiry_first(subject: Subject) -> None:
    first_expired = subject.insert()
    subject.take()
    subject.advance(TICK)
    next_expired = subject.insert()
    subject.take()
    subject.advance(LEASE)
    waiting = subject.insert(priority=9)

    assert ids(subject.reserve(limit=3)) == [waiting, first_expired, next_expired]


def test_expired_leases_count_towards_the_limit(subject: Subject) -> None:
    for _ in range(3):
        subject.insert()
    subject.reserve(limit=3)
    subject.advance(LEASE)
    subject.insert()

    assert len(subject.reserve(limit=2)) == 2
    assert len(subject.reserve(limit=9)) == 2


def test_expired_leases_are_left_alone_without_reclaim(subject: Subject) -> None:
    subject.insert()
    subject.take()
    subject.advance(LEASE)

    assert subject.reserve(reclaim=False) == []


def test_expired_leases_of_other_queues_are_left_alone(subject: Subject) -> None:
    subject.insert(queue="mail")
    subject.reserve("mail")
    subject.advance(LEASE)

    assert subject.reserve("default") == []


def test_expired_leases_of_other_types_are_left_alone(subject: Subject) -> None:
    subject.insert(type="rare")
    subject.reserve()
    subject.advance(LEASE)

    assert subject.reserve(types=["known"]) == []


def test_a_job_that_lost_its_last_attempt_is_not_reclaimed(subject: Subject) -> None:
    subject.insert(max_attempts=1)
    subject.take()
    subject.advance(LEASE)

    assert subject.reserve() == []


def test_a_job_whose_cancel_was_requested_is_not_reclaimed(subject: Subject) -> None:
    job_id = subject.insert()
    subject.take()
    subject.cancel(job_id)
    subject.advance(LEASE)

    assert subject.reserve() == []


def test_expired_leases_of_a_paused_queue_are_not_reclaimed(subject: Subject) -> None:
    subject.insert()
    subject.take()
    subject.driver.control.pause(["default"], by="ops")
    subject.advance(LEASE)

    assert subject.reserve() == []


def test_a_job_reserved_after_a_send_keeps_its_message_count(subject: Subject) -> None:
    subject.bring(Status.ENQUEUED)
    subject.advance(OVERDUE_AFTER + LOCK)

    [claim] = subject.reserve()

    assert (claim.job.sends, claim.job.sent_at is not None) == (1, True)
