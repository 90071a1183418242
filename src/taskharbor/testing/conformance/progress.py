"""How far a job is: told by who holds it, and kept for whoever asks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Lease, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.testing.conformance.statements import BATCH, count, fill
from taskharbor.testing.conformance.subject import BOOM, LEASE, TICK

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject

HALF: Final = Progress(5, 10, 'parsing "ä.csv"')


def test_noted_progress_is_kept_and_changes_nothing_else_of_the_job(subject: Subject) -> None:
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


def test_a_lease_that_is_over_notes_no_progress_even_if_nobody_took_the_job(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    before = subject.everything(job_id)
    subject.advance(LEASE)

    assert subject.driver.save_progress([(claim.lease, HALF)]) == [False]
    assert subject.everything(job_id) == before


def test_who_lost_a_job_does_not_speak_over_its_successor(subject: Subject) -> None:
    job_id = subject.insert()
    lost = subject.take(worker="same")
    subject.advance(LEASE)
    held = subject.take(worker="same")
    subject.driver.save_progress([(held.lease, HALF)])

    answers = subject.driver.save_progress([(lost.lease, Progress(9))])

    assert answers == [False]
    assert subject.job(job_id).progress == HALF


def test_no_progress_is_noted_of_a_job_that_ended_or_never_was(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())
    unknown = Lease(new_job_id(), new_token(), subject.clock.now() + LEASE)

    answers = subject.driver.save_progress([(claim.lease, HALF), (unknown, HALF)])

    assert answers == [False, False]
    assert subject.job(job_id).progress is None


def test_one_lost_lease_does_not_keep_the_progress_of_the_others_from_being_noted(subject: Subject) -> None:
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


def test_the_progress_of_a_batch_is_noted_in_one_statement(subject: Subject) -> None:
    fill(subject)
    notes = [(claim.lease, HALF) for claim in subject.reserve(limit=BATCH)]

    assert count(subject, lambda: subject.driver.save_progress(notes)) == 1
