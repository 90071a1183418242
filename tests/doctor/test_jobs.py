"""Each check of a store's jobs, queues, workers and schedules reports a problem until it is solved."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor.core.errors import StoreRefused, StoreUnavailable
from taskharbor.core.messages import DeliveryNote, DeliveryRole
from taskharbor.core.model import Schedule, WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Published
from taskharbor.core.states import Status
from taskharbor.doctor import Finding, Level, jobs
from taskharbor.doctor.jobs import OVERDUE_AFTER, PUBLISHER_LATE_AFTER, check_jobs
from taskharbor.testing.conformance.subject import LEASE, LOCK, Subject
from tests.conformance import test_drivers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.base import Inspector

KEEP: Final = timedelta(days=7)
A_MOMENT: Final = timedelta(seconds=1)


@pytest.fixture
def subject() -> Iterator[Subject]:
    made = test_drivers.memory()
    yield made
    made.driver.close()


def findings(subject: Subject, check: str) -> list[Finding]:
    found = check_jobs(subject.driver.inspector, keep=KEEP, clock=lambda: subject.clock.now().timestamp())
    return [each for each in found if each.check == check]


def problem(subject: Subject, check: str) -> Finding:
    [found] = findings(subject, check)
    assert found.level is not Level.OK
    assert found.remedy
    return found


def is_ok(subject: Subject, check: str) -> bool:
    return [each.level for each in findings(subject, check)] == [Level.OK]


def record_worker(subject: Subject, **fields: Any) -> None:
    defaults: dict[str, Any] = {
        "id": "w1",
        "host": "box",
        "pid": 7,
        "queues": ("default",),
        "types": ("greet",),
        "concurrency": 4,
        "started_at": subject.clock.now(),
    }
    subject.driver.maintenance.record_worker(WorkerRecord(**defaults | fields))


def test_an_empty_store_has_no_problem(subject: Subject) -> None:
    found = list(check_jobs(subject.driver.inspector, keep=KEEP, clock=lambda: subject.clock.now().timestamp()))

    assert {each.level for each in found} == {Level.OK}
    assert len({each.check for each in found}) == len(found) == 10


@pytest.mark.parametrize(("skew", "side"), [(3, "behind"), (-3, "ahead of")])
def test_a_skewed_clock_is_reported(subject: Subject, skew: int, side: str) -> None:
    local = subject.clock.now().timestamp() + skew

    [found, *_] = check_jobs(subject.driver.inspector, keep=KEEP, clock=lambda: local)

    assert (found.level, found.text) == (Level.WARN, f"the store's clock is 3 s {side} the clock of this machine")


def test_a_slow_reply_is_no_skew(subject: Subject) -> None:
    now = subject.clock.now().timestamp()
    times = iter([now - 6, now + 2])

    [found, *_] = check_jobs(subject.driver.inspector, keep=KEEP, clock=lambda: next(times))

    assert found.level is Level.OK


def test_a_queue_without_a_worker_is_reported_until_one_lives(subject: Subject) -> None:
    subject.insert()
    subject.driver.maintenance.roll_up(keep=KEEP)
    assert is_ok(subject, "queues")

    subject.advance(OVERDUE_AFTER)
    found = problem(subject, "queues")
    assert found.level is Level.FAIL
    assert found.text.startswith("queue 'default' has 1 waiting job and no live worker; the oldest has been due for ")

    record_worker(subject)
    assert is_ok(subject, "queues")
    subject.advance(timedelta(minutes=1))  # it has died
    problem(subject, "queues")


def test_a_paused_queue_with_due_jobs_is_reported_until_it_is_resumed(subject: Subject) -> None:
    subject.insert()
    record_worker(subject)
    subject.driver.control.pause(["default"], by="ada")
    subject.driver.maintenance.roll_up(keep=KEEP)
    subject.advance(OVERDUE_AFTER)
    record_worker(subject)

    assert problem(subject, "queues").text.startswith(
        "queue 'default' was paused by ada; it has 1 waiting job, the oldest"
    )

    subject.driver.control.resume(["default"])
    assert is_ok(subject, "queues")


def test_types_that_no_worker_handles_are_named_until_one_does(subject: Subject) -> None:
    subject.insert(type="resize")
    subject.insert(type="later", delay=timedelta(hours=1))
    subject.driver.maintenance.roll_up(keep=KEEP)
    record_worker(subject)

    assert problem(subject, "types").text == "no live worker of queue 'default' handles 'resize'"

    record_worker(subject, id="w2", types=("resize",))
    assert is_ok(subject, "types")


def test_an_unhandled_type_at_the_head_is_found_behind_newer_jobs(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SAMPLE", 2)
    subject.insert(type="resize")
    for _ in range(5):
        subject.insert(type="greet", delay=timedelta(hours=1))
    subject.driver.maintenance.roll_up(keep=KEEP)
    record_worker(subject)

    assert problem(subject, "types").text == "no live worker of queue 'default' handles 'resize'"


def test_an_unhandled_type_of_low_priority_is_found_among_new_jobs(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SAMPLE", 2)
    for _ in range(5):
        subject.insert(type="greet")
    subject.insert(type="resize", priority=9)
    subject.driver.maintenance.roll_up(keep=KEEP)
    record_worker(subject)

    assert problem(subject, "types").text == "no live worker of queue 'default' handles 'resize'"


def test_expired_leases_that_are_not_ended_are_reported(subject: Subject) -> None:
    subject.bring(Status.PROCESSING)
    subject.advance(LEASE + OVERDUE_AFTER)
    assert is_ok(subject, "leases")

    subject.advance(A_MOMENT)
    assert problem(subject, "leases").text.startswith("1 lease expired without being ended, the first one ")

    subject.driver.maintenance.expire(limit=10)
    assert is_ok(subject, "leases")


def test_a_forgotten_lease_is_found_behind_many_running_jobs(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SAMPLE", 2)
    subject.bring(Status.PROCESSING)
    subject.advance(LEASE + OVERDUE_AFTER + A_MOMENT)
    for _ in range(4):
        subject.insert()
    assert len(subject.reserve(limit=4, reclaim=False)) == 4

    assert problem(subject, "leases").text.startswith("1 lease expired without being ended, the first one ")

    subject.driver.maintenance.expire(limit=10)
    assert is_ok(subject, "leases")


def test_a_store_that_cannot_be_read_is_a_finding(subject: Subject) -> None:
    inspector = Unreadable(subject.driver.inspector)

    [found] = check_jobs(cast("Inspector", inspector), keep=KEEP)

    assert (found.check, found.level) == ("jobs", Level.FAIL)
    assert found.text == "it could not be checked: store unavailable: locked"
    assert "'locks'" in found.remedy


def test_a_store_that_refuses_to_be_read_is_not_said_to_be_locked(subject: Subject) -> None:
    inspector = Unreadable(subject.driver.inspector, StoreRefused("there seems to be a pooler"))

    [found] = check_jobs(cast("Inspector", inspector), keep=KEEP)

    assert "correct the URL" in found.remedy
    assert "locks" not in found.remedy


class Unreadable:
    """An inspector that cannot read the table of workers, because it is locked unless *error* says something else."""

    def __init__(self, inspector: Inspector, error: Exception | None = None) -> None:
        self._inspector = inspector
        self._error = error or StoreUnavailable("locked")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inspector, name)

    def workers(self) -> None:
        raise self._error


def test_lost_slots_are_reported_until_the_worker_restarts(subject: Subject) -> None:
    record_worker(subject, lost_slots=2)

    assert problem(subject, "workers").text.startswith("worker w1 (pid 7 on box) has lost 2 of 4 slots")

    record_worker(subject, lost_slots=0)
    assert findings(subject, "workers")[0].text == "live workers: 1; no slot lost"


def schedule(subject: Subject, **fields: Any) -> None:
    defaults: dict[str, Any] = {
        "name": "nightly",
        "cron": "0 2 * * *",
        "timezone": "UTC",
        "type": "greet",
        "queue": "default",
        "payload": b"{}",
        "next_at": subject.clock.now(),
    }
    subject.driver.control.put_schedules([Schedule(**defaults | fields)])


def test_an_overdue_schedule_is_reported_until_it_fires(subject: Subject) -> None:
    schedule(subject)
    due = subject.clock.now()
    subject.advance(OVERDUE_AFTER)
    assert is_ok(subject, "schedules")

    subject.advance(A_MOMENT)
    assert problem(subject, "schedules").text.startswith("schedule 'nightly' should have fired ")

    subject.driver.maintenance.advance_schedule("nightly", fired=due, next_at=subject.clock.now())
    assert is_ok(subject, "schedules")


def test_a_schedule_that_no_code_declares_is_reported(subject: Subject) -> None:
    schedule(subject, declared_at=subject.clock.now())
    assert problem(subject, "schedules").text == "no running code declares schedule 'nightly'; it does not fire"

    record_worker(subject, schedules=("nightly",))
    assert is_ok(subject, "schedules")
    record_worker(subject)
    subject.driver.control.pause_schedules(["nightly"])
    assert is_ok(subject, "schedules")


def test_dead_letters_are_reported_until_they_are_requeued(subject: Subject) -> None:
    dead = subject.bring(Status.DEAD)
    subject.driver.maintenance.roll_up(keep=KEEP)

    assert problem(subject, "dead letters").text == "1 dead letter: default 1"

    subject.requeue(dead)
    subject.driver.maintenance.roll_up(keep=KEEP)
    assert is_ok(subject, "dead letters")


def test_events_that_wait_for_a_publisher_are_reported_until_they_are_published(subject: Subject) -> None:
    maintenance = subject.driver.maintenance
    maintenance.claim_outbox(limit=1, lock=LOCK)  # a publisher runs
    subject.bring(Status.DEAD)
    assert is_ok(subject, "events")

    subject.advance(PUBLISHER_LATE_AFTER)
    assert problem(subject, "events").text == (
        "1 dead-letter events wait, and no process has published events for 10 min"
    )

    [row] = maintenance.claim_outbox(limit=1, lock=LOCK)
    maintenance.settle_outbox([Published(row.event.event_id)])
    assert is_ok(subject, "events")
    subject.advance(PUBLISHER_LATE_AFTER)
    assert is_ok(subject, "events")


def test_events_without_any_publisher_are_no_problem(subject: Subject) -> None:
    subject.bring(Status.DEAD)
    subject.advance(PUBLISHER_LATE_AFTER)

    assert is_ok(subject, "events")


def note(subject: Subject, role: DeliveryRole, text: str = "") -> None:
    subject.driver.maintenance.record_delivery([DeliveryNote(queue="default", role=role, problem=text)])


@pytest.mark.parametrize(("role", "done"), [(DeliveryRole.SENDER, "sent"), (DeliveryRole.RECEIVER, "received")])
def test_messages_that_cannot_be_delivered_are_reported_until_they_can(
    subject: Subject, role: DeliveryRole, done: str
) -> None:
    subject.insert()
    subject.driver.maintenance.roll_up(keep=KEEP)
    note(subject, role, "the queue does not exist")
    assert problem(subject, "delivery").text == (
        f"messages of queue 'default' cannot be {done}: the queue does not exist"
    )

    note(subject, role)
    assert is_ok(subject, "delivery")


@pytest.mark.parametrize(
    ("alive", "missing", "text"),
    [
        (DeliveryRole.RECEIVER, DeliveryRole.SENDER, "workers receive messages of queue 'default', but no enqueuer"),
        (DeliveryRole.SENDER, DeliveryRole.RECEIVER, "an enqueuer sends messages of queue 'default', but no worker"),
    ],
)
def test_delivery_with_one_side_only_is_reported_until_the_other_lives(
    subject: Subject, alive: DeliveryRole, missing: DeliveryRole, text: str
) -> None:
    subject.bring(Status.ENQUEUED)
    subject.driver.maintenance.roll_up(keep=KEEP)
    note(subject, missing)  # it has lived
    note(subject, alive)
    subject.advance(OVERDUE_AFTER)
    note(subject, alive)
    assert problem(subject, "delivery").text.startswith(text)

    note(subject, missing)
    assert is_ok(subject, "delivery")


def test_a_queue_without_messages_has_no_problem_of_delivery(subject: Subject) -> None:
    subject.insert()
    subject.driver.maintenance.roll_up(keep=KEEP)
    subject.advance(OVERDUE_AFTER)

    assert is_ok(subject, "delivery")


def test_jobs_kept_by_unpublished_events_are_reported(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)
    subject.requeue(job_id)
    subject.settle(subject.take(), Outcome.ack())
    subject.advance(KEEP + A_MOMENT)

    found = problem(subject, "retention")
    assert found.text.startswith("1 finished jobs are past their retention, but kept")
    assert found.remedy.endswith(f"taskharbor jobs why {job_id}")

    [row] = subject.driver.maintenance.claim_outbox(limit=1, lock=LOCK)
    subject.driver.maintenance.settle_outbox([Published(row.event.event_id)])
    assert is_ok(subject, "retention")
