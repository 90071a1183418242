"""The life of a schedule that code declares, with real workers that are replaced by others."""

from __future__ import annotations

import signal
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Status
from taskharbor.core.results import JobFilter
from taskharbor.drivers.connect import connect
from taskharbor.schedules import Scheduler, ScheduleSpec
from tests.cli.test_worker import started
from tests.support.cli_processes import LIMIT_SECONDS
from tests.support.console import Console
from tests.support.postgres import database
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.drivers.base import Driver
    from tests.support.cli_processes import Started

WITHOUT: Final = """
from taskharbor import Harbor

shop = app = Harbor()

@shop.task
def greet() -> None: ...
"""
WITH: Final = f"""{WITHOUT}
@shop.schedule("0 0 1 1 *")
@shop.task
def yearly() -> None: ...
"""
BY_HAND: Final = ScheduleSpec(name="by-hand", cron="0 0 1 1 *", type="greet", payload={})


@pytest.fixture(params=["sqlite", "postgres"])
def console(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Console]:
    if request.param == "sqlite":
        connect(url := f"sqlite:///{tmp_path}/jobs.db").close()
        made = Console(url, capsys)
        with closing(made.driver):
            yield made
        return
    with database() as url, closing((made := Console(url, capsys)).driver):
        yield made


def test_a_schedule_fires_until_its_worker_is_replaced_by_one_without_it(console: Console, tmp_path: Path) -> None:
    driver, command = console.driver, ("worker", "shop.py", "--url", console.url)
    Scheduler(driver).put([BY_HAND])
    with started(tmp_path, *command, app=WITH) as first:
        wait_until(lambda: states(console) == {"by-hand": "active", "yearly": "active"})
        make_due(driver, "yearly")
        wait_until(lambda: len(done(driver, "yearly")) == 1)
        stop(first)

    assert states(console) == {"by-hand": "active", "yearly": "undeclared"}
    with started(tmp_path, *command, app=WITHOUT) as second:
        make_due(driver, "yearly")
        make_due(driver, "by-hand")  # it comes later in the same tick, or in the next one
        wait_until(lambda: len(done(driver, "by-hand")) == 1)
        stop(second)

    assert len(done(driver, "yearly")) == 1
    assert console("jobs", "list", "--type", "yearly", "--json").data["jobs"][1:] == []
    with started(tmp_path, *command, app=WITH) as third:
        wait_until(lambda: len(done(driver, "yearly")) == 2)  # the fire time that was missed
        stop(third)
    assert console("schedules", "delete", "yearly").code == 0
    assert states(console) == {"by-hand": "active"}


def stop(worker: Started) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(LIMIT_SECONDS) == 0


def make_due(driver: Driver, name: str) -> None:
    next_at = driver.inspector.schedules()[name].next_at
    assert next_at is not None
    now = driver.inspector.now()
    assert driver.maintenance.advance_schedule(name, fired=next_at, next_at=now - timedelta(seconds=1))


def states(console: Console) -> dict[str, str]:
    return {each["name"]: each["state"] for each in console("schedules", "list", "--json").data["schedules"]}


def done(driver: Driver, schedule: str) -> list[object]:
    wanted = JobFilter(tag=("schedule", schedule), statuses=frozenset({Status.SUCCEEDED}))
    return [*driver.inspector.find(wanted, limit=9).jobs]
