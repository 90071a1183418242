"""What the store keeps beside jobs: duties, workers, pauses, and how many jobs ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from taskharbor.core.answers import Extended, FinishedCount, Settled
from taskharbor.core.model import WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.testing.conformance.racing import race
from taskharbor.testing.conformance.subject import LEASE, LONG_AGO, TICK, Subject

_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)


def test_a_duty_is_free_again_from_the_end_of_its_period_on(subject: Subject) -> None:
    at_first = _take_duty(subject)
    subject.advance(_MINUTE - TICK)
    within = _take_duty(subject)
    subject.advance(TICK)
    after = _take_duty(subject)

    assert (at_first, within, after) == (True, False, True)


def test_each_duty_has_its_own_period(subject: Subject) -> None:
    _take_duty(subject, "prune")

    answer = _take_duty(subject, "expire")

    assert answer is True


def test_of_many_that_take_a_duty_one_gets_it(subject: Subject) -> None:
    answers = race(lambda _: _take_duty(subject))

    assert sum(answers) == 1


def test_a_worker_is_known_by_its_last_beat_at_the_stores_time(subject: Subject) -> None:
    subject.driver.maintenance.record_worker(_worker("w1", pid=1))
    subject.advance(_MINUTE)
    newest = _worker("w1", pid=2, queues=("mail",), types=(), lost_slots=2, seen_at=LONG_AGO)

    subject.driver.maintenance.record_worker(newest)

    assert subject.driver.inspector.workers() == [replace(newest, seen_at=subject.clock.now())]


def test_a_worker_is_forgotten_once_it_was_silent_for_so_long(subject: Subject) -> None:
    subject.driver.maintenance.record_worker(_worker("silent"))
    subject.advance(TICK)
    subject.driver.maintenance.record_worker(_worker("fresh"))
    subject.advance(_MINUTE - TICK)

    count = subject.driver.maintenance.prune_workers(unseen_for=_MINUTE)

    assert count == 1
    assert [worker.id for worker in subject.driver.inspector.workers()] == ["fresh"]


def test_pausing_a_queue_again_is_told_and_changes_nothing(subject: Subject) -> None:
    subject.driver.control.pause(["default"], by="ann")
    [before] = subject.queues()
    subject.advance(TICK)

    answers = subject.driver.control.pause(["mail", "default"], by="bob")

    assert answers == [True, False]
    assert before in subject.queues()


def test_resuming_a_queue_tells_whether_it_was_paused(subject: Subject) -> None:
    subject.driver.control.pause(["default"], by="ann")

    answers = subject.driver.control.resume(["mail", "default"]), subject.driver.control.resume(["default"])

    assert answers == ([False, True], [False])


def test_a_running_job_of_a_paused_queue_goes_on_to_its_end(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.driver.control.pause(["default"], by="ann")

    [extended] = subject.driver.extend([claim.lease], lease=LEASE)
    settled = subject.settle(claim, Outcome.ack())

    assert isinstance(extended, Extended)
    assert settled == Settled(claim.job.id, Status.SUCCEEDED)


def test_ended_jobs_are_counted_by_minute_queue_and_state(subject: Subject) -> None:
    minute = _this_minute(subject)
    for status in (Status.SUCCEEDED, Status.SUCCEEDED, Status.DEAD, Status.FAILED):
        subject.bring(status)
    subject.bring(Status.CANCELED, queue="mail")
    subject.advance(minute + _MINUTE - subject.clock.now() - TICK)
    subject.bring(Status.CANCELED)
    subject.advance(TICK)
    subject.bring(Status.CANCELED)

    finished = _finished(subject, since=minute)

    assert finished == [
        FinishedCount(minute=minute, queue="default", status=Status.CANCELED, count=1),
        FinishedCount(minute=minute, queue="default", status=Status.DEAD, count=1),
        FinishedCount(minute=minute, queue="default", status=Status.SUCCEEDED, count=2),
        FinishedCount(minute=minute, queue="mail", status=Status.CANCELED, count=1),
        FinishedCount(minute=minute + _MINUTE, queue="default", status=Status.CANCELED, count=1),
    ]


def test_only_minutes_that_begin_at_the_asked_time_or_later_are_counted(subject: Subject) -> None:
    subject.bring(Status.SUCCEEDED)
    minute = _this_minute(subject)

    answers = [_finished(subject, since=since) for since in (minute, minute + TICK)]

    assert answers == [[FinishedCount(minute=minute, queue="default", status=Status.SUCCEEDED, count=1)], []]


def test_of_the_minutes_of_a_queue_the_newest_are_given_oldest_first(subject: Subject) -> None:
    minute = _this_minute(subject)
    for _ in range(4):
        subject.bring(Status.CANCELED)
        subject.bring(Status.CANCELED, queue="mail")
        subject.bring(Status.CANCELED, queue="zoo")
        subject.advance(_MINUTE)
    subject.driver.maintenance.roll_up(keep=_HOUR)
    finished = partial(subject.driver.inspector.finished_counts, since=minute)

    assert [(each.minute, each.queue) for each in finished(limit=2)] == [
        (minute + 3 * _MINUTE, "mail"),
        (minute + 3 * _MINUTE, "zoo"),
    ]
    assert [(each.minute, each.queue) for each in finished(queue="mail", limit=3)] == [
        (minute + n * _MINUTE, "mail") for n in (1, 2, 3)
    ]
    assert [each.queue for each in finished(queue="mail")] == ["mail"] * 4
    assert finished(limit=0) == []


def test_minutes_older_than_what_is_kept_are_dropped_and_counted(subject: Subject) -> None:
    minute = _this_minute(subject)
    subject.bring(Status.SUCCEEDED)
    subject.bring(Status.CANCELED, queue="mail")
    subject.advance(_MINUTE)
    subject.bring(Status.SUCCEEDED)
    everything = _finished(subject, since=minute)

    subject.advance(minute + _HOUR - subject.clock.now())
    just_kept = subject.driver.maintenance.roll_up(keep=_HOUR), _finished(subject, since=minute)
    subject.advance(TICK)
    dropped = subject.driver.maintenance.roll_up(keep=_HOUR), _finished(subject, since=minute)

    assert just_kept == (0, everything)
    assert dropped == (1, everything[2:])


def _take_duty(subject: Subject, name: str = "prune") -> bool:
    return subject.driver.maintenance.claim_duty(name, every=_MINUTE)


def _worker(worker_id: str, **fields: Any) -> WorkerRecord:
    defaults: dict[str, Any] = {
        "host": "localhost",
        "pid": 1,
        "queues": ("default",),
        "types": ("greet",),
        "concurrency": 4,
        "started_at": LONG_AGO,
    }
    return WorkerRecord(id=worker_id, **defaults | fields)


def _this_minute(subject: Subject) -> datetime:
    return subject.clock.now().replace(second=0, microsecond=0)


def _finished(subject: Subject, *, since: datetime) -> list[FinishedCount]:
    """Return the counts in a fixed order: the contract names none."""
    counts = subject.finished(since=since)
    return sorted(counts, key=lambda each: (each.minute, each.queue, each.status))
