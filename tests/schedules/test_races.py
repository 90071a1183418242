"""Two schedulers on one store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.schedules import Scheduler
from taskharbor.testing.clock import ManualClock
from tests.support.postgres import emptied
from tests.support.schedule_rig import HOUR, MINUTE, START, fire_times, hourly

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.drivers.base import Driver

LIMIT_SECONDS: Final = 30.0  # far more than a tick takes
ROUNDS: Final = 12
SCHEDULES: Final = 5


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(params=["sqlite", "postgres"])
def drivers(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[list[Driver]]:
    """Yield two connections to one store."""
    url = emptied() if request.param == "postgres" else ""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                closing(
                    PostgresDriver(url, clock=clock)
                    if url
                    else SqliteDriver(tmp_path / "jobs.db", clock=clock, synchronous="NORMAL")
                )
            )
            for _ in range(2)
        ]


def test_of_concurrent_schedulers_one_enqueues_the_job_of_each_fire_time(
    drivers: list[Driver], clock: ManualClock
) -> None:
    names = [f"minutely-{n}" for n in range(SCHEDULES)]
    Scheduler(drivers[0]).put([hourly(name, cron="* * * * *", missed="all") for name in names])
    together = threading.Barrier(len(drivers), timeout=LIMIT_SECONDS)

    def race(driver: Driver) -> None:
        scheduler = Scheduler(driver)
        for _ in range(ROUNDS):
            if together.wait() == 0:
                clock.advance(MINUTE)
            together.wait()
            scheduler.tick()

    with ThreadPoolExecutor(len(drivers)) as pool:
        for racer in [pool.submit(race, driver) for driver in drivers]:
            racer.result(LIMIT_SECONDS)

    expected = [START + n * MINUTE for n in range(1, ROUNDS + 1)]
    assert {name: fire_times(drivers[0], name) for name in names} == dict.fromkeys(names, expected)


def test_a_store_keeps_the_fields_that_overlap_and_missed_need(drivers: list[Driver], clock: ManualClock) -> None:
    first, second = map(Scheduler, drivers)
    first.put([hourly("skips", overlap="skip"), hourly("cancels", overlap="cancel"), hourly("all", missed="all")])

    clock.advance(HOUR)
    first.tick()
    clock.advance(2 * HOUR)
    second.tick()

    made = {name: [time.hour for time in fire_times(drivers[0], name)] for name in ("skips", "cancels", "all")}
    assert made == {"skips": [1], "cancels": [1, 3], "all": [1, 2, 3]}
    assert {each.next_at for each in drivers[0].inspector.schedules().values()} == {START + 3.5 * HOUR}


def test_a_schedule_fires_after_its_process_has_ended(drivers: list[Driver], clock: ManualClock) -> None:
    spec = hourly(payload={"a": [1, 2]}, jitter=MINUTE, timeout=timedelta(seconds=1.5))
    Scheduler(drivers[0]).put([spec])
    clock.advance(HOUR / 4)
    Scheduler(drivers[1]).put([spec])
    clock.advance(HOUR / 4)

    Scheduler(drivers[1]).tick()

    assert fire_times(drivers[1], "hourly") == [START + HOUR / 2]
