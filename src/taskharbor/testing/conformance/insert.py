"""Inserting jobs: fields, idempotency keys, repeated inserts and joined transactions."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.errors import IdempotencyConflict
from taskharbor.core.job_batch import JobBatch
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import LONG_AGO, TICK, new_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import NewJob
    from taskharbor.testing.conformance.subject import Insert, Subject


def test_a_new_job_is_pending_and_no_attempt_is_counted(subject: Subject) -> None:
    job = subject.job(subject.insert())

    assert (job.status, job.attempt_count, job.life, job.sends, job.releases) == (Status.PENDING, 0, 1, 0, 0)
    assert (job.lease_token, job.lease_expires_at, job.completed_at, job.dispatch_at) == (None, None, None, None)
    assert (job.dead_at, job.dead_reason, job.last_error, job.failed_at) == (None, None, None, None)


def test_a_job_keeps_everything_it_was_given(subject: Subject) -> None:
    new = new_job(
        type="mail.send",
        queue="mail",
        payload=bytes(range(256)),
        priority=-7,
        timeout=timedelta(seconds=1, microseconds=5),
        max_attempts=9,
        idempotency_key="k",
        digest=b"d",
        metadata={"tenant": "äöü"},
    )

    subject.driver.insert([new])

    job = subject.job(new.id)
    assert (job.type, job.queue, job.payload, job.priority) == (new.type, new.queue, new.payload, new.priority)
    assert (job.timeout, job.max_attempts, job.created_at) == (new.timeout, 9, LONG_AGO)
    assert (job.idempotency_key, job.metadata) == ("k", {"tenant": "äöü"})


def test_a_job_without_a_time_is_due_at_the_stores_now(subject: Subject) -> None:
    assert subject.job(subject.insert()).scheduled_for == subject.clock.now()


def test_a_delay_counts_from_the_stores_now(subject: Subject) -> None:
    job = subject.job(subject.insert(delay=timedelta(hours=1)))

    assert job.scheduled_for == subject.clock.now() + timedelta(hours=1)


def test_a_given_time_is_kept_to_the_microsecond(subject: Subject) -> None:
    due = subject.clock.now() + timedelta(days=400) + TICK

    assert subject.job(subject.insert(scheduled_for=due)).scheduled_for == due


def test_every_job_of_a_batch_is_stored_and_answered_in_order(subject: Subject) -> None:
    batch = [new_job(), new_job(), new_job()]
    batch.reverse()

    answers = subject.driver.insert(batch)

    assert answers == [Enqueued(new.id, existed=False) for new in batch]
    assert set(subject.driver.inspector.get([new.id for new in batch])) == {new.id for new in batch}


def test_a_batch_of_like_jobs_is_stored_as_they_would_be_one_by_one(subject: Subject) -> None:
    model = new_job(
        type="mail.send",
        queue="mail",
        priority=-7,
        delay=timedelta(hours=1),
        timeout=timedelta(days=1, microseconds=5),
        max_attempts=9,
        metadata={"tenant": "äöü"},
    )
    batch = JobBatch(model, [new_job().id for _ in range(4)], [b"", b"7", b'"a"', bytes(range(256))])

    answers = subject.driver.insert(batch)
    repeated = subject.driver.insert(batch, repeat=True)

    assert answers == [Enqueued(job_id, existed=False) for job_id in batch.ids]
    assert repeated == [Enqueued(job_id, existed=True) for job_id in batch.ids]
    for job_id, payload in zip(batch.ids, batch.payloads, strict=True):
        alone = replace(model, id=new_job().id, payload=payload)
        subject.driver.insert([alone])
        assert replace(subject.job(job_id), id=alone.id) == subject.job(alone.id)


def test_a_job_inserted_again_after_a_lost_reply_is_one_job(subject: Subject) -> None:
    new = new_job()
    subject.driver.insert([new])

    answers = subject.driver.insert([new], repeat=True)

    assert answers == [Enqueued(new.id, existed=True)]
    assert len(subject.reserve(limit=10)) == 1


def test_a_repeated_insert_stores_the_jobs_that_were_not_stored_before(subject: Subject) -> None:
    stored, lost = new_job(), new_job(idempotency_key="k")
    subject.driver.insert([stored])

    answers = subject.driver.insert([stored, lost], repeat=True)

    assert answers == [Enqueued(stored.id, existed=True), Enqueued(lost.id, existed=False)]
    assert len(subject.reserve(limit=10)) == 2


def test_a_job_inserted_again_keeps_its_status(subject: Subject) -> None:
    new = new_job()
    subject.driver.insert([new])
    subject.settle(subject.take(), Outcome.ack())

    subject.driver.insert([new], repeat=True)

    assert subject.job(new.id).status is Status.SUCCEEDED


def test_a_job_with_a_key_inserted_again_by_its_own_id_existed(subject: Subject) -> None:
    new = new_job(idempotency_key="k")
    subject.driver.insert([new])

    assert subject.driver.insert([new], repeat=True) == [Enqueued(new.id, existed=True)]


def test_a_second_job_under_a_key_is_answered_with_the_first(subject: Subject) -> None:
    first = subject.insert(idempotency_key="k")

    answers = subject.driver.insert([new_job(idempotency_key="k")])

    assert answers == [Enqueued(first, existed=True)]


def test_the_first_job_under_a_key_is_never_changed(subject: Subject) -> None:
    first = subject.insert(idempotency_key="k", priority=1)
    before = subject.everything(first)

    subject.driver.insert([new_job(idempotency_key="k", priority=2, payload=b"[]", delay=timedelta(days=1))])

    assert subject.everything(first) == before


def test_a_second_job_under_a_key_is_not_stored(subject: Subject) -> None:
    subject.insert(idempotency_key="k")
    second = new_job(idempotency_key="k")

    subject.driver.insert([second])

    assert subject.driver.inspector.get([second.id]) == {}


def test_another_payload_under_a_key_is_refused_and_names_the_holder(subject: Subject) -> None:
    first = subject.insert(idempotency_key="k", digest=b"one")
    other = new_job(idempotency_key="k", digest=b"other")

    [answer] = subject.driver.insert([other])

    assert isinstance(answer, IdempotencyConflict)
    assert (answer.queue, answer.key, answer.holder) == ("default", "k", first)
    assert subject.driver.inspector.get([other.id]) == {}


def test_one_refused_job_does_not_affect_the_others_of_a_batch(subject: Subject) -> None:
    subject.insert(idempotency_key="k", digest=b"one")
    before, after = new_job(), new_job()

    answers = subject.driver.insert([before, new_job(idempotency_key="k", digest=b"other"), after])

    assert [type(answer) for answer in answers] == [Enqueued, IdempotencyConflict, Enqueued]
    assert set(subject.driver.inspector.get([before.id, after.id])) == {before.id, after.id}


def test_a_key_holds_between_the_jobs_of_one_batch(subject: Subject) -> None:
    first = new_job(idempotency_key="k", digest=b"one")
    same, other = new_job(idempotency_key="k", digest=b"one"), new_job(idempotency_key="k", digest=b"other")

    answers = subject.driver.insert([first, same, other])

    assert answers[:2] == [Enqueued(first.id, existed=False), Enqueued(first.id, existed=True)]
    assert isinstance(answers[2], IdempotencyConflict)


def test_the_same_key_in_another_queue_is_another_job(subject: Subject) -> None:
    subject.insert(queue="mail", idempotency_key="k", digest=b"one")
    second = new_job(queue="reports", idempotency_key="k", digest=b"other")

    assert subject.driver.insert([second]) == [Enqueued(second.id, existed=False)]


def test_another_key_in_the_same_queue_is_another_job(subject: Subject) -> None:
    first = subject.insert(idempotency_key="k")
    second = new_job(idempotency_key="K")

    assert subject.driver.insert([second]) == [Enqueued(second.id, existed=False)]
    again = subject.driver.insert([new_job(idempotency_key=key) for key in ("k", "K")])
    assert again == [Enqueued(first, existed=True), Enqueued(second.id, existed=True)]


def test_a_key_stays_in_use_after_its_job_ended(subject: Subject) -> None:
    first = subject.bring(Status.SUCCEEDED, idempotency_key="k")
    subject.advance(timedelta(days=30))

    assert subject.driver.insert([new_job(idempotency_key="k")]) == [Enqueued(first, existed=True)]


def test_many_threads_with_one_key_make_one_job(subject: Subject) -> None:
    rivals = [new_job(idempotency_key="k") for _ in range(32)]
    gate = threading.Barrier(len(rivals), timeout=30)

    def insert(new: NewJob) -> Enqueued | IdempotencyConflict:
        gate.wait()
        return subject.driver.insert([new])[0]

    with ThreadPoolExecutor(len(rivals)) as pool:
        answers = list(pool.map(insert, rivals))

    [winner] = subject.reserve(limit=64)
    assert answers.count(Enqueued(winner.job.id, existed=False)) == 1
    assert answers.count(Enqueued(winner.job.id, existed=True)) == len(rivals) - 1


class RollbackRequested(Exception):
    pass


@contextmanager
def rolled_back(subject: Subject) -> Iterator[Insert]:
    """Open a transaction of the user's own that is rolled back."""
    with suppress(RollbackRequested), subject.transaction() as insert:
        yield insert
        raise RollbackRequested


def test_a_rolled_back_insert_leaves_nothing(subject: Subject) -> None:
    new = new_job(idempotency_key="k")

    with rolled_back(subject) as insert:
        insert([new])

    assert subject.driver.inspector.get([new.id]) == {}
    assert subject.reserve() == []


def test_an_insert_committed_in_the_users_transaction_is_stored(subject: Subject) -> None:
    new = new_job()

    with subject.transaction() as insert:
        answers = insert([new])

    assert answers == [Enqueued(new.id, existed=False)]
    assert [claim.job.id for claim in subject.reserve()] == [new.id]


def test_a_rolled_back_insert_leaves_the_key_to_a_concurrent_one(subject: Subject) -> None:
    survivor = new_job(idempotency_key="k")
    inserted, roll_back = threading.Event(), threading.Event()

    def compete() -> None:
        with rolled_back(subject) as insert:
            insert([new_job(idempotency_key="k")])
            inserted.set()
            assert roll_back.wait(30)

    with ThreadPoolExecutor(2) as pool:
        competitor = pool.submit(compete)
        assert inserted.wait(30)
        answer = pool.submit(subject.driver.insert, [survivor])
        roll_back.set()
        competitor.result(30)

        assert answer.result(30) == [Enqueued(survivor.id, existed=False)]
    assert survivor.id in subject.driver.inspector.get([survivor.id])


def test_an_empty_batch_is_answered_by_an_empty_list(subject: Subject) -> None:
    assert subject.driver.insert([]) == []
