"""The runs of schedules: stored as they fire, the newest ones kept, removed with their schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.model import Schedule
from taskharbor.core.schedule_runs import KEPT_RUNS, ScheduleRun, SkipReason
from taskharbor.testing.conformance.subject import new_job

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.testing.conformance.subject import Subject

_HOUR: Final = timedelta(hours=1)


def test_a_run_is_stored_with_the_jobs_of_its_fire_time(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, "nightly", next_at=now)
    job = new_job()
    skipped = ScheduleRun(schedule="nightly", fire_time=now, skipped=SkipReason.MISSED)
    fired = ScheduleRun(schedule="nightly", fire_time=now + _HOUR, job_id=job.id)

    assert _advance(subject, now, job, runs=[skipped, fired])

    assert _runs(subject, "nightly") == [replace(fired, at=now), replace(skipped, at=now)]


def test_a_second_fire_of_a_schedule_stores_no_run(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, "nightly", next_at=now)
    run = ScheduleRun(schedule="nightly", fire_time=now)
    _advance(subject, now, runs=[run])

    assert not _advance(subject, now, runs=[run])
    assert len(_runs(subject, "nightly")) == 1


def test_runs_are_listed_for_each_schedule_newest_first(subject: Subject) -> None:
    for name in ("a", "b", "c"):
        _put(subject, name)
    job = subject.insert()
    runs = [ScheduleRun(schedule=name, fire_time=None, job_id=job) for name in ("a", "b", "a", "c", "gone")]
    for run in runs:
        subject.driver.maintenance.record_runs([run])
        subject.advance(_HOUR)

    found = subject.driver.inspector.schedule_runs(["b", "unknown", "a"], limit=2)

    start = subject.clock.now() - 5 * _HOUR
    expected = [replace(runs[number], at=start + number * _HOUR) for number in (1, 2, 0)]
    assert found == expected
    assert subject.driver.inspector.schedule_runs(["a"], limit=1) == expected[1:2]
    assert _runs(subject, "gone") == []


def test_the_newest_runs_of_a_schedule_are_kept(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, "nightly")
    _put(subject, "other")
    subject.driver.maintenance.record_runs([ScheduleRun(schedule="other", fire_time=now)])
    runs = [ScheduleRun(schedule="nightly", fire_time=now + number * _HOUR) for number in range(KEPT_RUNS + 7)]
    subject.driver.maintenance.record_runs(runs[:3])
    subject.driver.maintenance.record_runs(runs[3 : KEPT_RUNS + 5])
    subject.driver.maintenance.record_runs(runs[KEPT_RUNS + 5 :])

    kept = [run.fire_time for run in _runs(subject, "nightly")]

    assert kept == [run.fire_time for run in reversed(runs[-KEPT_RUNS:])]
    assert len(_runs(subject, "other")) == 1


def test_runs_are_removed_with_their_schedule(subject: Subject) -> None:
    now = subject.clock.now()
    _put(subject, "deleted")
    _put(subject, "undeclared", declared_at=now)
    for name in ("deleted", "undeclared"):
        subject.driver.maintenance.record_runs([ScheduleRun(schedule=name, fire_time=now)])
    subject.advance(_HOUR)

    subject.driver.control.delete_schedules(["deleted"])
    subject.driver.maintenance.prune_schedules(undeclared_for=_HOUR, alive_within=_HOUR)
    for name in ("deleted", "undeclared"):
        _put(subject, name)

    assert _runs(subject, "deleted") == _runs(subject, "undeclared") == []


def _put(subject: Subject, name: str, **fields: Any) -> None:
    defaults = {"cron": "0 2 * * *", "timezone": "UTC", "type": "clean", "queue": "default", "payload": b"{}"}
    subject.driver.control.put_schedules([Schedule(name=name, **defaults | fields)])


def _advance(subject: Subject, fired: datetime, *jobs: Any, runs: list[ScheduleRun]) -> bool:
    return subject.driver.maintenance.advance_schedule(
        "nightly", fired=fired, next_at=fired + _HOUR, jobs=jobs, runs=runs
    )


def _runs(subject: Subject, name: str) -> list[ScheduleRun]:
    return subject.driver.inspector.schedule_runs([name], limit=1_000)
