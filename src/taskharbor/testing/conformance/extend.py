"""Extending leases, and saving the progress of running jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import JobNotFound, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Lease, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Extended
from taskharbor.core.states import Status
from taskharbor.testing.conformance.statement_counts import BATCH, count, fill
from taskharbor.testing.conformance.subject import BOOM, LEASE, TICK

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject

HALF: Final = Progress(5, 10, 'parsing "ä.csv"')


def test_an_extended_lease_runs_from_now_under_the_same_token(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(timedelta(seconds=10))

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    end = subject.clock.now() + LEASE
    assert answer == Extended(Lease(job_id, claim.lease.token, end), cancel_requested=False)
    assert (subject.job(job_id).lease_expires_at, subject.job(job_id).lease_token) == (end, claim.lease.token)


def test_an_extended_lease_is_not_reclaimed_at_its_original_end(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(timedelta(seconds=10))
    subject.driver.extend([claim.lease], lease=LEASE)
    subject.advance(LEASE - TICK)

    assert subject.reserve() == []


def test_a_lease_can_be_extended_until_a_moment_before_its_end(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(LEASE - TICK)

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, Extended)


def test_an_expired_lease_cannot_be_extended_even_if_unclaimed(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(LEASE)

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, LeaseExpired)
    assert len(subject.reserve()) == 1


def test_a_reclaimed_lease_cannot_be_extended_by_its_former_holder(subject: Subject) -> None:
    subject.insert()
    lost = subject.take(worker="same")
    subject.advance(LEASE)
    subject.take(worker="same")

    [answer] = subject.driver.extend([lost.lease], lease=LEASE)

    assert isinstance(answer, LeaseMismatch)


def test_extending_reports_a_token_mismatch_before_an_expired_lease(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(LEASE)

    [answer] = subject.driver.extend([Lease(job_id, new_token(), claim.lease.expires_at)], lease=LEASE)

    assert isinstance(answer, LeaseMismatch)


def test_the_lease_of_a_settled_job_cannot_be_extended(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, JobNotInflight)


def test_the_lease_of_an_unknown_job_cannot_be_extended(subject: Subject) -> None:
    lease = Lease(new_job_id(), new_token(), subject.clock.now() + LEASE)

    [answer] = subject.driver.extend([lease], lease=LEASE)

    assert isinstance(answer, JobNotFound)


def test_a_heartbeat_reports_a_requested_cancel(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.cancel(job_id)

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, Extended)
    assert answer.cancel_requested


def test_an_extension_changes_nothing_but_the_end_of_the_lease(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    before = subject.job(job_id)
    subject.advance(timedelta(seconds=10))

    subject.driver.extend([claim.lease], lease=LEASE)

    after = subject.job(job_id)
    assert (after.attempt_count, after.processing_started_at) == (before.attempt_count, before.processing_started_at)
    assert subject.attempts(job_id) == []


def test_a_refused_extension_changes_nothing(subject: Subject) -> None:
    job_id = subject.insert()
    lost = subject.take()
    subject.advance(LEASE)
    subject.take()
    before = subject.everything(job_id)
    subject.advance(TICK)

    subject.driver.extend([lost.lease], lease=2 * LEASE)

    assert subject.everything(job_id) == before


def test_one_lost_lease_does_not_harm_the_others_of_a_heartbeat(subject: Subject) -> None:
    subject.insert()
    subject.insert()
    lost, held = subject.reserve(limit=2)
    subject.settle(lost, Outcome.ack())
    subject.advance(TICK)

    answers = subject.driver.extend([lost.lease, held.lease], lease=LEASE)

    assert [type(answer) for answer in answers] == [JobNotInflight, Extended]
    assert subject.job(held.job.id).lease_expires_at == subject.clock.now() + LEASE


def test_saved_progress_is_stored_and_changes_nothing_else(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    before = subject.job(job_id)
    subject.advance(LEASE - TICK)

    answers = subject.driver.save_progress([(claim.lease, HALF)])

    assert before.progress is None
    assert answers == [True]
    assert subject.job(job_id) == replace(before, progress=HALF)


def test_newer_progress_replaces_older_as_a_whole(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.driver.save_progress([(claim.lease, HALF)])

    subject.driver.save_progress([(claim.lease, Progress(2**40))])

    assert subject.job(job_id).progress == Progress(2**40, None, "")


def test_an_expired_lease_saves_no_progress_even_if_unclaimed(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    before = subject.everything(job_id)
    subject.advance(LEASE)

    assert subject.driver.save_progress([(claim.lease, HALF)]) == [False]
    assert subject.everything(job_id) == before


def test_a_former_holder_cannot_overwrite_its_successors_progress(subject: Subject) -> None:
    job_id = subject.insert()
    lost = subject.take(worker="same")
    subject.advance(LEASE)
    held = subject.take(worker="same")
    subject.driver.save_progress([(held.lease, HALF)])

    answers = subject.driver.save_progress([(lost.lease, Progress(9))])

    assert answers == [False]
    assert subject.job(job_id).progress == HALF


def test_no_progress_is_saved_for_an_ended_or_unknown_job(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())
    unknown = Lease(new_job_id(), new_token(), subject.clock.now() + LEASE)

    answers = subject.driver.save_progress([(claim.lease, HALF), (unknown, HALF)])

    assert answers == [False, False]
    assert subject.job(job_id).progress is None


def test_one_lost_lease_does_not_affect_the_progress_of_others(subject: Subject) -> None:
    subject.insert()
    subject.insert()
    lost, held = subject.reserve(limit=2)
    subject.settle(lost, Outcome.ack())

    answers = subject.driver.save_progress([(lost.lease, HALF), (held.lease, HALF)])

    assert answers == [False, True]
    assert subject.job(held.job.id).progress == HALF


def test_progress_outlasts_its_attempt_and_the_end_of_the_job(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.driver.save_progress([(claim.lease, HALF)])

    subject.settle(claim, Outcome.retry(after=timedelta(0), failure=BOOM))
    next_attempt = subject.take()
    subject.settle(next_attempt, Outcome.ack())

    assert next_attempt.job.progress == HALF
    assert (subject.job(job_id).status, subject.job(job_id).progress) == (Status.SUCCEEDED, HALF)


def test_a_new_life_begins_without_the_progress_of_the_old_one(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.driver.save_progress([(claim.lease, HALF)])
    subject.settle(claim, Outcome.fail("hopeless"))
    at_the_end = subject.job(job_id).progress

    subject.requeue(job_id)

    assert at_the_end == HALF
    assert subject.job(job_id).progress is None


def test_the_progress_of_a_batch_is_saved_in_one_statement(subject: Subject) -> None:
    fill(subject)
    notes = [(claim.lease, HALF) for claim in subject.reserve(limit=BATCH)]

    assert count(subject, lambda: subject.driver.save_progress(notes)) == 1
