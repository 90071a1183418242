"""Scheduled tasks."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Harbor, MemoryDriver, Status
from taskharbor.core.errors import UsageError
from taskharbor.core.results import JobFilter
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.testing.clock import ManualClock
from tests.support.schedule_rig import fire_times
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SOON = timedelta(milliseconds=20)


def test_a_scheduled_task_runs_once_per_fire_time_with_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.worker.heartbeats.WORKER_HEARTBEAT", SOON)
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)
    harbor = Harbor(driver)

    @harbor.schedule("0 * * * *")
    @harbor.task(queue="reports", timeout=60, max_attempts=2, priority=3)
    def hourly(pages: int = 7) -> int:
        return pages

    def done() -> list[Status]:
        return [job.status for job in driver.inspector.find(JobFilter(), limit=9).jobs]

    workers = [harbor.worker(poll=SOON) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        wait_until(lambda: "hourly" in driver.inspector.schedules())
        for times in (1, 2):
            clock.advance(timedelta(hours=1))
            wait_until(lambda times=times: done() == [Status.SUCCEEDED] * times)  # type: ignore[misc]
    finally:
        for worker in workers:
            worker.stop()

    newest, _ = driver.inspector.find(JobFilter(), limit=9).jobs
    job = driver.inspector.get([newest.id])[newest.id]
    assert (job.type, job.queue, job.timeout, job.max_attempts, job.priority, job.data) == (
        "hourly", "reports", timedelta(minutes=1), 2, 3, {},
    )  # fmt: skip


def test_a_schedule_fires_only_while_a_live_worker_declares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.worker.heartbeats.WORKER_HEARTBEAT", SOON)
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)
    with_schedule, without = Harbor(driver), Harbor(driver)

    @with_schedule.schedule("0 * * * *")
    @with_schedule.task
    def hourly() -> None: ...

    @without.task
    def greet() -> None: ...

    Scheduler(driver).put([ScheduleSpec(name="stored", cron="0 * * * *", type="greet", payload={})])

    with running(with_schedule):
        wait_until(lambda: "hourly" in driver.inspector.schedules())
        clock.advance(timedelta(hours=1))
        wait_until(lambda: len(fire_times(driver, "hourly")) == 1)
    with running(without):
        for times in (2, 3):
            clock.advance(timedelta(hours=1))
            wait_until(lambda times=times: len(fire_times(driver, "stored")) == times)  # type: ignore[misc]
        undeclared = len(fire_times(driver, "hourly"))  # "hourly" comes before "stored" in a tick
    with running(with_schedule):
        wait_until(lambda: len(fire_times(driver, "hourly")) == 2)  # both missed fire times, once

    assert undeclared == 1


def test_two_versions_that_declare_a_schedule_do_not_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.worker.heartbeats.WORKER_HEARTBEAT", SOON)
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)
    versions = [Harbor(driver), Harbor(driver)]
    for harbor, cron in zip(versions, ["0 2 * * *", "0 3 * * *"], strict=True):

        @harbor.schedule(cron)
        @harbor.task
        def nightly() -> None: ...

    def stored_cron() -> str | None:
        found = driver.inspector.schedules().get("nightly")
        return None if found is None else found.cron

    with running(versions[0]):
        wait_until(lambda: stored_cron() == "0 2 * * *")
        with running(versions[1]):
            wait_until(lambda: stored_cron() == "0 3 * * *")
            clock.advance(timedelta(seconds=1))
            wait_until(lambda: [each.seen_at for each in driver.inspector.workers()] == [clock.now()] * 2)

    assert stored_cron() == "0 3 * * *"


@contextmanager
def running(harbor: Harbor) -> Iterator[None]:
    worker = harbor.worker(poll=SOON)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def test_a_task_with_required_arguments_or_a_plain_function_cannot_be_scheduled(quick: Harbor) -> None:
    with pytest.raises(
        UsageError, match=r"schedule is 'report': .*missing a required argument: 'day'\): give them defaults"
    ):

        @quick.schedule("0 2 * * *")
        @quick.task
        def report(day: int) -> None: ...

    with pytest.raises(UsageError, match=r"schedule is 'nightly': it is not a task; write @harbor.schedule"):

        @quick.task  # type: ignore[type-var]
        @quick.schedule("0 2 * * *")
        def nightly() -> None: ...

    assert quick.schedules == {}


def test_duplicate_schedule_names_are_refused_except_for_a_redefined_task(quick: Harbor) -> None:
    def define(cron: str) -> Any:
        @quick.schedule(cron)
        @quick.task
        def nightly() -> None: ...

        return nightly

    define("0 2 * * *")
    nightly = define("0 3 * * *")
    assert quick.schedules["nightly"].cron == "0 3 * * *"

    with pytest.raises(UsageError, match=r"name is 'nightly': a schedule of 'nightly' has this name; set .* name="):
        quick.schedule("0 4 * * *")(nightly)
    quick.schedule("0 4 * * *", name="later")(nightly)
    assert sorted(quick.schedules) == ["later", "nightly"]
