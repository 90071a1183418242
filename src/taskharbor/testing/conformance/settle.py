"""Settling attempts: what each outcome does to its job, alone and in batches."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.errors import JobTimedOut, LeaseLost
from taskharbor.core.failure import Failure
from taskharbor.core.model import AttemptOutcome, Claim
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, Outcome
from taskharbor.core.results import Settled, Settlement
from taskharbor.core.states import Event, Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, TICK

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Subject

RETRY = Outcome.retry(after=timedelta(minutes=5), failure=BOOM)


def take_sent(subject: Subject, **fields: object) -> Claim:
    """Claim a job by its message."""
    [claim] = subject.claim(subject.bring(Status.ENQUEUED, **fields))
    assert isinstance(claim, Claim)
    return claim


def take_to_cancel(subject: Subject, **fields: object) -> Claim:
    """Reserve a job and request its cancel while it runs."""
    job_id = subject.insert(**fields)
    claim = subject.take()
    subject.cancel(job_id)
    return claim


def test_a_success_is_recorded(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(timedelta(seconds=1))

    answer = subject.settle(claim, Outcome.ack(bytes(range(256))))

    job = subject.job(job_id)
    assert answer == Settled(job_id, Status.SUCCEEDED)
    assert (job.status, job.completed_at, job.result) == (Status.SUCCEEDED, subject.clock.now(), bytes(range(256)))
    assert (job.lease_token, job.lease_expires_at, job.settled_token) == (None, None, claim.lease.token)
    assert (job.worker_id, job.attempt_count, job.failed_at) == ("worker", 1, None)


def test_a_success_records_no_attempt_row(subject: Subject) -> None:
    job_id = subject.bring(Status.SUCCEEDED)

    assert (subject.attempts(job_id), subject.outbox(job_id)) == ([], [])


def test_a_success_wins_over_a_requested_cancel(subject: Subject) -> None:
    claim = take_to_cancel(subject)

    assert subject.settle(claim, Outcome.ack()) == Settled(claim.job.id, Status.SUCCEEDED)


def test_an_outcome_is_recorded_until_a_moment_before_the_lease_ends(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(LEASE - TICK)

    assert subject.settle(claim, Outcome.ack()) == Settled(claim.job.id, Status.SUCCEEDED)


def test_a_retried_job_waits_for_its_delay(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(timedelta(seconds=1))

    answer = subject.settle(claim, RETRY)

    job, now = subject.job(job_id), subject.clock.now()
    assert answer == Settled(job_id, Status.FAILED)
    assert (job.status, job.scheduled_for) == (Status.FAILED, now + timedelta(minutes=5))
    assert (job.last_error, job.failed_at, job.completed_at) == ("ValueError: boom", now, None)
    assert (job.lease_token, job.lease_expires_at, job.settled_token) == (None, None, claim.lease.token)


def test_a_retry_does_not_count_an_attempt_again(subject: Subject) -> None:
    job_id = subject.insert()

    subject.settle(subject.take(), RETRY)

    assert subject.job(job_id).attempt_count == 1


def test_a_retried_job_claimed_by_message_returns_to_enqueued(subject: Subject) -> None:
    claim = take_sent(subject)

    answer = subject.settle(claim, RETRY)

    job = subject.job(claim.job.id)
    assert answer == Settled(claim.job.id, Status.ENQUEUED)
    assert (job.dispatch_at, job.scheduled_for) == (None, subject.clock.now() + timedelta(minutes=5))


def test_a_failed_attempt_is_recorded_with_its_error(subject: Subject) -> None:
    job_id = subject.insert()
    started = subject.clock.now()
    claim = subject.take(worker="w-1")
    subject.advance(timedelta(seconds=1))

    subject.settle(claim, RETRY)

    [attempt] = subject.attempts(job_id)
    assert (attempt.token, attempt.attempt, attempt.life, attempt.worker_id) == (claim.lease.token, 1, 1, "w-1")
    assert (attempt.event, attempt.status, attempt.outcome) == (Event.RETRY, Status.FAILED, AttemptOutcome.FAILED)
    assert (attempt.started_at, attempt.ended_at) == (started, subject.clock.now())
    assert attempt.failure == BOOM


def test_an_attempt_that_timed_out_is_recorded_as_that(subject: Subject) -> None:
    job_id = subject.insert()
    failure = Failure.of(JobTimedOut(job_id, timedelta(seconds=3)))

    subject.settle(subject.take(), Outcome.retry(after=timedelta(0), failure=failure))

    assert [attempt.outcome for attempt in subject.attempts(job_id)] == [AttemptOutcome.TIMED_OUT]


def test_a_job_retried_without_attempts_left_is_dead(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=1)
    due = subject.job(job_id).scheduled_for

    answer = subject.settle(subject.take(), RETRY)

    job = subject.job(job_id)
    assert answer == Settled(job_id, Status.DEAD)
    assert (job.dead_reason, job.last_error, job.completed_at) == (
        ATTEMPTS_EXHAUSTED,
        "ValueError: boom",
        subject.clock.now(),
    )
    assert job.scheduled_for == due
    assert len(subject.outbox(job_id)) == 1


def test_a_job_to_be_canceled_is_canceled_by_a_retry(subject: Subject) -> None:
    claim = take_to_cancel(subject)

    answer = subject.settle(claim, RETRY)

    job = subject.job(claim.job.id)
    assert answer == Settled(claim.job.id, Status.CANCELED)
    assert (job.completed_at, job.last_error, job.dead_at) == (subject.clock.now(), "ValueError: boom", None)
    assert job.scheduled_for == claim.job.scheduled_for


def test_a_cancel_request_wins_over_exhausted_attempts(subject: Subject) -> None:
    claim = take_to_cancel(subject, max_attempts=1)

    assert subject.settle(claim, RETRY) == Settled(claim.job.id, Status.CANCELED)
    assert subject.outbox(claim.job.id) == []


def test_a_job_that_failed_for_good_is_a_dead_letter(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(timedelta(seconds=1))

    answer = subject.settle(claim, Outcome.fail("no such customer", failure=BOOM))

    job, now = subject.job(job_id), subject.clock.now()
    assert answer == Settled(job_id, Status.DEAD)
    assert (job.dead_reason, job.dead_at, job.completed_at, job.failed_at) == ("no such customer", now, now, now)
    assert (job.last_error, job.settled_token, job.lease_token) == ("ValueError: boom", claim.lease.token, None)


def test_every_death_has_its_event_in_the_outbox(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=4)

    subject.settle(subject.take(worker="w-1"), Outcome.fail("hopeless", failure=BOOM))

    [row] = subject.outbox(job_id)
    event = row.event
    assert (event.event_id, event.job_id, event.type, event.queue) == (f"{job_id}:1", job_id, "greet", "default")
    assert (event.worker_id, event.attempt_count, event.max_attempts) == ("w-1", 1, 4)
    assert (event.error, event.dead_at) == ("ValueError: boom", subject.clock.now())
    assert (row.published_at, row.given_up_at, row.attempts) == (None, None, 0)


def test_a_dead_job_has_its_last_error_and_not_an_older_one(subject: Subject) -> None:
    job_id = subject.bring(Status.FAILED)

    subject.settle(subject.take(), Outcome.fail("no handler for greet"))

    assert subject.job(job_id).last_error == "no handler for greet"
    assert [row.event.error for row in subject.outbox(job_id)] == ["no handler for greet"]


def test_a_snoozed_job_waits_and_its_attempt_does_not_count(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=1)
    claim = subject.take()

    answer = subject.settle(claim, Outcome.snooze(after=timedelta(hours=1)))

    job = subject.job(job_id)
    assert answer == Settled(job_id, Status.PENDING)
    assert (job.attempt_count, job.scheduled_for) == (0, subject.clock.now() + timedelta(hours=1))
    assert (job.releases, job.last_error, job.settled_token) == (0, None, claim.lease.token)


def test_a_snoozed_job_claimed_by_message_returns_to_enqueued(subject: Subject) -> None:
    claim = take_sent(subject)

    assert subject.settle(claim, Outcome.snooze(after=timedelta(0))) == Settled(claim.job.id, Status.ENQUEUED)


def test_a_job_to_be_canceled_is_canceled_by_a_snooze(subject: Subject) -> None:
    claim = take_to_cancel(subject)

    assert subject.settle(claim, Outcome.snooze(after=timedelta(0))) == Settled(claim.job.id, Status.CANCELED)


def test_a_released_job_is_due_at_once_without_counting_the_attempt(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=1)
    due = subject.clock.now()
    claim = subject.take()
    subject.advance(timedelta(seconds=1))

    answer = subject.settle(claim, Outcome.release())

    job = subject.job(job_id)
    assert answer == Settled(job_id, Status.PENDING)
    assert (job.attempt_count, job.releases, job.scheduled_for) == (0, 1, due)
    assert subject.take().job.id == job_id


def test_a_released_job_claimed_by_message_returns_to_enqueued(subject: Subject) -> None:
    claim = take_sent(subject)

    assert subject.settle(claim, Outcome.release()) == Settled(claim.job.id, Status.ENQUEUED)


def test_a_job_to_be_canceled_is_canceled_by_a_release(subject: Subject) -> None:
    claim = take_to_cancel(subject)

    assert subject.settle(claim, Outcome.release()) == Settled(claim.job.id, Status.CANCELED)


def test_a_release_past_its_bound_counts_as_an_attempt(subject: Subject) -> None:
    job_id = subject.insert()
    counts = []
    for _ in range(3):
        subject.settle(subject.take(), Outcome.release(bound=2))
        counts.append(subject.job(job_id).attempt_count)

    assert counts == [0, 0, 1]
    assert subject.job(job_id).releases == 3


def test_a_release_without_a_bound_counts_as_neither_attempt_nor_release(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=2)
    subject.settle(subject.take(), Outcome.release(bound=0))

    answers = [subject.settle(subject.take(), Outcome.release(bound=None)) for _ in range(2)]
    job = subject.job(job_id)
    within_bound = subject.settle(subject.take(), Outcome.release(bound=2))

    assert answers == [Settled(job_id, Status.PENDING)] * 2
    assert (job.attempt_count, job.releases) == (1, 1)
    assert within_bound == Settled(job_id, Status.PENDING)


def test_a_job_released_past_its_bound_without_attempts_left_is_dead(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=1)

    answer = subject.settle(subject.take(), Outcome.release(bound=0))

    job = subject.job(job_id)
    assert answer == Settled(job_id, Status.DEAD)
    assert (job.dead_reason, job.last_error) == (ATTEMPTS_EXHAUSTED, ATTEMPTS_EXHAUSTED)
    assert len(subject.outbox(job_id)) == 1


def test_a_job_canceled_by_its_handler_is_canceled(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()

    answer = subject.settle(claim, Outcome.cancel("not needed any more"))

    job = subject.job(job_id)
    assert answer == Settled(job_id, Status.CANCELED)
    assert (job.completed_at, job.settled_token) == (subject.clock.now(), claim.lease.token)
    assert (job.lease_token, job.dead_at) == (None, None)


def test_snoozed_released_and_canceled_attempts_are_recorded_too(subject: Subject) -> None:
    job_id = subject.insert()
    for outcome in (Outcome.snooze(after=timedelta(0)), Outcome.release(), Outcome.cancel("enough")):
        subject.settle(subject.take(), outcome)
        subject.advance(TICK)

    attempts = subject.attempts(job_id)
    assert [attempt.outcome for attempt in attempts] == ["SNOOZED", "RELEASED", "CANCELED"]
    assert [attempt.status for attempt in attempts] == ["PENDING", "PENDING", "CANCELED"]
    assert [attempt.failure for attempt in attempts] == [None, None, Failure(message="enough")]


def test_the_error_text_of_any_exception_is_stored(subject: Subject) -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            return "nul \x00, a lone surrogate \ud800, and " + "long " * 100_000

    job_id = subject.insert()
    failure = Failure.of(OddError())

    subject.settle(subject.take(), Outcome.fail("odd", failure=failure))

    assert subject.job(job_id).last_error == str(failure)
    assert [attempt.failure for attempt in subject.attempts(job_id)] == [failure]


def test_settlements_of_a_batch_are_answered_one_by_one(subject: Subject) -> None:
    job_ids = [subject.insert() for _ in range(4)]
    claims = subject.reserve(limit=4)
    outcomes = [Outcome.ack(b"1"), RETRY, Outcome.fail("hopeless"), Outcome.ack(b"4")]

    answers = subject.driver.settle(
        [Settlement(claim.lease, outcome) for claim, outcome in zip(claims, outcomes, strict=True)],
    )

    statuses = [Status.SUCCEEDED, Status.FAILED, Status.DEAD, Status.SUCCEEDED]
    assert answers == [Settled(job_id, status) for job_id, status in zip(job_ids, statuses, strict=True)]
    assert [subject.job(job_id).result for job_id in job_ids] == [b"1", None, None, b"4"]


def statuses_of(subject: Subject, job_ids: list[JobId]) -> list[Status]:
    return [subject.job(job_id).status for job_id in job_ids]


def test_one_lost_lease_does_not_harm_the_other_settlements_of_a_batch(subject: Subject) -> None:
    job_ids = [subject.insert() for _ in range(3)]
    claims = subject.reserve(limit=3)
    subject.settle(claims[1], Outcome.cancel())

    subject.driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])

    assert statuses_of(subject, job_ids) == [Status.SUCCEEDED, Status.CANCELED, Status.SUCCEEDED]


def test_a_lost_lease_settles_nothing_in_a_batch_with_its_successors(subject: Subject) -> None:
    reclaimed = subject.insert()
    lost = subject.take()
    subject.advance(LEASE)
    other = subject.insert()
    leases = {claim.job.id: claim.lease for claim in subject.reserve(limit=2)}

    subject.driver.settle([Settlement(lease, Outcome.ack()) for lease in (lost.lease, leases[other])])

    assert statuses_of(subject, [reclaimed, other]) == [Status.PROCESSING, Status.SUCCEEDED]


def test_of_two_leases_of_a_job_only_the_valid_one_settles(subject: Subject) -> None:
    job_id = subject.insert()
    lost = subject.take()
    subject.advance(LEASE)
    held = subject.take()

    refused, settled = subject.driver.settle(
        [Settlement(lost.lease, Outcome.ack(b"lost")), Settlement(held.lease, Outcome.ack(b"held"))]
    )

    assert isinstance(refused, LeaseLost)
    assert settled == Settled(job_id, Status.SUCCEEDED)
    assert subject.job(job_id).result == b"held"
