"""Canceling and rescheduling jobs that have not ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from taskharbor.core.errors import IllegalTransition, InvalidRequest, JobNotFound
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Job, Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.request import MAX_DELAY, MAX_SCHEDULED_FOR, MIN_SCHEDULED_FOR, PRIORITY_RANGE
from taskharbor.core.results import Cancellation, RefusalReason, Refused, Transitioned
from taskharbor.core.states import Event, Status
from taskharbor.testing.conformance.statement_counts import BATCH, count, fill
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, TICK, Subject

_MINUTE: Final = timedelta(minutes=1)
# The order in which `Subject.bring` can create them: it requires that no other job is due.
_WAITING: Final = (Status.ENQUEUED, Status.FAILED, Status.PENDING)
_FINAL: Final = (Status.SUCCEEDED, Status.DEAD, Status.CANCELED)


def test_a_waiting_job_is_canceled_at_once(subject: Subject) -> None:
    before = [subject.job(subject.bring(status)) for status in _WAITING]
    subject.advance(_MINUTE)

    answers = subject.driver.cancel([job.id for job in before])

    now = subject.clock.now()
    assert answers == [canceled(job) for job in before]
    assert [subject.job(job.id) for job in before] == [
        replace(job, status=Status.CANCELED, completed_at=now, dispatch_at=None) for job in before
    ]


def canceled(job: Job) -> Transitioned:
    """Return the answer to a cancel of a waiting job."""
    cancellation = Cancellation(job_id=job.id, type=job.type, queue=job.queue)
    return Transitioned(job.id, Status.CANCELED, cancellation)


def test_canceling_a_running_job_requests_the_cancel(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    before = subject.job(job_id)

    answer = subject.cancel(job_id)

    assert answer == Transitioned(job_id, Status.PROCESSING)
    assert subject.job(job_id) == replace(before, cancel_requested_at=subject.clock.now())


def test_a_second_request_to_cancel_keeps_the_time_of_the_first(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    subject.cancel(job_id)
    before = subject.everything(job_id)
    subject.advance(TICK)

    answer = subject.cancel(job_id)

    assert answer == Transitioned(job_id, Status.PROCESSING)
    assert subject.everything(job_id) == before


def test_a_requested_cancel_is_read_by_the_lease_of_its_job(subject: Subject) -> None:
    for _ in range(3):
        subject.insert()
    first, second, third = subject.reserve(limit=3)
    subject.driver.cancel([first.job.id, third.job.id])
    before = subject.everything(first.job.id)

    answers = subject.driver.cancel_requested([each.lease for each in (third, second, first)])

    assert answers == [True, False, True]
    assert subject.everything(first.job.id) == before


def test_no_requested_cancel_is_read_by_a_lease_that_is_not_valid(subject: Subject) -> None:
    subject.insert()
    subject.insert()
    ended, expired = subject.reserve(limit=2)
    subject.driver.cancel([ended.job.id, expired.job.id])
    subject.settle(ended, Outcome.ack())
    forged = Lease(expired.job.id, new_token(), expired.lease.expires_at)
    unknown = Lease(new_job_id(), new_token(), expired.lease.expires_at)
    before = subject.driver.cancel_requested([expired.lease])

    invalid = subject.driver.cancel_requested([ended.lease, forged, unknown])
    subject.advance(LEASE)

    assert before == [True]
    assert invalid + subject.driver.cancel_requested([expired.lease]) == [False] * 4


def test_the_cancels_of_a_batch_are_read_in_one_statement(subject: Subject) -> None:
    fill(subject)
    leases = [claim.lease for claim in subject.reserve(limit=BATCH)]

    assert count(subject, lambda: subject.driver.cancel_requested(leases)) <= 1  # a driver need not count reads


def test_a_job_that_ended_cannot_be_canceled(subject: Subject) -> None:
    jobs = {subject.bring(status): status for status in _FINAL}
    before = [subject.everything(job_id) for job_id in jobs]
    subject.advance(TICK)

    answers = subject.driver.cancel(list(jobs))

    for answer, (job_id, status) in zip(answers, jobs.items(), strict=True):
        assert isinstance(answer, IllegalTransition)
        assert (answer.job_id, answer.status, answer.event) == (job_id, status, Event.CANCEL)
    assert [subject.everything(job_id) for job_id in jobs] == before


def test_a_canceled_job_is_neither_dispatched_nor_claimed(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.cancel(job_id)
    subject.advance(OVERDUE_AFTER + TICK)

    answers = subject.dispatch(), subject.reserve(), subject.claim(job_id)

    assert answers == ([], [], [Refused(job_id, RefusalReason.FINAL, sends=1)])


def test_each_cancel_of_a_batch_is_answered_for_itself(subject: Subject) -> None:
    ended, first, unknown, second = subject.bring(Status.SUCCEEDED), subject.insert(), new_job_id(), subject.insert()

    answers = subject.driver.cancel([first, ended, unknown, second])

    assert [answers[0], answers[3]] == [canceled(subject.job(first)), canceled(subject.job(second))]
    assert [type(each) for each in answers[1:3]] == [IllegalTransition, JobNotFound]
    assert [subject.job(job_id).status for job_id in (first, second)] == [Status.CANCELED] * 2


def test_a_rescheduled_job_stays_in_its_state_and_its_message_is_void(subject: Subject) -> None:
    before = [subject.job(subject.bring(status, priority=7)) for status in _WAITING]
    then = subject.clock.now() + _MINUTE

    answers = subject.driver.reschedule([job.id for job in before], scheduled_for=then)

    assert answers == [Transitioned(job.id, job.status) for job in before]
    assert [subject.job(job.id) for job in before] == [
        replace(job, scheduled_for=then, dispatch_at=None) for job in before
    ]


def test_a_job_rescheduled_to_a_later_time_is_not_reserved_before(subject: Subject) -> None:
    job_id = subject.insert()
    subject.advance(_MINUTE)

    subject.driver.reschedule([job_id], delay=_MINUTE)

    subject.advance(_MINUTE - TICK)
    assert subject.reserve() == []
    subject.advance(TICK)
    assert subject.take().job.id == job_id


def test_a_job_rescheduled_to_now_is_reserved_now(subject: Subject) -> None:
    job_id = subject.insert(delay=_MINUTE)

    subject.driver.reschedule([job_id], delay=timedelta(0))

    assert subject.take().job.id == job_id


def test_a_new_priority_changes_the_order_and_not_the_time(subject: Subject) -> None:
    ordinary = subject.insert(priority=1)
    urgent = subject.insert(priority=2)
    before = subject.job(urgent)
    subject.advance(_MINUTE)

    subject.driver.reschedule([urgent], priority=0)

    assert subject.job(urgent) == replace(before, priority=0)
    assert [claim.job.id for claim in subject.reserve(limit=2)] == [urgent, ordinary]


def test_a_job_that_runs_or_ended_cannot_be_rescheduled(subject: Subject) -> None:
    jobs = {subject.bring(status): status for status in (*_FINAL, Status.PROCESSING)}
    before = [subject.everything(job_id) for job_id in jobs]

    answers = subject.driver.reschedule(list(jobs), delay=_MINUTE, priority=7)

    for answer, (job_id, status) in zip(answers, jobs.items(), strict=True):
        assert isinstance(answer, IllegalTransition)
        assert (answer.job_id, answer.status, answer.event) == (job_id, status, Event.RESCHEDULE)
    assert [subject.everything(job_id) for job_id in jobs] == before


def test_each_reschedule_of_a_batch_is_answered_for_itself(subject: Subject) -> None:
    ended, first, unknown, second = subject.bring(Status.SUCCEEDED), subject.insert(), new_job_id(), subject.insert()

    answers = subject.driver.reschedule([first, ended, unknown, second], priority=7)

    assert [answers[0], answers[3]] == [Transitioned(first, Status.PENDING), Transitioned(second, Status.PENDING)]
    assert [type(each) for each in answers[1:3]] == [IllegalTransition, JobNotFound]
    assert [subject.job(job_id).priority for job_id in (first, second)] == [7, 7]


def test_a_reschedule_to_what_no_job_can_have_is_refused(subject: Subject) -> None:
    job_id = subject.insert()
    before = subject.everything(job_id)
    times = ({"scheduled_for": MAX_SCHEDULED_FOR}, {"scheduled_for": MIN_SCHEDULED_FOR - TICK})
    delays = ({"delay": MAX_DELAY + TICK}, {"delay": -TICK})
    priorities = ({"priority": PRIORITY_RANGE.stop}, {"priority": PRIORITY_RANGE.start - 1})

    for change in (*times, *delays, *priorities):
        changes: dict[str, Any] = change
        with pytest.raises(InvalidRequest):
            subject.driver.reschedule([job_id], **changes)

    assert subject.everything(job_id) == before
