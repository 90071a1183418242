"""Timelines of jobs, on every store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.errors import JobNotFound
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import AuditEntry
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Refusal
from taskharbor.core.states import Event, Status
from taskharbor.testing.conformance.subject import BOOM, LEASE
from taskharbor.timeline import read_timeline
from tests.conformance.test_drivers import memory, postgres, sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim
    from taskharbor.testing.conformance import Subject

SECOND: Final = timedelta(seconds=1)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    made = {"memory": memory, "sqlite": lambda: sqlite(tmp_path), "postgres": postgres}[request.param]()
    yield made
    made.driver.close()


def insert(subject: Subject, **fields: Any) -> JobId:
    return subject.insert(created_at=subject.clock.now(), **fields)


def audited(subject: Subject, action: str, job_id: JobId, **detail: str) -> None:
    entry = AuditEntry(id=new_token(), actor="ana", action=action, target=str(job_id), detail=detail)
    subject.driver.control.record_audit([entry])


def refused(subject: Subject, claim: Claim, event: Event = Event.ACK) -> None:
    refusal = Refusal(job_id=claim.job.id, token=claim.lease.token, event=event)
    subject.driver.maintenance.record_refusals([refusal])


def story(subject: Subject, job_id: JobId, *names: str) -> list[tuple[Any, ...]]:
    """Return these fields of each entry, with seconds since the first one in place of times."""
    entries = read_timeline(subject.driver.inspector, job_id)
    start = entries[0].at
    values = [
        tuple((entry.at - start).total_seconds() if name == "at" else getattr(entry, name) for name in names)
        for entry in entries
    ]
    assert all(entry.wait is None or entry.wait >= timedelta(0) for entry in entries)
    return values


def test_a_lost_lease_its_refused_settlement_and_the_new_attempt_are_story(subject: Subject) -> None:
    job_id = insert(subject)
    subject.advance(SECOND)
    lost = subject.take(worker="web-1")
    subject.advance(LEASE)
    subject.driver.maintenance.expire(limit=1)
    subject.advance(2 * SECOND)
    taken = subject.take(worker="web-2")
    subject.advance(SECOND)
    refused(subject, lost)
    subject.advance(SECOND)
    subject.settle(taken, Outcome.ack())

    assert story(subject, job_id, "at", "kind", "attempt", "worker", "outcome", "action", "wait", "run") == [
        (0, "created", None, None, None, None, None, None),
        (1, "attempt", 1, "web-1", "LOST", None, SECOND, LEASE),
        (33, "attempt", 2, "web-2", "SUCCEEDED", None, 2 * SECOND, 2 * SECOND),
        (34, "refused", 1, "web-1", None, "ack", None, None),
    ]


def test_a_refusal_before_the_lease_is_reclaimed_is_shown_with_its_attempt(subject: Subject) -> None:
    job_id = insert(subject)
    claim = subject.take(worker="web-1")
    subject.advance(LEASE)

    refused(subject, claim, Event.EXTEND)

    assert story(subject, job_id, "kind", "attempt", "worker", "action", "outcome")[1:] == [
        ("attempt", 1, "web-1", None, "RUNNING"),
        ("refused", 1, "web-1", "extend", None),
    ]


def test_a_death_and_a_requeue_with_an_edit_are_shown_with_who_did_it(subject: Subject) -> None:
    job_id = insert(subject, max_attempts=1)
    audited(subject, "jobs.enqueue", job_id, type="greet")
    subject.settle(subject.take(), Outcome.fail("hopeless", failure=BOOM))
    subject.advance(SECOND)
    subject.requeue(job_id)
    audited(subject, "jobs.requeue", job_id, why="fixed", payload="replaced")
    subject.advance(SECOND)
    subject.take(worker="web-2")
    subject.advance(3 * SECOND)

    assert story(subject, job_id, "at", "kind", "life", "by", "reason", "detail", "wait", "run") == [
        (0, "created", 1, "ana", None, {}, None, None),
        (0, "attempt", 1, None, None, {}, timedelta(0), timedelta(0)),
        (0, "died", 1, None, None, {}, None, None),
        (1, "requeued", 2, "ops", "fixed", {"payload": "replaced"}, None, None),
        (2, "attempt", 2, None, None, {}, SECOND, 3 * SECOND),
    ]
    [_, attempt, died, *_] = read_timeline(subject.driver.inspector, job_id)
    assert attempt.error == died.error == {"type": "ValueError", "message": "boom", "fingerprint": "f00d"}


def test_what_became_of_a_dead_letter_event_is_story(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD, created_at=subject.clock.now())
    subject.driver.maintenance.close_outbox(
        "no publisher", unseen_for=SECOND, older_than=timedelta(0), limit=1, job_ids=[job_id]
    )

    [*_, died] = read_timeline(subject.driver.inspector, job_id)

    assert (died.kind, died.detail["event_error"]) == ("died", "no publisher")
    assert set(died.detail) == {"event_error", "event_given_up_at"}


def test_a_requested_cancel_and_other_changes_are_story(subject: Subject) -> None:
    job_id = insert(subject)
    audited(subject, "jobs.reschedule", job_id, priority="-5")
    claim = subject.take()
    subject.advance(SECOND)
    subject.cancel(job_id)
    audited(subject, "jobs.cancel", job_id)
    subject.advance(SECOND)
    subject.settle(claim, Outcome.cancel("off"))

    assert story(subject, job_id, "at", "kind", "by", "action", "outcome", "detail") == [
        (0, "created", None, None, None, {}),
        (0, "attempt", None, None, "CANCELED", {}),
        (0, "changed", "ana", "jobs.reschedule", None, {"priority": "-5"}),
        (1, "cancel-requested", "ana", "jobs.cancel", None, {}),
    ]


def test_a_cancel_of_a_waiting_job_is_its_end_and_later_a_change(subject: Subject) -> None:
    job_id = insert(subject)
    subject.advance(SECOND)
    subject.cancel(job_id)
    audited(subject, "jobs.cancel", job_id)
    ended = story(subject, job_id, "at", "kind", "by")
    subject.advance(SECOND)

    subject.requeue(job_id)

    assert ended == [(0, "created", None), (1, "canceled", "ana")]
    assert story(subject, job_id, "at", "kind", "by", "life") == [
        (0, "created", None, 1),
        (1, "changed", "ana", 1),
        (2, "requeued", "ops", 2),
    ]


def test_the_audit_entry_of_one_requeue_is_not_that_of_another(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD, created_at=subject.clock.now())
    subject.requeue(job_id)
    subject.advance(timedelta(hours=1))
    subject.settle(subject.take(), Outcome.fail("hopeless"))
    subject.requeue(job_id)
    audited(subject, "jobs.requeue", job_id, payload="replaced")

    requeues = [detail for kind, detail in story(subject, job_id, "kind", "detail") if kind == "requeued"]

    assert requeues == [{}, {"payload": "replaced"}]


def test_the_newest_attempt_has_its_due_time(subject: Subject) -> None:
    due = subject.clock.now() + timedelta(hours=1)
    job_id = insert(subject, scheduled_for=due)
    subject.advance(timedelta(hours=1) + SECOND)
    subject.take()

    [_, attempt] = read_timeline(subject.driver.inspector, job_id)

    assert (attempt.due_at, attempt.wait) == (due, timedelta(hours=1) + SECOND)
    assert attempt.view()["wait_seconds"] == 3601.0


def test_a_job_that_does_not_exist_has_no_timeline(subject: Subject) -> None:
    with pytest.raises(JobNotFound):
        read_timeline(subject.driver.inspector, new_job_id())
