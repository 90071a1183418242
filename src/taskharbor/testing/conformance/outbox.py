"""The outbox: claiming and settling the events of dead jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.model import DeadTaskEvent, OutboxRow
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Published, Settlement, Unpublished
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import LOCK, TICK, Subject

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId

_SECOND: Final = timedelta(seconds=1)
_YEAR: Final = timedelta(days=365)


def test_an_event_is_claimed_with_the_details_of_the_death(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    dead_at = subject.clock.now()
    subject.advance(_SECOND)

    rows = _claim_events(subject)

    event = DeadTaskEvent(
        job_id=job_id,
        life=1,
        type="greet",
        queue="default",
        worker_id="worker",
        attempt_count=1,
        max_attempts=3,
        error="ValueError: boom",
        dead_at=dead_at,
    )
    assert rows == [OutboxRow(event=event, next_at=subject.clock.now() + LOCK, attempts=1)]
    assert subject.outbox(job_id) == rows


def test_a_claimed_event_is_not_claimed_again_until_its_lock_ends(subject: Subject) -> None:
    subject.bring(Status.DEAD)
    [first] = _claim_events(subject)

    subject.advance(LOCK - TICK)
    locked = _claim_events(subject)
    subject.advance(TICK)
    free = _claim_events(subject)

    assert locked == []
    assert free == [replace(first, next_at=subject.clock.now() + LOCK, attempts=2)]


def test_pending_events_are_counted_up_to_a_limit_until_they_are_done(subject: Subject) -> None:
    for _ in range(4):
        subject.bring(Status.DEAD)
    count = subject.driver.inspector.outbox_pending
    assert (count(limit=10), count(limit=4), count(limit=3)) == (4, 4, 3)

    published, given_up, retried, _ = _claim_events(subject)
    subject.driver.maintenance.settle_outbox(
        [
            Published(published.event.event_id),
            Unpublished(given_up.event.event_id, "refused", None),
            Unpublished(retried.event.event_id, "away", _SECOND),
        ]
    )

    assert count(limit=10) == 2


def test_a_published_event_is_never_claimed_again(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    [row] = _claim_events(subject)
    subject.advance(_SECOND)

    answers = subject.driver.maintenance.settle_outbox([Published(row.event.event_id)])

    assert answers == [True]
    assert subject.outbox(job_id) == [replace(row, published_at=subject.clock.now())]
    subject.advance(_YEAR)
    assert _claim_events(subject) == []


def test_an_unpublished_event_is_claimed_again_after_the_given_time(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    [row] = _claim_events(subject)

    answers = subject.driver.maintenance.settle_outbox([Unpublished(row.event.event_id, "no route", retry_in=_SECOND)])

    failed = replace(row, next_at=subject.clock.now() + _SECOND, last_error="no route")
    assert answers == [True]
    assert subject.outbox(job_id) == [failed]
    subject.advance(_SECOND - TICK)
    assert _claim_events(subject) == []
    subject.advance(TICK)
    assert _claim_events(subject) == [replace(failed, next_at=subject.clock.now() + LOCK, attempts=2)]


def test_an_event_that_was_given_up_is_never_claimed_again(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    [row] = _claim_events(subject)
    subject.advance(_SECOND)

    answers = subject.driver.maintenance.settle_outbox([Unpublished(row.event.event_id, "no route", retry_in=None)])

    assert answers == [True]
    assert subject.outbox(job_id) == [replace(row, given_up_at=subject.clock.now(), last_error="no route")]
    subject.advance(_YEAR)
    assert _claim_events(subject) == []


def test_an_event_is_settled_once(subject: Subject) -> None:
    published, given_up = _make_two_dead(subject)
    first, second = _claim_events(subject)
    subject.driver.maintenance.settle_outbox(
        [Published(first.event.event_id), Unpublished(second.event.event_id, "no route", retry_in=None)]
    )
    before = subject.outbox(published), subject.outbox(given_up)
    subject.advance(_SECOND)

    answers = subject.driver.maintenance.settle_outbox(
        [Unpublished(first.event.event_id, "too late", retry_in=_SECOND), Published(second.event.event_id)]
    )

    assert answers == [False, False]
    assert (subject.outbox(published), subject.outbox(given_up)) == before


def test_each_event_of_a_batch_is_answered_for_itself(subject: Subject) -> None:
    failed, published = _make_two_dead(subject)
    first, second = _claim_events(subject)

    answers = subject.driver.maintenance.settle_outbox(
        [
            Unpublished(first.event.event_id, "no route", retry_in=_SECOND),
            Published(second.event.event_id),
            Published("unknown:1"),
        ]
    )

    assert answers == [True, True, False]
    assert [row.published_at for row in subject.outbox(failed)] == [None]
    assert [row.published_at for row in subject.outbox(published)] == [subject.clock.now()]


def test_events_are_claimed_in_order_of_death_up_to_the_limit(subject: Subject) -> None:
    first, second = _make_two_dead(subject)

    batches = [_claim_events(subject, limit=1) for _ in range(3)]

    assert [[row.event.job_id for row in batch] for batch in batches] == [[first], [second], []]


def test_events_of_two_lives_are_claimed_and_settled_one_by_one(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.advance(_SECOND)
    subject.requeue(job_id)
    subject.settle(subject.take(), Outcome.fail("hopeless"))

    [first], [second] = _claim_events(subject, limit=1), _claim_events(subject, limit=1)
    subject.driver.maintenance.settle_outbox([Published(first.event.event_id)])

    assert (first.event.life, second.event.life) == (1, 2)
    assert [row.published_at is None for row in subject.outbox(job_id)] == [False, True]


def _claim_events(subject: Subject, *, limit: int = 10) -> list[OutboxRow]:
    return subject.driver.maintenance.claim_outbox(limit=limit, lock=LOCK)


def _make_two_dead(subject: Subject) -> tuple[JobId, JobId]:
    """Make two dead jobs; the one that was inserted last dies first. Return them in order of death."""
    later, earlier = subject.insert(), subject.insert()
    leases = {claim.job.id: claim.lease for claim in subject.reserve(limit=2)}
    for job_id in (earlier, later):
        subject.driver.settle([Settlement(leases[job_id], Outcome.fail("hopeless"))])
        subject.advance(_SECOND)
    return earlier, later
