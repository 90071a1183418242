"""Dispatching due jobs to the delivery queue, and recording whether their messages were sent or declined."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.ids import new_job_id
from taskharbor.core.messages import SEQ_RANGE
from taskharbor.core.model import Claim
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Declined, Dispatch, Sent, Unsent
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import LEASE, LOCK, RESEND, TICK, Subject

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_SECOND: Final = timedelta(seconds=1)


def test_a_due_job_is_marked_enqueued_and_locked_for_sending(subject: Subject) -> None:
    job_id = subject.insert()
    before = subject.job(job_id)

    dispatches = subject.dispatch()

    until = subject.clock.now() + LOCK
    assert dispatches == [Dispatch(job_id, seq=1, resends=1, dispatch_at=until)]
    assert subject.job(job_id) == replace(before, status=Status.ENQUEUED, sends=1, resends=1, dispatch_at=until)


def test_a_job_is_dispatched_from_the_instant_it_is_due(subject: Subject) -> None:
    job_id = subject.insert(delay=_SECOND)

    subject.advance(_SECOND - TICK)
    too_early = subject.dispatch()
    subject.advance(TICK)
    in_time = subject.dispatch()

    assert too_early == []
    assert in_time == [Dispatch(job_id, 1, 1, subject.clock.now() + LOCK)]


def test_jobs_waiting_for_a_retry_are_dispatched(subject: Subject) -> None:
    sent = subject.bring(Status.ENQUEUED)
    subject.settle(_claimed(subject, sent), Outcome.retry(after=timedelta(0)))
    subject.advance(_SECOND)
    polled = subject.bring(Status.FAILED)

    dispatches = subject.dispatch()

    until = subject.clock.now() + LOCK
    assert dispatches == [Dispatch(sent, 2, 1, until), Dispatch(polled, 1, 1, until)]
    assert subject.job(polled).status is Status.ENQUEUED


def test_a_dispatched_job_is_sent_again_when_its_lock_ends(subject: Subject) -> None:
    job_id = subject.insert()
    subject.dispatch()

    subject.advance(LOCK - TICK)
    locked = subject.dispatch()
    subject.advance(TICK)
    free = subject.dispatch()

    assert locked == []
    assert free == [Dispatch(job_id, 2, 2, subject.clock.now() + LOCK)]


def test_nothing_of_a_paused_queue_is_dispatched_until_it_is_resumed(subject: Subject) -> None:
    sent = subject.insert()
    subject.dispatch()
    subject.advance(LOCK)
    new = subject.insert()
    subject.driver.control.pause(["default"], by="ops")

    while_paused = subject.dispatch()
    subject.driver.control.resume(["default"])
    after_that = subject.dispatch()

    assert while_paused == []
    assert {each.job_id for each in after_that} == {sent, new}


def test_a_job_with_exhausted_attempts_is_not_dispatched(subject: Subject) -> None:
    job_id = subject.insert()
    subject.exhaust(job_id)
    before = subject.everything(job_id)

    dispatches = subject.dispatch()

    assert dispatches == []
    assert subject.everything(job_id) == before


def test_a_job_with_exhausted_attempts_is_not_resent(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.exhaust(job_id)
    subject.advance(RESEND)
    before = subject.everything(job_id)

    dispatches = subject.dispatch()

    assert dispatches == []
    assert subject.everything(job_id) == before


def test_a_job_that_was_claimed_or_ended_is_not_dispatched(subject: Subject) -> None:
    for status in (Status.SUCCEEDED, Status.DEAD, Status.CANCELED, Status.PROCESSING):
        subject.bring(status)
    subject.advance(LEASE)

    dispatches = subject.dispatch()

    assert dispatches == []


def test_new_jobs_are_dispatched_only_while_fewer_than_the_bound_are_unclaimed(subject: Subject) -> None:
    for _ in range(3):
        subject.insert()

    first, second = subject.dispatch(unclaimed=2), subject.dispatch(unclaimed=2)

    assert (len(first), len(second)) == (2, 0)


def test_a_claim_allows_another_dispatch_under_the_bound(subject: Subject) -> None:
    for _ in range(2):
        subject.insert()
    [first] = subject.dispatch(unclaimed=1)
    subject.claim(first.job_id)

    [second] = subject.dispatch(unclaimed=1)

    assert second.job_id != first.job_id


def test_a_retry_that_is_not_due_does_not_count_as_unclaimed(subject: Subject) -> None:
    retried = subject.bring(Status.ENQUEUED)
    subject.settle(_claimed(subject, retried), Outcome.retry(after=_SECOND))
    new = subject.insert()

    dispatches = subject.dispatch(unclaimed=1)

    assert dispatches == [Dispatch(new, 1, 1, subject.clock.now() + LOCK)]


def test_a_declined_job_due_later_does_not_count_as_unclaimed(subject: Subject) -> None:
    later = subject.bring(Status.ENQUEUED)
    subject.driver.reschedule([later], delay=timedelta(days=1))
    subject.driver.record_dispatch([Declined(later, 1)])
    due = subject.insert()

    assert [dispatch.job_id for dispatch in subject.dispatch(unclaimed=1)] == [due]


def test_a_resend_ignores_the_bound_and_precedes_new_jobs(subject: Subject) -> None:
    sent = subject.insert()
    subject.dispatch()
    subject.insert()
    subject.advance(LOCK)

    dispatches = subject.dispatch(limit=1, unclaimed=1)

    assert dispatches == [Dispatch(sent, 2, 2, subject.clock.now() + LOCK)]


def test_more_urgent_jobs_are_dispatched_before_those_that_waited_longer(subject: Subject) -> None:
    ordinary = subject.insert(priority=1)
    subject.advance(_SECOND)
    urgent = subject.insert(priority=-1)

    dispatches = subject.dispatch()

    assert [each.job_id for each in dispatches] == [urgent, ordinary]


def test_at_equal_priority_the_job_dispatchable_first_is_dispatched_first(subject: Subject) -> None:
    now = subject.clock.now()
    newer = subject.insert(scheduled_for=now + RESEND + TICK)
    resend = subject.bring(Status.ENQUEUED)
    older = subject.insert(scheduled_for=now + RESEND - TICK)
    subject.advance(RESEND + TICK)

    dispatches = subject.dispatch()

    assert [each.job_id for each in dispatches] == [older, resend, newer]


def test_no_more_jobs_are_dispatched_than_asked_for(subject: Subject) -> None:
    inserted = {subject.insert() for _ in range(3)}

    first, second = subject.dispatch(limit=2), subject.dispatch(limit=2)

    assert (len(first), len(second)) == (2, 1)
    assert {each.job_id for each in first + second} == inserted


def test_each_queue_is_dispatched_separately_with_its_own_bound(subject: Subject) -> None:
    subject.bring(Status.ENQUEUED)
    subject.insert()
    mail = subject.insert(queue="mail")

    dispatches = subject.dispatch("mail", unclaimed=1)

    assert dispatches == [Dispatch(mail, 1, 1, subject.clock.now() + LOCK)]


def test_a_sent_message_is_not_repeated_before_the_given_time(subject: Subject) -> None:
    job_id = subject.insert()
    [dispatch] = subject.dispatch()
    before = subject.job(job_id)
    subject.advance(_SECOND)

    answers = subject.driver.record_dispatch([Sent(dispatch, RESEND)])

    now = subject.clock.now()
    assert answers == [True]
    assert subject.job(job_id) == replace(before, sent_at=now, dispatch_at=now + RESEND)


def test_an_unsent_message_leaves_its_job_to_be_dispatched_at_once(subject: Subject) -> None:
    job_id = subject.insert()
    [dispatch] = subject.dispatch()
    before = subject.job(job_id)
    subject.advance(_SECOND)

    answers = subject.driver.record_dispatch([Unsent(dispatch)])

    now = subject.clock.now()
    assert answers == [True]
    assert subject.job(job_id) == replace(before, resends=0, dispatch_at=now)
    assert subject.dispatch() == [Dispatch(job_id, 2, 1, now + LOCK)]


def test_a_reply_that_comes_after_the_claim_changes_nothing(subject: Subject) -> None:
    job_id = subject.insert()
    [dispatch] = subject.dispatch()
    subject.claim(job_id)
    before = subject.everything(job_id)

    answers = subject.driver.record_dispatch([Sent(dispatch, RESEND), Unsent(dispatch)])

    assert answers == [False, False]
    assert subject.everything(job_id) == before


def test_a_reply_that_comes_after_a_newer_dispatch_changes_nothing(subject: Subject) -> None:
    job_id = subject.insert()
    [older] = subject.dispatch()
    subject.driver.record_dispatch([Unsent(older)])
    [newer] = subject.dispatch()
    assert newer.dispatch_at == older.dispatch_at
    before = subject.everything(job_id)

    answers = subject.driver.record_dispatch([Sent(older, RESEND), Unsent(older)])

    assert answers == [False, False]
    assert subject.everything(job_id) == before


def test_a_reply_that_comes_after_a_reschedule_changes_nothing(subject: Subject) -> None:
    job_id = subject.insert()
    [dispatch] = subject.dispatch()
    subject.driver.reschedule([job_id], delay=_SECOND)
    before = subject.everything(job_id)

    answers = subject.driver.record_dispatch([Sent(dispatch, RESEND), Unsent(dispatch)])

    assert answers == [False, False]
    assert subject.everything(job_id) == before


def test_a_reply_that_is_repeated_changes_nothing(subject: Subject) -> None:
    job_id = subject.insert()
    dispatch = subject.send()
    before = subject.everything(job_id)
    subject.advance(_SECOND)

    answers = subject.driver.record_dispatch([Sent(dispatch, RESEND)])

    assert answers == [False]
    assert subject.everything(job_id) == before


def test_a_declined_message_leaves_its_job_to_be_dispatched_at_once(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    before = subject.job(job_id)
    subject.advance(_SECOND)

    answers = subject.driver.record_dispatch([Declined(job_id, seq=1)])

    now = subject.clock.now()
    assert answers == [True]
    assert subject.job(job_id) == replace(before, dispatch_at=now)
    assert subject.dispatch() == [Dispatch(job_id, 2, 2, now + LOCK)]


def test_declining_a_message_that_is_not_the_newest_changes_nothing(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.advance(RESEND)
    subject.dispatch()
    before = subject.everything(job_id)

    answers = subject.driver.record_dispatch([Declined(job_id, seq=1)])

    assert answers == [False]
    assert subject.everything(job_id) == before


def test_declining_a_message_with_the_highest_number_is_answered(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    before = subject.everything(job_id)

    answers = subject.driver.record_dispatch([Declined(job_id, seq=SEQ_RANGE[-1])])

    assert answers == [False]
    assert subject.everything(job_id) == before


def test_declining_the_message_of_a_job_that_was_claimed_changes_nothing(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.claim(job_id)
    before = subject.everything(job_id)

    answers = subject.driver.record_dispatch([Declined(job_id, seq=1)])

    assert answers == [False]
    assert subject.everything(job_id) == before


def test_each_reply_of_a_batch_is_answered_for_itself(subject: Subject) -> None:
    sent, unsent = subject.insert(), subject.insert()
    dispatches = {each.job_id: each for each in subject.dispatch()}
    now, unknown = subject.clock.now(), new_job_id()

    answers = subject.driver.record_dispatch(
        [
            Unsent(dispatches[unsent]),
            Sent(Dispatch(unknown, 1, 1, now + LOCK), RESEND),
            Sent(dispatches[sent], RESEND),
            Declined(unknown, seq=1),
        ]
    )

    assert answers == [True, False, True, False]
    assert (subject.job(unsent).dispatch_at, subject.job(sent).dispatch_at) == (now, now + RESEND)


def test_a_claim_ends_the_resending_but_not_the_count_of_messages(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    sent_at = subject.clock.now()
    subject.advance(_SECOND)

    subject.claim(job_id)

    job = subject.job(job_id)
    assert (job.dispatch_at, job.resends, job.sends, job.sent_at) == (None, 0, 1, sent_at)


def test_no_two_messages_of_a_job_ever_have_the_same_number(subject: Subject) -> None:
    job_id = subject.insert()

    [first] = subject.dispatch()
    subject.driver.record_dispatch([Unsent(first)])
    second = subject.send()
    subject.settle(_claimed(subject, job_id), Outcome.retry(after=timedelta(0)))
    third = subject.send()
    subject.cancel(job_id)
    subject.requeue(job_id)
    fourth = subject.send()

    assert [each.seq for each in (first, second, third, fourth)] == [1, 2, 3, 4]


def _claimed(subject: Subject, job_id: JobId) -> Claim:
    """Claim a job by its message."""
    [claim] = subject.claim(job_id)
    assert isinstance(claim, Claim)
    return claim
