"""Fire times that passed while nobody was there, or while the job before was still under way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskharbor.core.states import Status
from taskharbor.schedules import Cron
from taskharbor.schedules.firing import MAX_CATCH_UP, next_firing
from tests.support.schedule_rig import HOUR, MINUTE, SECOND, ScheduleRig, fire_times, hourly, made


def put(world: ScheduleRig, **fields: Any) -> None:
    world.scheduler.put([hourly(**fields)])


def test_missed_fire_times_are_skipped_and_the_next_fires_on_time(world: ScheduleRig) -> None:
    put(world, missed="skip")

    world.pass_by(3 * HOUR)
    after_the_outage = world.hours()
    world.pass_by(HOUR / 2)

    assert (after_the_outage, world.hours()) == ([], [4])


@pytest.mark.parametrize(("late", "hours"), [(MINUTE - SECOND, [1]), (MINUTE, [])])
def test_a_fire_time_is_missed_when_it_is_a_minute_late(world: ScheduleRig, late: timedelta, hours: list[int]) -> None:
    put(world, missed="skip")

    world.pass_by(HOUR / 2 + late)

    assert world.hours() == hours


def test_a_fire_time_on_time_is_not_skipped_with_the_missed_ones(world: ScheduleRig) -> None:
    put(world, missed="skip")

    world.pass_by(3 * HOUR + HOUR / 2)

    assert world.hours() == [4]


def test_missed_once_enqueues_one_job_for_all_missed_fire_times(world: ScheduleRig) -> None:
    put(world, missed="once")

    world.pass_by(5 * HOUR)
    world.scheduler.tick()

    assert world.hours() == [5]
    assert world.schedule().next_at == datetime(2030, 1, 1, 6, tzinfo=UTC)


def test_missed_all_enqueues_a_job_per_missed_fire_time_in_the_window(world: ScheduleRig) -> None:
    put(world, missed="all", window=3 * HOUR)

    world.pass_by(5 * HOUR)
    world.scheduler.tick()

    assert world.hours() == [3, 4, 5]


def test_a_year_without_a_scheduler_enqueues_a_limited_number_of_jobs(world: ScheduleRig) -> None:
    put(world, missed="all", cron="* * * * *", window=timedelta(days=366))

    world.pass_by(timedelta(days=365))
    world.scheduler.tick()

    times = fire_times(world.driver, "hourly")
    assert len(times) == MAX_CATCH_UP
    assert times[-1] - times[0] == (MAX_CATCH_UP - 1) * MINUTE
    assert times[-1] == world.clock.now()


def test_fire_times_during_a_pause_are_missed(world: ScheduleRig) -> None:
    put(world, missed="once")
    world.driver.control.pause_schedules(["hourly"])
    world.pass_by(4 * HOUR)
    world.driver.control.resume_schedules(["hourly"])

    world.scheduler.tick()

    assert world.hours() == [4]


def test_overlap_allow_enqueues_while_the_previous_job_runs(world: ScheduleRig) -> None:
    put(world, overlap="allow")

    for _ in range(3):
        world.pass_by(HOUR)

    assert world.hours() == [1, 2, 3]


def test_overlap_skip_enqueues_no_job_while_the_previous_one_runs(world: ScheduleRig) -> None:
    put(world, overlap="skip")

    world.reach(1)
    world.reach(2)
    while_it_lasts = world.hours()
    world.run_next()
    world.pass_by(HOUR / 2)
    world.reach(3)

    assert (while_it_lasts, world.hours()) == ([1], [1, 3])


def test_overlap_queue_waits_until_the_previous_job_has_ended(world: ScheduleRig) -> None:
    put(world, overlap="queue", missed="skip")

    world.reach(1)
    world.reach(2)
    world.pass_by(HOUR / 2)
    while_it_lasts = world.hours()
    world.run_next()
    world.pass_by(SECOND)

    assert (while_it_lasts, world.hours()) == ([1], [1, 2])


@pytest.mark.parametrize(("missed", "hours"), [("skip", [1, 2]), ("once", [1, 4]), ("all", [1, 2, 3, 4])])
def test_fire_times_that_pass_while_one_waits_are_missed(world: ScheduleRig, missed: str, hours: list[int]) -> None:
    put(world, overlap="queue", missed=missed)
    for hour in (1, 2, 3, 4):
        world.reach(hour)
    world.pass_by(HOUR / 2)

    for _ in range(4):  # each job ends, and what is there to be made comes after it
        if any(not job.status.is_final for job in made(world.driver)):
            world.run_next()
        world.pass_by(SECOND)

    assert world.hours() == hours
    assert world.schedule().next_at == datetime(2030, 1, 1, 5, tzinfo=UTC)


def test_queued_fire_times_fire_one_at_a_time(world: ScheduleRig) -> None:
    put(world, overlap="queue", missed="all")

    world.pass_by(4 * HOUR)
    for _ in range(3):
        world.scheduler.tick()

    assert world.hours() == [1]


def test_a_queued_fire_time_is_skipped_if_no_scheduler_ran_afterwards(world: ScheduleRig) -> None:
    put(world, overlap="queue", missed="skip")
    world.reach(1)
    world.reach(2)
    world.clock.advance(HOUR / 2)
    world.run_next()

    world.pass_by(MINUTE)

    assert world.hours() == [1]


def test_overlap_cancel_cancels_the_previous_job_and_enqueues_a_new_one(world: ScheduleRig) -> None:
    put(world, overlap="cancel")

    world.pass_by(HOUR)
    world.pass_by(HOUR)

    assert world.hours() == [1, 2]
    assert [job.status for job in made(world.driver)] == [Status.CANCELED, Status.PENDING]


def test_a_job_that_has_ended_is_not_canceled(world: ScheduleRig) -> None:
    put(world, overlap="cancel")

    world.pass_by(HOUR)
    world.run_next()
    world.pass_by(HOUR)

    assert [job.status for job in made(world.driver)] == [Status.SUCCEEDED, Status.PENDING]


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_missed_all_enqueues_one_job_if_overlap_would_leave_one(world: ScheduleRig, overlap: str) -> None:
    put(world, overlap=overlap, missed="all")

    world.pass_by(4 * HOUR)
    world.scheduler.tick()

    assert world.hours() == [4]


def test_a_previous_job_removed_by_retention_does_not_overlap(world: ScheduleRig) -> None:
    put(world, overlap="skip")
    world.pass_by(HOUR)
    world.run_next()
    world.driver.maintenance.prune(older_than=timedelta(0), limit=10)

    world.pass_by(HOUR)

    assert world.hours() == [2]


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
