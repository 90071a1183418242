"""What retention removes, and what must stay."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.answers import Inserted, Published, Unpublished
from taskharbor.core.errors import JobNotFound, UsageError
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import FINAL, Status
from taskharbor.testing.conformance.subject import MOMENT, Subject, new_job

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_DAY: Final = timedelta(days=1)


def test_a_job_is_pruned_from_the_instant_it_ended_so_long_ago(subject: Subject) -> None:
    job_id = subject.bring(Status.SUCCEEDED)

    subject.advance(_DAY - MOMENT)
    too_early = _prune(subject), set(subject.driver.inspector.get([job_id]))
    subject.advance(MOMENT)
    in_time = _prune(subject), set(subject.driver.inspector.get([job_id]))

    assert too_early == (0, {job_id})
    assert in_time == (1, set())


def test_only_jobs_in_the_asked_states_are_pruned(subject: Subject) -> None:
    kept, pruned = subject.bring(Status.SUCCEEDED), subject.bring(Status.CANCELED)
    subject.advance(_DAY)

    count = _prune(subject, Status.CANCELED)

    assert count == 1
    assert subject.driver.inspector.get([kept, pruned]).keys() == {kept}


def test_jobs_that_have_not_ended_cannot_be_pruned(subject: Subject) -> None:
    job_id = subject.bring(Status.SUCCEEDED)
    subject.advance(_DAY)
    before = subject.everything(job_id)

    for status in set(Status) - FINAL:
        with pytest.raises(UsageError):
            _prune(subject, Status.SUCCEEDED, status)

    assert subject.everything(job_id) == before


def test_no_more_jobs_are_pruned_than_asked_for(subject: Subject) -> None:
    for _ in range(3):
        subject.bring(Status.SUCCEEDED)
    subject.advance(_DAY)

    counts = [_prune(subject, limit=2) for _ in range(3)]

    assert counts == [2, 1, 0]


def test_a_dead_job_is_kept_until_its_event_is_published(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.advance(_DAY)

    before = _prune(subject)
    _publish(subject, job_id)
    after = _prune(subject)

    assert (before, after) == (0, 1)


def test_a_dead_job_is_kept_until_its_event_is_given_up(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    [row] = subject.outbox(job_id)
    subject.advance(_DAY)

    subject.driver.upkeep.outbox_done([Unpublished(row.event.event_id, "no route", again_in=_DAY)])
    while_failing = _prune(subject)
    subject.driver.upkeep.outbox_done([Unpublished(row.event.event_id, "no route", again_in=None)])
    given_up = _prune(subject)

    assert (while_failing, given_up) == (0, 1)


def test_a_job_that_succeeded_is_kept_while_the_event_of_an_earlier_death_is_unpublished(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.requeue(job_id)
    subject.settle(subject.take(), Outcome.ack())
    subject.advance(_DAY)

    before = _prune(subject)
    _publish(subject, job_id)
    after = _prune(subject)

    assert (before, after) == (0, 1)


def test_the_history_and_the_events_of_a_job_go_with_it(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    _publish(subject, job_id)
    subject.advance(_DAY)

    _prune(subject)

    assert subject.everything(job_id) == ({}, [], [])


def test_the_idempotency_key_of_a_pruned_job_is_free_again(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED, idempotency_key="once")
    subject.advance(_DAY)
    _prune(subject)
    job = new_job(idempotency_key="once")

    answers = subject.driver.insert([job])

    assert answers == [Inserted(job.id, existed=False)]


def test_a_pruned_job_cannot_be_settled_again(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())
    subject.advance(_DAY)
    _prune(subject)

    answer = subject.settle(claim, Outcome.ack())

    assert isinstance(answer, JobNotFound)


def test_a_pruned_job_stays_counted_in_the_minute_it_ended(subject: Subject) -> None:
    start = subject.clock.now() - _DAY
    subject.bring(Status.SUCCEEDED)
    before = subject.driver.inspector.finished(since=start)
    subject.advance(_DAY)

    _prune(subject)

    assert subject.driver.inspector.finished(since=start) == before != []


def _prune(subject: Subject, *statuses: Status, limit: int = 10) -> int:
    """Remove jobs that ended a day ago: in these states, or else in any."""
    return subject.driver.upkeep.prune(statuses=statuses or FINAL, older_than=_DAY, limit=limit)


def _publish(subject: Subject, job_id: JobId) -> None:
    subject.driver.upkeep.outbox_done([Published(row.event.event_id) for row in subject.outbox(job_id)])
