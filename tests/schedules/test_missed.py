"""Fire times that passed while no scheduler ran or while the previous job was running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.schedules import Cron, Scheduler
from taskharbor.schedules.firing import MAX_CATCH_UP, Missed, next_firing
from taskharbor.testing.clock import ManualClock
from tests.support.schedule_rig import HOUR, MINUTE, SECOND, START, ScheduleRig, fire_times, hourly, made


def put(rig: ScheduleRig, **fields: Any) -> None:
    rig.scheduler.put([hourly(**fields)])


def test_missed_fire_times_are_skipped_and_the_next_fires_on_time(rig: ScheduleRig) -> None:
    put(rig, missed="skip")

    rig.pass_by(3 * HOUR)
    after_the_outage = rig.hours()
    rig.pass_by(HOUR / 2)

    assert (after_the_outage, rig.hours()) == ([], [4])


@pytest.mark.parametrize(("late", "hours"), [(MINUTE - SECOND, [1]), (MINUTE, [])])
def test_a_fire_time_is_missed_when_it_is_a_minute_late(rig: ScheduleRig, late: timedelta, hours: list[int]) -> None:
    put(rig, missed="skip")

    rig.pass_by(HOUR / 2 + late)

    assert rig.hours() == hours


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
@given(stalls=st.lists(st.integers(1, 300), min_size=1, max_size=20))
def test_after_a_stall_of_any_length_each_fire_time_has_one_job(missed: Missed, stalls: list[int]) -> None:
    clock = ManualClock(START)
    driver = MemoryDriver(clock=clock)
    scheduler = Scheduler(driver)
    scheduler.put([hourly(cron="* * * * *", missed=missed, overlap="allow")])
    expected: list[datetime] = []

    for seconds in stalls:
        before = clock.now()
        clock.advance(seconds * SECOND)
        scheduler.tick()
        passed = [before.replace(second=0) + n * MINUTE for n in range(1, 7)]
        due = [fire for fire in passed if before < fire <= clock.now()]
        expected += due if missed == "all" else due[-1:]

    assert fire_times(driver, "hourly") == expected


def test_a_fire_time_on_time_is_not_skipped_with_the_missed_ones(rig: ScheduleRig) -> None:
    put(rig, missed="skip")

    rig.pass_by(3 * HOUR + HOUR / 2)

    assert rig.hours() == [4]


def test_missed_once_enqueues_one_job_for_all_missed_fire_times(rig: ScheduleRig) -> None:
    put(rig, missed="once")

    rig.pass_by(5 * HOUR)
    rig.scheduler.tick()

    assert rig.hours() == [5]
    assert rig.schedule().next_at == datetime(2030, 1, 1, 6, tzinfo=UTC)


def test_missed_all_enqueues_a_job_per_missed_fire_time_in_the_window(rig: ScheduleRig) -> None:
    put(rig, missed="all", window=3 * HOUR)

    rig.pass_by(5 * HOUR)
    rig.scheduler.tick()

    assert rig.hours() == [3, 4, 5]


def test_a_year_without_a_scheduler_enqueues_a_limited_number_of_jobs(rig: ScheduleRig) -> None:
    put(rig, missed="all", cron="* * * * *", window=timedelta(days=366))

    rig.pass_by(timedelta(days=365))
    rig.scheduler.tick()

    times = fire_times(rig.driver, "hourly")
    assert len(times) == MAX_CATCH_UP
    assert times[-1] - times[0] == (MAX_CATCH_UP - 1) * MINUTE
    assert times[-1] == rig.clock.now()


def test_fire_times_during_a_pause_are_missed(rig: ScheduleRig) -> None:
    put(rig, missed="once")
    rig.driver.control.pause_schedules(["hourly"])
    rig.pass_by(4 * HOUR)
    rig.driver.control.resume_schedules(["hourly"])

    rig.scheduler.tick()

    assert rig.hours() == [4]


def test_overlap_allow_enqueues_while_the_previous_job_runs(rig: ScheduleRig) -> None:
    put(rig, overlap="allow")

    for _ in range(3):
        rig.pass_by(HOUR)

    assert rig.hours() == [1, 2, 3]


def test_overlap_skip_enqueues_no_job_while_the_previous_one_runs(rig: ScheduleRig) -> None:
    put(rig, overlap="skip")

    rig.reach(1)
    rig.reach(2)
    while_it_lasts = rig.hours()
    rig.run_next()
    rig.pass_by(HOUR / 2)
    rig.reach(3)

    assert (while_it_lasts, rig.hours()) == ([1], [1, 3])


def test_overlap_queue_waits_until_the_previous_job_has_ended(rig: ScheduleRig) -> None:
    put(rig, overlap="queue", missed="skip")

    rig.reach(1)
    rig.reach(2)
    rig.pass_by(HOUR / 2)
    while_it_lasts = rig.hours()
    rig.run_next()
    rig.pass_by(SECOND)

    assert (while_it_lasts, rig.hours()) == ([1], [1, 2])


@pytest.mark.parametrize(("missed", "hours"), [("skip", [1, 2]), ("once", [1, 4]), ("all", [1, 2, 3, 4])])
def test_fire_times_that_pass_while_one_waits_are_missed(rig: ScheduleRig, missed: str, hours: list[int]) -> None:
    put(rig, overlap="queue", missed=missed)
    for hour in (1, 2, 3, 4):
        rig.reach(hour)
    rig.pass_by(HOUR / 2)

    for _ in range(4):  # each job ends, and then the next one is enqueued
        if any(not job.status.is_final for job in made(rig.driver)):
            rig.run_next()
        rig.pass_by(SECOND)

    assert rig.hours() == hours
    assert rig.schedule().next_at == datetime(2030, 1, 1, 5, tzinfo=UTC)


def test_queued_fire_times_fire_one_at_a_time(rig: ScheduleRig) -> None:
    put(rig, overlap="queue", missed="all")

    rig.pass_by(4 * HOUR)
    for _ in range(3):
        rig.scheduler.tick()

    assert rig.hours() == [1]


def test_a_queued_fire_time_is_skipped_if_no_scheduler_ran_afterwards(rig: ScheduleRig) -> None:
    put(rig, overlap="queue", missed="skip")
    rig.reach(1)
    rig.reach(2)
    rig.clock.advance(HOUR / 2)
    rig.run_next()

    rig.pass_by(MINUTE)

    assert rig.hours() == [1]


def test_overlap_cancel_cancels_the_previous_job_and_enqueues_a_new_one(rig: ScheduleRig) -> None:
    put(rig, overlap="cancel")

    rig.pass_by(HOUR)
    rig.pass_by(HOUR)

    assert rig.hours() == [1, 2]
    assert [job.status for job in made(rig.driver)] == [Status.CANCELED, Status.PENDING]


def test_a_job_that_has_ended_is_not_canceled(rig: ScheduleRig) -> None:
    put(rig, overlap="cancel")

    rig.pass_by(HOUR)
    rig.run_next()
    rig.pass_by(HOUR)

    assert [job.status for job in made(rig.driver)] == [Status.SUCCEEDED, Status.PENDING]


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_missed_all_enqueues_one_job_if_overlap_would_leave_one(rig: ScheduleRig, overlap: str) -> None:
    put(rig, overlap=overlap, missed="all")

    rig.pass_by(4 * HOUR)
    rig.scheduler.tick()

    assert rig.hours() == [4]


def test_a_previous_job_removed_by_retention_does_not_overlap(rig: ScheduleRig) -> None:
    put(rig, overlap="skip")
    rig.pass_by(HOUR)
    rig.run_next()
    rig.driver.maintenance.prune(older_than=timedelta(0), limit=10)

    rig.pass_by(HOUR)

    assert rig.hours() == [2]


def test_a_fire_time_set_under_older_zone_rules_still_fires() -> None:
    set_before = datetime(2030, 1, 1, 1, 7, tzinfo=UTC)

    step = next_firing(
        Cron("0 2 * * *", "UTC").after,
        fire=set_before,
        now=set_before + SECOND,
        previous=None,
        missed="skip",
        overlap="allow",
        window=HOUR,
    )

    assert step is not None
    assert (step.fires, step.next_at) == ((set_before,), datetime(2030, 1, 1, 2, tzinfo=UTC))
