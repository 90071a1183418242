"""Schedules: storing, firing, pausing and deleting them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.model import Schedule, WorkerRecord
from taskharbor.testing.conformance.subject import TICK, Subject, new_job

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.model import NewJob

_DAY: Final = timedelta(days=1)
_ALIVE: Final = timedelta(seconds=30)


def test_schedules_are_kept_as_they_were_put_and_listed_by_name(subject: Subject) -> None:
    hourly = _schedule("hourly", cron="0 * * * *", next_at=subject.clock.now(), options={"priority": "3"})
    yearly = _schedule("yearly", cron="0 0 1 1 *", timezone="Europe/Berlin")

    subject.driver.control.put_schedules([yearly, hourly])

    assert list(subject.driver.inspector.schedules().items()) == [("hourly", hourly), ("yearly", yearly)]


def test_a_schedule_is_due_from_the_instant_of_its_next_time(subject: Subject) -> None:
    nightly = _put(subject, next_at=subject.clock.now() + _DAY)

    subject.advance(_DAY - TICK)
    too_early = _due(subject)
    subject.advance(TICK)
    in_time = _due(subject)

    assert too_early == []
    assert in_time == [nightly]


def test_a_schedule_without_a_next_time_is_never_due(subject: Subject) -> None:
    _put(subject, next_at=None)

    subject.advance(365 * _DAY)

    assert _due(subject) == []


def test_a_paused_schedule_is_due_only_once_it_is_resumed(subject: Subject) -> None:
    nightly = _put(subject, next_at=subject.clock.now())

    subject.driver.control.pause_schedules(["nightly"])
    while_paused = _due(subject)
    subject.driver.control.resume_schedules(["nightly"])
    after_that = _due(subject)

    assert while_paused == []
    assert after_that == [nightly]


def test_the_longest_due_schedules_come_first_and_no_more_than_asked_for(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, "a", next_at=now - timedelta(hours=1))
    second = _put(subject, "b", next_at=now - timedelta(hours=2))
    first = _put(subject, "c", next_at=now - timedelta(hours=3))

    due = subject.driver.maintenance.due_schedules(limit=2, alive_within=_ALIVE)

    assert due == [first, second]


def test_a_schedule_fired_twice_is_advanced_once(subject: Subject) -> None:
    due = subject.clock.now()
    nightly = _put(subject, next_at=due)
    subject.advance(TICK)

    answers = [_fire(subject, due, due + _DAY), _fire(subject, due, due + 2 * _DAY)]

    assert answers == [True, False]
    assert _stored(subject) == replace(nightly, next_at=due + _DAY)


def test_a_fired_schedule_stores_its_jobs_and_records_the_last(subject: Subject) -> None:
    due = subject.clock.now()
    nightly = _put(subject, next_at=due)
    first, last = new_job(), new_job(queue="mail", delay=_DAY)
    subject.advance(TICK)

    answer = _fire(subject, due, due + _DAY, first, last)

    assert answer is True
    assert _stored(subject) == replace(nightly, next_at=due + _DAY, fired_at=due, last_job_id=last.id)
    assert subject.job(first.id).scheduled_for == subject.clock.now()
    assert subject.job(last.id).scheduled_for == subject.clock.now() + _DAY


def test_a_second_fire_of_a_schedule_stores_no_jobs(subject: Subject) -> None:
    due = subject.clock.now()
    _put(subject, next_at=due)
    first, second = new_job(), new_job()

    answers = [_fire(subject, due, due + _DAY, first), _fire(subject, due, due + _DAY, second)]

    assert answers == [True, False]
    assert [*subject.driver.inspector.get([first.id, second.id])] == [first.id]


def test_a_schedule_advanced_without_jobs_keeps_its_last_fire_and_job(subject: Subject) -> None:
    due = subject.clock.now()
    _put(subject, next_at=due)
    job = new_job()
    _fire(subject, due, due + _DAY, job)
    fired = _stored(subject)

    answer = _fire(subject, due + _DAY, None)

    assert answer is True
    assert (fired.fired_at, fired.last_job_id) == (due, job.id)
    assert _stored(subject) == replace(fired, next_at=None)


def test_a_schedule_whose_jobs_cannot_be_stored_stays_due(subject: Subject) -> None:
    nightly = _put(subject, next_at=subject.clock.now())
    good, bad = new_job(), new_job(metadata=7)

    with pytest.raises(TypeError):
        _fire(subject, subject.clock.now(), None, good, bad)

    assert _stored(subject) == nightly
    assert subject.driver.inspector.get([good.id, bad.id]) == {}


def test_a_schedule_advances_if_its_jobs_key_is_in_use(
    subject: Subject,
) -> None:
    due = subject.clock.now()
    holder = subject.insert(idempotency_key="nightly")
    _put(subject, next_at=due)

    answer = _fire(subject, due, due + _DAY, new_job(idempotency_key="nightly"))

    assert (answer, _stored(subject).next_at) == (True, due + _DAY)
    assert [claim.job.id for claim in subject.reserve(limit=9)] == [holder]


def test_an_unknown_schedule_cannot_be_fired(subject: Subject) -> None:
    job = new_job()

    answer = _fire(subject, subject.clock.now(), None, job)

    assert answer is False
    assert subject.driver.inspector.get([job.id]) == {}


def test_a_schedule_put_again_keeps_its_times_and_updates_the_rest(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, next_at=now)
    job = new_job()
    _fire(subject, now, now + _DAY, job)
    subject.driver.control.pause_schedules(["nightly"])
    subject.advance(TICK)

    changed = _put(subject, next_at=now + 2 * _DAY, type="sweep", queue="mail", payload=b"[2]", options={"a": "b"})

    expected = replace(changed, next_at=now + _DAY, fired_at=now, paused_at=now, last_job_id=job.id)
    assert _stored(subject) == expected


def test_a_schedule_put_again_with_another_cron_takes_the_new_next_time(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, next_at=now)
    job = new_job()
    _fire(subject, now, now + _DAY, job)
    subject.driver.control.pause_schedules(["nightly"])

    changed = _put(subject, next_at=now + 2 * _DAY, cron="0 3 * * *")

    assert _stored(subject) == replace(changed, fired_at=now, paused_at=now, last_job_id=job.id)


def test_a_schedule_put_again_in_another_timezone_takes_the_new_next_time(subject: Subject) -> None:
    _put(subject, next_at=subject.clock.now())

    changed = _put(subject, next_at=subject.clock.now() + _DAY, timezone="Asia/Tokyo")

    assert _stored(subject) == changed


def test_deleting_a_schedule_returns_whether_it_existed(subject: Subject) -> None:
    _put(subject)

    first = subject.driver.control.delete_schedules(["unknown", "nightly"])
    second = subject.driver.control.delete_schedules(["nightly"])

    assert (first, second) == ([False, True], [False])
    assert subject.driver.inspector.schedules() == {}


def test_pausing_a_schedule_returns_whether_it_was_active(subject: Subject) -> None:
    nightly = _put(subject)
    paused_at = subject.clock.now()

    first = subject.driver.control.pause_schedules(["unknown", "nightly"])
    subject.advance(TICK)
    second = subject.driver.control.pause_schedules(["nightly"])

    assert (first, second) == ([False, True], [False])
    assert _stored(subject) == replace(nightly, paused_at=paused_at)


def test_resuming_a_schedule_returns_whether_it_was_paused(subject: Subject) -> None:
    nightly = _put(subject)
    subject.driver.control.pause_schedules(["nightly"])

    first = subject.driver.control.resume_schedules(["unknown", "nightly"])
    second = subject.driver.control.resume_schedules(["nightly"])

    assert (first, second) == ([False, True], [False])
    assert _stored(subject) == nightly


def test_a_declared_schedule_is_due_while_a_live_worker_declares_it(subject: Subject) -> None:
    nightly = _put(subject, next_at=subject.clock.now(), declared_at=subject.clock.now())

    undeclared = _due(subject)
    _declare(subject, "hourly", "nightly")
    declared = _due(subject)
    subject.advance(_ALIVE - TICK)
    still_alive = _due(subject)
    subject.advance(TICK)
    dead = _due(subject)
    _declare(subject, "nightly", worker="successor")
    declared_again = _due(subject)

    assert (undeclared, dead) == ([], [])
    assert declared == still_alive == declared_again == [nightly]


def test_a_declared_schedule_is_not_due_when_its_worker_drops_it(subject: Subject) -> None:
    _put(subject, next_at=subject.clock.now(), declared_at=subject.clock.now())
    _declare(subject, "nightly")
    _declare(subject, "nightly2", "night")

    assert _due(subject) == []


def test_a_stored_schedule_is_due_without_a_declaration(subject: Subject) -> None:
    nightly = _put(subject, next_at=subject.clock.now())
    _put(subject, "hourly", next_at=subject.clock.now(), declared_at=subject.clock.now())

    _declare(subject, "other")

    assert _due(subject) == [nightly]


def test_a_declared_schedule_that_is_paused_is_not_due(subject: Subject) -> None:
    _put(subject, next_at=subject.clock.now(), declared_at=subject.clock.now())
    _declare(subject, "nightly")

    subject.driver.control.pause_schedules(["nightly"])

    assert _due(subject) == []


def test_a_schedule_put_again_is_bound_to_code_or_freed_as_put(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, next_at=now)
    bound = _put(subject, next_at=now, declared_at=now)
    is_bound = _stored(subject)
    freed = _put(subject, next_at=now)

    assert (is_bound, _stored(subject)) == (bound, freed)


def test_a_schedule_undeclared_for_too_long_is_removed(subject: Subject) -> None:
    _put(subject, declared_at=subject.clock.now())
    stored = _put(subject, "by-hand")

    subject.advance(_DAY - TICK)
    too_early = _prune(subject)
    subject.advance(TICK)
    removed = _prune(subject)

    assert (too_early, removed, _prune(subject)) == (0, 1, 0)
    assert subject.driver.inspector.schedules() == {"by-hand": stored}


def test_a_live_declaration_is_recorded_and_keeps_a_schedule(subject: Subject) -> None:
    old = _put(subject, declared_at=subject.clock.now())
    stored = _put(subject, "by-hand")
    subject.advance(_DAY)
    _declare(subject, "nightly", "by-hand")

    removed = _prune(subject)
    renewed = _stored(subject)
    subject.advance(_ALIVE)
    _prune(subject)

    assert removed == 0
    assert renewed == _stored(subject) == replace(old, declared_at=subject.clock.now() - _ALIVE)
    assert subject.driver.inspector.schedules()["by-hand"] == stored


def test_a_paused_schedule_is_kept_when_no_worker_declares_it(subject: Subject) -> None:
    _put(subject, declared_at=subject.clock.now())
    subject.driver.control.pause_schedules(["nightly"])

    subject.advance(_DAY)

    assert (_prune(subject), [*subject.driver.inspector.schedules()]) == (0, ["nightly"])


def _schedule(name: str, **fields: Any) -> Schedule:
    defaults = {"cron": "0 2 * * *", "timezone": "UTC", "type": "clean", "queue": "default", "payload": b"{}"}
    return Schedule(name=name, **defaults | fields)


def _put(subject: Subject, name: str = "nightly", **fields: Any) -> Schedule:
    schedule = _schedule(name, **fields)
    subject.driver.control.put_schedules([schedule])
    return schedule


def _stored(subject: Subject) -> Schedule:
    return subject.driver.inspector.schedules()["nightly"]


def _due(subject: Subject) -> list[Schedule]:
    return subject.driver.maintenance.due_schedules(limit=10, alive_within=_ALIVE)


def _declare(subject: Subject, *schedules: str, worker: str = "w") -> None:
    """Record the heartbeat of a worker that declares *schedules*."""
    record = WorkerRecord(
        id=worker,
        host="h",
        pid=1,
        queues=("default",),
        types=("clean",),
        concurrency=1,
        started_at=subject.clock.now(),
        schedules=schedules,
    )
    subject.driver.maintenance.record_worker(record)


def _prune(subject: Subject) -> int:
    return subject.driver.maintenance.prune_schedules(undeclared_for=_DAY, alive_within=_ALIVE)


def _fire(subject: Subject, fired: datetime, next_at: datetime | None, *jobs: NewJob) -> bool:
    return subject.driver.maintenance.advance_schedule("nightly", fired=fired, next_at=next_at, jobs=jobs)
