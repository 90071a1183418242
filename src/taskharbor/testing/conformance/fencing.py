"""Fencing: a worker that lost its lease changes nothing, and a settlement can be repeated safely."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.errors import JobNotFound, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Claim, Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import RefusalReason, Refused, Settled, Settlement
from taskharbor.core.states import Event, Status
from taskharbor.testing.conformance.subject import BOOM, LEASE

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject

RETRY = Outcome.retry(after=timedelta(0), failure=BOOM)
EVERY_OUTCOME = (
    Outcome.ack(),
    RETRY,
    Outcome.fail("hopeless"),
    Outcome.snooze(after=timedelta(0)),
    Outcome.release(),
    Outcome.cancel(),
)


def lose(subject: Subject, **fields: object) -> Claim:
    """Reserve a job and let its lease expire."""
    subject.insert(**fields)
    lost = subject.take(worker="zombie")
    subject.advance(LEASE)
    return lost


def assert_fenced(subject: Subject, lost: Claim, error: type[Exception]) -> None:
    """Check that every outcome is refused under the lost lease and changes nothing."""
    before = subject.everything(lost.job.id)
    answers = [subject.settle(lost, outcome) for outcome in EVERY_OUTCOME]
    assert [type(answer) for answer in answers] == [error] * len(EVERY_OUTCOME)
    assert subject.everything(lost.job.id) == before


def test_a_worker_whose_lease_expired_cannot_settle(subject: Subject) -> None:
    lost = lose(subject)

    assert_fenced(subject, lost, LeaseExpired)


def test_a_worker_cannot_settle_a_job_reclaimed_by_another(subject: Subject) -> None:
    lost = lose(subject)
    successor = subject.take(worker="successor")

    assert_fenced(subject, lost, LeaseMismatch)
    assert subject.settle(successor, Outcome.ack()) == Settled(lost.job.id, Status.SUCCEEDED)


def test_a_worker_that_reclaimed_its_own_job_cannot_settle_the_first_attempt(subject: Subject) -> None:
    lost = lose(subject)
    subject.take(worker="zombie")

    assert_fenced(subject, lost, LeaseMismatch)


def test_a_worker_cannot_settle_a_job_whose_lease_was_expired(subject: Subject) -> None:
    lost = lose(subject)
    subject.driver.maintenance.expire(limit=1)

    assert_fenced(subject, lost, JobNotInflight)


def test_a_worker_cannot_settle_a_job_finished_by_another(subject: Subject) -> None:
    lost = lose(subject)
    subject.settle(subject.take(), Outcome.ack())

    assert_fenced(subject, lost, JobNotInflight)


def test_a_worker_cannot_settle_a_job_that_died_meanwhile(subject: Subject) -> None:
    lost = lose(subject, max_attempts=1)
    subject.driver.maintenance.expire(limit=1)

    assert_fenced(subject, lost, JobNotInflight)


def test_a_worker_cannot_settle_a_job_that_was_requeued(subject: Subject) -> None:
    lost = lose(subject, max_attempts=1)
    subject.driver.maintenance.expire(limit=1)
    subject.requeue(lost.job.id)
    subject.take()

    assert_fenced(subject, lost, LeaseMismatch)


def test_the_same_outcome_recorded_by_another_worker_is_not_a_repeat(subject: Subject) -> None:
    lost = lose(subject)
    subject.settle(subject.take(), RETRY)

    assert isinstance(subject.settle(lost, RETRY), JobNotInflight)


def test_a_handler_that_finishes_after_its_job_was_pruned_finds_no_job(subject: Subject) -> None:
    lost = lose(subject)
    subject.settle(subject.take(), Outcome.ack())
    subject.advance(timedelta(days=1))
    subject.driver.maintenance.prune(older_than=timedelta(0), limit=1)

    assert_fenced(subject, lost, JobNotFound)


def test_an_outcome_of_an_unknown_job_is_refused(subject: Subject) -> None:
    unknown = Lease(new_job_id(), new_token(), subject.clock.now() + LEASE)

    assert isinstance(subject.settle(unknown, Outcome.ack()), JobNotFound)


def test_a_token_that_was_never_issued_settles_nothing(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    forged = Lease(job_id, new_token(), claim.lease.expires_at)

    assert isinstance(subject.settle(forged, Outcome.ack()), LeaseMismatch)
    assert subject.job(job_id).status is Status.PROCESSING


def test_settling_reports_a_token_mismatch_before_an_expired_lease(subject: Subject) -> None:
    lost = lose(subject)
    forged = Lease(lost.job.id, new_token(), lost.lease.expires_at)

    assert isinstance(subject.settle(forged, Outcome.ack()), LeaseMismatch)


def test_the_expiry_in_the_store_counts_and_not_the_callers(subject: Subject) -> None:
    lost = lose(subject)
    altered = Lease(lost.job.id, lost.lease.token, subject.clock.now() + timedelta(days=1))

    assert isinstance(subject.settle(altered, Outcome.ack()), LeaseExpired)


def test_every_settlement_can_be_repeated_after_a_lost_reply(subject: Subject) -> None:
    for outcome in EVERY_OUTCOME:
        job_id = subject.insert(queue="repeats")
        [claim] = subject.reserve("repeats")
        first = subject.settle(claim, outcome)
        before = subject.everything(job_id)

        assert subject.settle(claim, outcome) == first
        assert subject.everything(job_id) == before
        subject.cancel(job_id)


def test_a_success_can_be_repeated_after_its_lease_expired(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())
    subject.advance(LEASE)

    assert subject.settle(claim, Outcome.ack()) == Settled(claim.job.id, Status.SUCCEEDED)


def test_a_retry_repeated_after_another_claim_is_answered_as_recorded(subject: Subject) -> None:
    subject.insert()
    first = subject.take()
    subject.settle(first, RETRY)
    subject.take()
    before = subject.everything(first.job.id)

    assert subject.settle(first, RETRY) == Settled(first.job.id, Status.FAILED)
    assert subject.everything(first.job.id) == before


def test_a_final_retry_repeated_after_a_requeue_is_answered_as_recorded(subject: Subject) -> None:
    subject.insert(max_attempts=1)
    claim = subject.take()
    subject.settle(claim, RETRY)
    subject.requeue(claim.job.id)

    assert subject.settle(claim, RETRY) == Settled(claim.job.id, Status.DEAD)
    assert subject.job(claim.job.id).status is Status.PENDING


def test_a_settled_attempt_cannot_be_settled_with_another_outcome(subject: Subject) -> None:
    for recorded in EVERY_OUTCOME:
        job_id = subject.insert(queue="otherwise")
        [claim] = subject.reserve("otherwise")
        subject.settle(claim, recorded)
        before = subject.everything(job_id)

        others = [outcome for outcome in EVERY_OUTCOME if outcome.event is not recorded.event]
        assert {type(subject.settle(claim, outcome)) for outcome in others} == {JobNotInflight}
        assert subject.everything(job_id) == before
        subject.cancel(job_id)


def test_a_death_repeated_after_a_lost_reply_is_one_death(subject: Subject) -> None:
    job_id = subject.insert(max_attempts=1)
    claim = subject.take()
    subject.settle(claim, RETRY)

    assert subject.settle(claim, RETRY) == Settled(job_id, Status.DEAD)
    assert (len(subject.outbox(job_id)), len(subject.attempts(job_id))) == (1, 1)


def test_a_repeated_snooze_decrements_the_attempt_count_once(subject: Subject) -> None:
    job_id = subject.bring(Status.FAILED)
    claim = subject.take()
    subject.settle(claim, Outcome.snooze(after=timedelta(0)))

    subject.settle(claim, Outcome.snooze(after=timedelta(0)))

    assert subject.job(job_id).attempt_count == 1


def test_a_lease_that_ended_is_not_reclaimed_under_its_own_token(subject: Subject) -> None:
    job_id, token = subject.insert(), new_token()
    subject.reserve(token=token)
    subject.advance(LEASE)

    reserved = subject.reserve(token=token)
    [claimed] = subject.claim(job_id, token=token)

    assert reserved == []
    assert isinstance(claimed, Refused)
    assert claimed.reason is RefusalReason.LEASED
    assert (subject.job(job_id).attempt_count, subject.attempts(job_id)) == (1, [])
    assert subject.take().job.id == job_id


def reserve_under_used_token(subject: Subject) -> tuple[Claim, Claim]:
    """Reserve two jobs, the first with a token that already has an attempt row for it, as a faulty caller does."""
    token = new_token()
    subject.insert()
    subject.reserve(token=token)
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=1)
    [twice] = subject.reserve(token=token)
    subject.insert()
    return twice, subject.take()


def test_outcomes_are_recorded_even_if_one_attempt_row_exists(subject: Subject) -> None:
    twice, other = reserve_under_used_token(subject)

    answers = subject.driver.settle([Settlement(each.lease, RETRY) for each in (twice, other)])

    assert answers == [Settled(each.job.id, Status.FAILED) for each in (twice, other)]
    assert [attempt.event for attempt in subject.attempts(twice.job.id)] == [Event.EXPIRE], (
        "the first row must not change"
    )
    assert [attempt.event for attempt in subject.attempts(other.job.id)] == [Event.RETRY]


def test_leases_are_expired_even_if_one_attempt_row_exists(subject: Subject) -> None:
    twice, other = reserve_under_used_token(subject)
    subject.advance(LEASE)

    expired = subject.driver.maintenance.expire(limit=10)

    assert {each.job_id: each.status for each in expired} == {each.job.id: Status.FAILED for each in (twice, other)}
    assert [len(subject.attempts(each.job.id)) for each in (twice, other)] == [1, 1]


def test_leases_are_reclaimed_even_if_one_attempt_row_exists(subject: Subject) -> None:
    twice, other = reserve_under_used_token(subject)
    subject.advance(LEASE)

    reclaimed = subject.reserve(limit=10)

    assert {claim.job.id for claim in reclaimed} == {twice.job.id, other.job.id}
    assert [attempt.event for attempt in subject.attempts(twice.job.id)] == [Event.EXPIRE], (
        "the first row must not change"
    )
    assert [attempt.event for attempt in subject.attempts(other.job.id)] == [Event.RECLAIM]


def test_messages_are_claimed_even_if_one_attempt_row_exists(subject: Subject) -> None:
    twice, other = reserve_under_used_token(subject)
    subject.advance(LEASE)

    claims = subject.claim(twice.job.id, other.job.id)

    assert [isinstance(claim, Claim) for claim in claims] == [True, True]
    assert [attempt.event for attempt in subject.attempts(twice.job.id)] == [Event.EXPIRE], (
        "the first row must not change"
    )
    assert [attempt.event for attempt in subject.attempts(other.job.id)] == [Event.RECLAIM]
