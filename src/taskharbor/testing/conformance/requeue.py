"""Requeueing dead and canceled jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from taskharbor.core.errors import IllegalTransition, InvalidRequest, JobNotFound
from taskharbor.core.failure import Failure
from taskharbor.core.ids import Token, new_job_id, new_token
from taskharbor.core.model import Attempt, AttemptOutcome, Claim, OutboxRow
from taskharbor.core.outcome import Outcome
from taskharbor.core.request import MAX_DELAY, MAX_SCHEDULED_FOR
from taskharbor.core.results import Enqueued, Settled, Transitioned
from taskharbor.core.states import Event, Status
from taskharbor.testing.conformance.subject import TICK, Subject, new_job

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_MINUTE: Final = timedelta(minutes=1)


def test_a_requeued_dead_job_is_pending_and_keeps_its_input(subject: Subject) -> None:
    job_id = subject.insert(idempotency_key="once", payload=b"[1]", priority=4, metadata={"tag": "blue"})
    subject.send()
    subject.settle(_claimed(subject, job_id), Outcome.release())
    last = _claimed(subject, job_id)
    subject.cancel(job_id)
    subject.settle(last, Outcome.fail("hopeless"))
    before = subject.job(job_id)
    subject.advance(_MINUTE)

    answer = subject.requeue(job_id, budget=5)

    assert answer == Transitioned(job_id, Status.PENDING)
    assert subject.job(job_id) == replace(
        before,
        status=Status.PENDING,
        life=2,
        max_attempts=6,
        scheduled_for=subject.clock.now(),
        completed_at=None,
        settled_token=None,
        sent_at=None,
        releases=0,
        dead_reason=None,
        dead_at=None,
        cancel_requested_at=None,
    )


def test_a_requeue_under_the_token_of_an_attempt_changes_nothing(subject: Subject) -> None:
    job_id, token = subject.insert(), new_token()
    [claim] = subject.reserve(token=token)
    subject.settle(claim, Outcome.fail("hopeless"))
    before = subject.everything(job_id)

    subject.requeue(job_id, token=token)

    assert subject.everything(job_id) == before


def test_a_requeued_canceled_job_is_pending(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.cancel(job_id)
    before = subject.job(job_id)

    answer = subject.requeue(job_id, budget=5)

    assert answer == Transitioned(job_id, Status.PENDING)
    assert subject.job(job_id) == replace(
        before,
        status=Status.PENDING,
        life=2,
        max_attempts=5,
        completed_at=None,
        sent_at=None,
        resends=0,
    )


def test_only_dead_and_canceled_jobs_can_be_requeued(subject: Subject) -> None:
    others = (Status.SUCCEEDED, Status.PROCESSING, Status.ENQUEUED, Status.FAILED, Status.PENDING)
    jobs = {subject.bring(status): status for status in others}
    before = [subject.everything(job_id) for job_id in jobs]

    answers = [subject.requeue(job_id) for job_id in jobs]

    for answer, (job_id, status) in zip(answers, jobs.items(), strict=True):
        assert isinstance(answer, IllegalTransition)
        assert (answer.job_id, answer.status, answer.event) == (job_id, status, Event.REQUEUE)
    assert [subject.everything(job_id) for job_id in jobs] == before


def test_a_requeued_job_has_exactly_the_attempts_of_its_budget(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.requeue(job_id, budget=2)

    answers = [subject.settle(subject.take(), Outcome.retry(after=timedelta(0))) for _ in range(2)]

    assert answers == [Settled(job_id, Status.FAILED), Settled(job_id, Status.DEAD)]
    assert subject.job(job_id).attempt_count == 3


def test_a_job_requeued_without_a_budget_gets_its_own_attempts_again(subject: Subject) -> None:
    job_id, lives = subject.insert(max_attempts=2), []
    _exhaust(subject, life=1)

    for life in (2, 3, 4):
        subject.requeue(job_id, budget=None, token=Token(UUID(int=1_000 + life)))
        lives.append(_exhaust(subject, life=life))

    assert lives == [[Status.FAILED, Status.DEAD]] * 3
    assert (subject.job(job_id).attempt_count, subject.job(job_id).max_attempts) == (8, 8)


def test_attempts_that_a_job_did_not_need_are_not_added_to_its_next_life(subject: Subject) -> None:
    failed, canceled = subject.insert(max_attempts=3, queue="mail"), subject.insert(max_attempts=4)
    [claim] = subject.reserve("mail")
    subject.settle(claim, Outcome.fail("hopeless"))
    subject.cancel(canceled)

    answers = subject.driver.requeue([failed, canceled], token=new_token(), by="ann", reason="fixed")

    assert answers == [Transitioned(failed, Status.PENDING), Transitioned(canceled, Status.PENDING)]
    assert [subject.job(job_id).max_attempts for job_id in (failed, canceled)] == [1 + 3, 4]


def test_the_budget_of_a_requeue_is_the_default_of_the_next(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.requeue(job_id, budget=2)
    subject.settle(subject.take(), Outcome.fail("hopeless"))

    subject.requeue(job_id, budget=None)

    assert (subject.job(job_id).attempt_count, subject.job(job_id).max_attempts) == (2, 2 + 2)


def test_a_requeue_with_a_budget_of_zero_is_refused(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    before = subject.everything(job_id)

    with pytest.raises(InvalidRequest):
        subject.requeue(job_id, budget=0)

    assert subject.everything(job_id) == before


def test_a_requeue_to_a_time_that_no_job_can_have_is_refused(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    before = subject.everything(job_id)
    times: list[dict[str, Any]] = [{"delay": MAX_DELAY + TICK}, {"scheduled_for": MAX_SCHEDULED_FOR}]

    for when in times:
        with pytest.raises(InvalidRequest):
            subject.requeue(job_id, **when)

    assert subject.everything(job_id) == before


def test_a_requeued_job_still_holds_its_idempotency_key(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD, idempotency_key="once")
    subject.requeue(job_id)

    answers = subject.driver.insert([new_job(idempotency_key="once")])

    assert answers == [Enqueued(job_id, existed=True)]


def test_a_job_requeued_with_a_new_payload_runs_with_it(subject: Subject) -> None:
    job_id, token = subject.bring(Status.DEAD, payload=b"[1]"), new_token()

    answers = [subject.requeue(job_id, token=token, payload=b"[2]") for _ in range(2)]

    assert answers == [Transitioned(job_id, Status.PENDING)] * 2
    assert subject.take().job.payload == b"[2]"


def test_a_payload_may_be_replaced_by_an_empty_one(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD, payload=b"[1]")

    subject.requeue(job_id, payload=b"")

    assert subject.take().job.payload == b""


def test_a_requeue_that_is_refused_leaves_the_payload(subject: Subject) -> None:
    running, elsewhere = subject.bring(Status.PROCESSING), subject.bring(Status.CANCELED, queue="mail")
    before = [subject.everything(job_id) for job_id in (running, elsewhere)]

    subject.requeue(running, payload=b"[2]")
    subject.requeue(elsewhere, queue="default", payload=b"[2]")

    assert [subject.everything(job_id) for job_id in (running, elsewhere)] == before


def test_a_requeue_repeated_with_another_payload_changes_nothing_any_more(subject: Subject) -> None:
    job_id, token = subject.bring(Status.DEAD), new_token()
    subject.requeue(job_id, token=token, payload=b"[2]")
    subject.settle(subject.take(), Outcome.fail("hopeless"))
    before = subject.everything(job_id)

    answer = subject.requeue(job_id, token=token, payload=b"[3]")

    assert answer == Transitioned(job_id, Status.PENDING)
    assert subject.everything(job_id) == before


def test_a_job_with_a_new_payload_still_matches_its_original_request(subject: Subject) -> None:
    first = {"idempotency_key": "once", "payload": b"[1]", "digest": b"one"}
    job_id = subject.bring(Status.DEAD, **first)
    subject.requeue(job_id, payload=b"[2]")

    answers = subject.driver.insert([new_job(**first)])

    assert answers == [Enqueued(job_id, existed=True)]
    assert subject.job(job_id).payload == b"[2]"


def test_a_new_payload_for_more_than_one_job_is_refused(subject: Subject) -> None:
    jobs = [subject.bring(Status.DEAD) for _ in range(2)]
    before = [subject.everything(job_id) for job_id in jobs]

    with pytest.raises(InvalidRequest, match="payload is given for 2 jobs"):
        subject.driver.requeue(jobs, token=new_token(), budget=1, by="ann", reason="fixed", payload=b"[2]")

    assert [subject.everything(job_id) for job_id in jobs] == before


def test_a_requeue_records_actor_and_reason_in_the_history(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    history = subject.attempts(job_id)
    subject.advance(_MINUTE)
    token = new_token()

    subject.driver.requeue([job_id], token=token, budget=3, by="ann", reason="the disk is back")

    requeue = Attempt(
        job_id=job_id,
        token=token,
        life=1,
        attempt=1,
        worker_id="ann",
        started_at=None,
        ended_at=subject.clock.now(),
        event=Event.REQUEUE,
        status=Status.PENDING,
        outcome=AttemptOutcome.REQUEUED,
        failure=Failure(message="the disk is back"),
    )
    assert subject.attempts(job_id) == [*history, requeue]


def test_a_job_requeued_for_later_is_due_then(subject: Subject) -> None:
    at_a_time, after_a_delay = subject.bring(Status.DEAD), subject.bring(Status.DEAD)
    subject.advance(_MINUTE)
    then = subject.clock.now() + timedelta(hours=1)

    subject.requeue(at_a_time, scheduled_for=then)
    subject.requeue(after_a_delay, delay=timedelta(hours=1))

    assert [subject.job(job_id).scheduled_for for job_id in (at_a_time, after_a_delay)] == [then, then]
    assert subject.reserve() == []


def test_a_job_of_another_queue_than_the_given_one_is_not_requeued(subject: Subject) -> None:
    other, right = subject.bring(Status.CANCELED), subject.bring(Status.CANCELED, queue="mail")
    before = subject.everything(other)

    missed, answer = subject.requeue(other, queue="mail"), subject.requeue(right, queue="mail")

    assert isinstance(missed, JobNotFound)
    assert subject.everything(other) == before
    assert answer == Transitioned(right, Status.PENDING)


def test_a_requeue_repeated_after_a_lost_reply_is_answered_as_before(subject: Subject) -> None:
    job_id, token = subject.bring(Status.DEAD), new_token()
    subject.requeue(job_id, token=token)
    before = subject.everything(job_id)

    answer = subject.requeue(job_id, token=token)

    assert answer == Transitioned(job_id, Status.PENDING)
    assert subject.everything(job_id) == before


def test_a_requeue_repeated_for_another_queue_finds_nothing(subject: Subject) -> None:
    job_id, token = subject.bring(Status.DEAD), new_token()
    subject.requeue(job_id, token=token)

    answer = subject.requeue(job_id, token=token, queue="mail")

    assert isinstance(answer, JobNotFound)


def test_a_requeue_repeated_after_the_next_death_changes_nothing(subject: Subject) -> None:
    job_id, token = subject.bring(Status.DEAD), new_token()
    subject.requeue(job_id, token=token)
    subject.settle(subject.take(), Outcome.fail("hopeless"))
    before = subject.everything(job_id)

    answer = subject.requeue(job_id, token=token)

    assert answer == Transitioned(job_id, Status.PENDING)
    assert subject.everything(job_id) == before


def test_a_second_requeue_of_a_job_is_refused(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.requeue(job_id)
    before = subject.everything(job_id)

    answer = subject.requeue(job_id)

    assert isinstance(answer, IllegalTransition)
    assert subject.everything(job_id) == before


def test_a_job_that_dies_twice_has_one_event_for_each_life(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    [first] = subject.outbox(job_id)
    subject.requeue(job_id)
    subject.advance(_MINUTE)

    subject.settle(subject.take(worker="another"), Outcome.fail("still hopeless"))

    now = subject.clock.now()
    second = replace(
        first.event,
        life=2,
        worker_id="another",
        attempt_count=2,
        max_attempts=4,
        error="still hopeless",
        dead_at=now,
    )
    assert subject.outbox(job_id) == [first, OutboxRow(event=second, next_at=now)]


def test_a_requeued_job_leaves_the_delivery_queue(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.settle(_claimed(subject, job_id), Outcome.fail("hopeless"))
    subject.requeue(job_id)

    answer = subject.settle(subject.take(), Outcome.retry(after=_MINUTE))

    assert answer == Settled(job_id, Status.FAILED)


def test_each_requeue_of_a_batch_is_answered_for_itself(subject: Subject) -> None:
    dead, ended, canceled = map(subject.bring, (Status.DEAD, Status.SUCCEEDED, Status.CANCELED))

    answers = subject.driver.requeue(
        [dead, ended, new_job_id(), canceled], token=new_token(), budget=1, by="ann", reason="fixed"
    )

    assert [answers[0], answers[3]] == [Transitioned(dead, Status.PENDING), Transitioned(canceled, Status.PENDING)]
    assert [type(each) for each in answers[1:3]] == [IllegalTransition, JobNotFound]
    assert [subject.job(job_id).life for job_id in (dead, canceled)] == [2, 2]


def _exhaust(subject: Subject, *, life: int) -> list[Status]:
    """Fail the one due job until it is dead, and return its status after each attempt.

    Its tokens are smaller than those of requeues, which grow: a store that confuses them finds the wrong one first.
    """
    statuses: list[Status] = []
    while Status.DEAD not in statuses:
        assert len(statuses) < 10, statuses
        [claim] = subject.reserve(token=Token(UUID(int=100 * life + len(statuses))))
        answer = subject.settle(claim, Outcome.retry(after=timedelta(0)))
        assert isinstance(answer, Settled)
        statuses.append(answer.status)
    return statuses


def _claimed(subject: Subject, job_id: JobId) -> Claim:
    """Claim a job by its message."""
    [claim] = subject.claim(job_id)
    assert isinstance(claim, Claim)
    return claim
