"""Deaths that maintenance returns, and closing dead-letter events that have no publisher."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.model import PUBLISHER_NOTED
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, Outcome
from taskharbor.core.results import Death, Published, Unpublished
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import LEASE, LOCK, TICK, Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId

UNSEEN_FOR: Final = timedelta(days=7)
AGE: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
PARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def close(
    subject: Subject, *, older_than: timedelta = timedelta(0), limit: int = 10, job_ids: Sequence[JobId] | None = None
) -> int:
    return subject.driver.maintenance.close_outbox(
        "no publisher", unseen_for=UNSEEN_FOR, older_than=older_than, limit=limit, job_ids=job_ids
    )


def is_closed(subject: Subject, job_id: JobId) -> bool:
    return all(row.is_done for row in subject.outbox(job_id))


def revived(subject: Subject, **fields: object) -> JobId:
    """Return a job that died, was requeued and succeeded."""
    job_id = subject.bring(Status.DEAD, **fields)
    subject.requeue(job_id)
    subject.settle(subject.take(), Outcome.ack())
    return job_id


def test_expire_returns_the_details_of_each_death(subject: Subject) -> None:
    first = subject.insert(queue="mail", type="send", metadata={"traceparent": PARENT})
    [claim] = subject.reserve("mail")
    subject.settle(claim, Outcome.fail("hopeless"))
    subject.requeue(first, budget=1)
    subject.reserve("mail")
    waiting = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)

    answers = {answer.job_id: answer.death for answer in subject.driver.maintenance.expire(limit=10)}

    death = Death(
        job_id=first,
        type="send",
        queue="mail",
        life=2,
        attempt_count=2,
        reason=ATTEMPTS_EXHAUSTED,
        worker_id="worker",
        traceparent=PARENT,
    )
    assert answers == {first: death, waiting: None}


def test_bury_returns_the_details_of_each_death(subject: Subject) -> None:
    job_id = subject.insert(queue="mail", type="send", metadata={"traceparent": PARENT})
    subject.exhaust(job_id)

    deaths = subject.driver.maintenance.bury(limit=10)

    job = subject.job(job_id)
    assert deaths == [
        Death(
            job_id=job_id,
            type="send",
            queue="mail",
            life=1,
            attempt_count=job.attempt_count,
            reason=ATTEMPTS_EXHAUSTED,
            worker_id=job.worker_id,
            traceparent=PARENT,
        )
    ]


def test_an_event_is_closed_with_a_reason_if_no_publisher_was_seen(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.advance(TICK)

    assert close(subject) == 1
    [row] = subject.outbox(job_id)
    assert (row.given_up_at, row.last_error) == (subject.clock.now(), "no publisher")
    assert (row.published_at, row.attempts) == (None, 0)
    assert close(subject) == 0


def test_no_event_is_closed_if_a_publisher_was_seen_recently(subject: Subject) -> None:
    subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)
    job_id = subject.bring(Status.DEAD)
    subject.advance(UNSEEN_FOR - TICK)

    assert close(subject) == 0
    assert not is_closed(subject, job_id)


def test_events_are_closed_after_the_publisher_was_unseen_for_too_long(subject: Subject) -> None:
    subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)
    job_id = subject.bring(Status.DEAD)
    subject.advance(UNSEEN_FOR)

    assert close(subject) == 1
    assert is_closed(subject, job_id)


def test_a_publisher_that_comes_back_is_seen_again(subject: Subject) -> None:
    subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)
    subject.advance(UNSEEN_FOR)
    subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)
    subject.bring(Status.DEAD)
    subject.advance(DAY)

    assert close(subject) == 0


def test_a_publisher_is_seen_when_it_claims_events_and_not_before(subject: Subject) -> None:
    subject.bring(Status.DEAD)
    close(subject)
    before = subject.driver.inspector.publisher_seen_at()

    subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)

    assert (before, subject.driver.inspector.publisher_seen_at()) == (None, subject.clock.now())


def test_a_publisher_is_recorded_once_per_minute_and_after_a_jump_back(subject: Subject) -> None:
    seen = []
    for passed in (timedelta(0), PUBLISHER_NOTED - TICK, TICK, -DAY):
        subject.advance(passed)
        subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)
        noted_at = subject.driver.inspector.publisher_seen_at()
        assert noted_at is not None
        seen.append(subject.clock.now() - noted_at)

    assert seen == [timedelta(0), PUBLISHER_NOTED - TICK, timedelta(0), timedelta(0)]


def test_an_event_that_a_publisher_holds_is_not_closed(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.driver.maintenance.claim_outbox(limit=1, lock=2 * UNSEEN_FOR)
    subject.advance(UNSEEN_FOR)

    assert close(subject) == 0
    assert not is_closed(subject, job_id)


def test_only_events_of_deaths_that_are_old_enough_are_closed(subject: Subject) -> None:
    old = subject.bring(Status.DEAD)
    subject.advance(TICK)
    young = subject.bring(Status.DEAD)
    subject.advance(AGE - TICK)

    assert close(subject, older_than=AGE) == 1
    assert (is_closed(subject, old), is_closed(subject, young)) == (True, False)


def test_events_are_closed_oldest_death_first_up_to_the_limit(subject: Subject) -> None:
    job_ids = []
    for _ in range(3):
        job_ids.append(subject.bring(Status.DEAD))
        subject.advance(TICK)

    assert close(subject, limit=2) == 2
    assert [is_closed(subject, job_id) for job_id in job_ids] == [True, True, False]


def test_with_job_ids_only_events_of_those_jobs_are_closed(subject: Subject) -> None:
    job_ids = [subject.bring(Status.DEAD) for _ in range(3)]
    subject.advance(TICK)

    assert close(subject, job_ids=job_ids[1:]) == 2
    assert close(subject, job_ids=[]) == 0
    assert [is_closed(subject, job_id) for job_id in job_ids] == [False, True, True]


def test_a_published_or_given_up_event_is_not_closed(subject: Subject) -> None:
    published, given_up = (subject.bring(Status.DEAD) for _ in range(2))
    [first], [second] = subject.outbox(published), subject.outbox(given_up)
    subject.driver.maintenance.settle_outbox(
        [Published(first.event.event_id), Unpublished(second.event.event_id, "no route", retry_in=None)]
    )
    before = subject.outbox(published), subject.outbox(given_up)
    subject.advance(TICK)

    assert close(subject) == 0
    assert close(subject, job_ids=[published, given_up]) == 0
    assert (subject.outbox(published), subject.outbox(given_up)) == before


def test_a_closed_event_cannot_be_claimed_or_settled(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    close(subject)
    [row] = subject.outbox(job_id)

    assert subject.driver.maintenance.settle_outbox([Published(row.event.event_id)]) == [False]
    assert subject.driver.maintenance.claim_outbox(limit=10, lock=LOCK) == []


def test_events_of_two_lives_of_a_job_are_closed_one_by_one(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.advance(TICK)
    subject.requeue(job_id)
    subject.settle(subject.take(), Outcome.fail("hopeless"))

    closed = close(subject, limit=1)

    assert closed == 1
    assert [row.is_done for row in subject.outbox(job_id)] == [True, False]


def test_a_job_that_died_once_is_pruned_after_its_event_is_closed(subject: Subject) -> None:
    job_id = revived(subject, idempotency_key="once")
    subject.advance(2 * DAY)
    before = subject.driver.maintenance.prune(older_than=DAY, limit=10)

    close(subject)

    assert (before, subject.driver.maintenance.prune(older_than=DAY, limit=10)) == (0, 1)
    assert subject.everything(job_id) == ({}, [], [])
    assert subject.driver.inspector.find_by_key("once") == []


def test_jobs_kept_by_an_unpublished_event_are_listed(subject: Subject) -> None:
    kept = sorted(revived(subject) for _ in range(2))
    published = revived(subject)
    subject.driver.maintenance.settle_outbox([Published(row.event.event_id) for row in subject.outbox(published)])
    given_up = revived(subject)
    subject.driver.maintenance.settle_outbox(
        [Unpublished(row.event.event_id, "no", None) for row in subject.outbox(given_up)]
    )
    subject.bring(Status.DEAD)
    subject.requeue(subject.bring(Status.DEAD), delay=30 * DAY)
    subject.bring(Status.SUCCEEDED)
    subject.advance(DAY)
    revived(subject)

    find = subject.driver.inspector.kept_by_events
    assert find(older_than=DAY, limit=10) == kept
    assert find(older_than=DAY, limit=1) == kept[:1]
    assert find(older_than=DAY + TICK, limit=10) == []


def test_canceled_jobs_kept_by_an_unpublished_event_are_listed(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.requeue(job_id)
    subject.cancel(job_id)

    assert subject.driver.inspector.kept_by_events(older_than=timedelta(0), limit=10) == [job_id]
