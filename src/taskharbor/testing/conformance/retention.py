"""Pruning finished jobs and purging dead letters: what is removed and what is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import JobNotFound
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Published, Unpublished
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import TICK, Subject, new_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId

RETENTION: Final = timedelta(days=30)
LATEST: Final = RETENTION + timedelta(days=1)


def test_no_job_is_removed_before_its_retention_ends(subject: Subject) -> None:
    job_ids = [subject.bring(status) for status in (Status.SUCCEEDED, Status.CANCELED, Status.DEAD)]
    publish(subject, job_ids[2])
    subject.advance(RETENTION - TICK)

    assert (prune(subject), purge(subject)) == (0, 0)
    assert len(subject.driver.inspector.get(job_ids)) == 3


def test_a_finished_job_is_removed_within_a_day_after_its_retention(subject: Subject) -> None:
    job_ids = [subject.bring(status) for status in (Status.SUCCEEDED, Status.CANCELED)]
    subject.advance(LATEST)

    assert prune(subject) == 2
    assert subject.driver.inspector.get(job_ids) == {}


def test_a_dead_letter_stays_until_it_is_purged(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    publish(subject, job_id)
    subject.advance(LATEST)
    assert prune(subject) == 0

    assert purge(subject) == 1
    assert subject.driver.inspector.get([job_id]) == {}


def test_with_job_ids_only_those_dead_letters_are_purged(subject: Subject) -> None:
    job_ids = [subject.bring(Status.DEAD) for _ in range(3)]
    for job_id in job_ids:
        publish(subject, job_id)
    subject.advance(LATEST)

    assert purge(subject, job_ids=job_ids[1:]) == 2
    assert purge(subject, job_ids=[]) == 0
    assert set(subject.driver.inspector.get(job_ids)) == {job_ids[0]}


def test_job_ids_do_not_override_the_conditions_of_a_purge(subject: Subject) -> None:
    unpublished, succeeded = subject.bring(Status.DEAD), subject.bring(Status.SUCCEEDED)
    subject.advance(LATEST)
    young = subject.bring(Status.DEAD)
    publish(subject, young)

    assert purge(subject, job_ids=[unpublished, succeeded, young]) == 0


def test_a_purge_by_job_ids_respects_the_limit(subject: Subject) -> None:
    job_ids = [subject.bring(Status.DEAD) for _ in range(3)]
    for job_id in job_ids:
        publish(subject, job_id)
    subject.advance(LATEST)

    counts = [purge(subject, job_ids=job_ids, limit=2) for _ in range(3)]

    assert counts == [2, 1, 0]


def test_purging_dead_letters_leaves_finished_jobs_alone(subject: Subject) -> None:
    job_id = subject.bring(Status.SUCCEEDED)
    subject.advance(LATEST)

    assert purge(subject) == 0
    assert set(subject.driver.inspector.get([job_id])) == {job_id}


def test_jobs_that_have_not_ended_stay_however_old_they_are(subject: Subject) -> None:
    job_ids = [subject.bring(status) for status in (Status.PROCESSING, Status.ENQUEUED, Status.FAILED, Status.PENDING)]
    subject.advance(10 * LATEST)

    assert (prune(subject), purge(subject)) == (0, 0)
    assert set(subject.driver.inspector.get(job_ids)) == set(job_ids)


def test_everything_is_removed_in_the_end_with_any_batch_size(subject: Subject) -> None:
    for _ in range(3):
        subject.bring(Status.SUCCEEDED)
    subject.advance(LATEST)

    removed = [prune(subject, limit=1) for _ in range(4)]

    assert (sum(removed), removed[-1]) == (3, 0)


def test_everything_is_removed_in_the_end_with_any_time_limit(subject: Subject) -> None:
    job_ids = [subject.bring(Status.SUCCEEDED, idempotency_key=key) for key in ("a", "b", None)]
    subject.advance(LATEST)

    calls = [subject.driver.maintenance.prune(older_than=RETENTION, limit=10, within=timedelta(0)) for _ in range(50)]

    assert sum(calls) == 3
    assert subject.driver.inspector.get(job_ids) == {}


def test_a_dead_job_is_kept_until_its_event_is_published(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.advance(LATEST)

    before = purge(subject)
    publish(subject, job_id)
    after = purge(subject)

    assert (before, after) == (0, 1)


def test_a_dead_job_is_kept_until_its_event_is_given_up(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    [row] = subject.outbox(job_id)
    subject.advance(LATEST)

    subject.driver.maintenance.settle_outbox([Unpublished(row.event.event_id, "no route", retry_in=LATEST)])
    while_failing = purge(subject)
    subject.driver.maintenance.settle_outbox([Unpublished(row.event.event_id, "no route", retry_in=None)])
    given_up = purge(subject)

    assert (while_failing, given_up) == (0, 1)


def test_a_succeeded_job_is_kept_while_an_earlier_event_is_unpublished(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.requeue(job_id)
    subject.settle(subject.take(), Outcome.ack())
    subject.advance(LATEST)

    before = prune(subject)
    publish(subject, job_id)
    after = prune(subject)

    assert (before, after) == (0, 1)


def test_the_history_and_the_events_of_a_job_go_with_it(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    publish(subject, job_id)
    subject.advance(LATEST)

    purge(subject)

    assert subject.everything(job_id) == ({}, [], [])


def test_the_idempotency_key_of_a_pruned_job_is_free_again(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED, idempotency_key="once")
    subject.advance(LATEST)
    prune(subject)
    job = new_job(idempotency_key="once")

    answers = subject.driver.insert([job])

    assert answers == [Enqueued(job.id, existed=False)]


def test_a_pruned_job_cannot_be_settled_again(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())
    subject.advance(LATEST)
    prune(subject)

    answer = subject.settle(claim, Outcome.ack())

    assert isinstance(answer, JobNotFound)


def test_a_pruned_job_stays_counted_in_the_minute_it_ended(subject: Subject) -> None:
    start = subject.clock.now() - LATEST
    subject.bring(Status.SUCCEEDED)
    before = subject.finished(since=start)
    subject.advance(LATEST)

    prune(subject)

    assert subject.finished(since=start) == before != []


def prune(subject: Subject, *, limit: int = 10) -> int:
    return subject.driver.maintenance.prune(older_than=RETENTION, limit=limit)


def purge(subject: Subject, *, job_ids: Sequence[JobId] | None = None, limit: int = 10) -> int:
    return subject.driver.maintenance.purge(older_than=RETENTION, limit=limit, job_ids=job_ids)


def publish(subject: Subject, job_id: JobId) -> None:
    subject.driver.maintenance.settle_outbox([Published(row.event.event_id) for row in subject.outbox(job_id)])
