"""Retention by the janitor: its time limit, and schedules that no worker declares."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor import Harbor, Status
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.janitor import PRUNE_WITHIN, Janitor
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import TICK
from tests.conformance.test_drivers import memory

if TYPE_CHECKING:
    from taskharbor.runtime import Runtime

LEASE: Final = timedelta(seconds=30)
HOURS: Final = 10_000
"""The number of calls after which a janitor would have pruned for hours."""


class Clockwork:
    """A clock that advances only during a prune."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_janitor_with_endless_old_jobs_returns_to_its_other_duties(monkeypatch: pytest.MonkeyPatch) -> None:
    clockwork, driver = Clockwork(), MemoryDriver(clock=ManualClock())
    asked: list[dict[str, Any]] = []

    def prune(**how: Any) -> int:
        asked.append(how)
        clockwork.seconds += how["within"].total_seconds() / 2
        return STORE_BATCH if len(asked) < HOURS else 0

    monkeypatch.setattr(driver.maintenance, "prune", prune)

    Janitor(cast("Runtime", clockwork), driver, lease=LEASE).tick()

    assert len(asked) == 2
    assert {each["within"] for each in asked} == {PRUNE_WITHIN}
    assert clockwork.seconds < LEASE.total_seconds() / 3


def test_a_janitor_removes_schedules_undeclared_for_thirty_days(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)
    spec = ScheduleSpec(name="hourly", cron="0 * * * *", type="report")
    Scheduler(driver).declare([spec])
    Scheduler(driver).put([replace(spec, name="by-hand")])

    clock.advance(timedelta(days=30) - TICK)
    Janitor(cast("Runtime", Clockwork()), driver, lease=LEASE).tick()
    too_early = sorted(driver.inspector.schedules())
    clock.advance(timedelta(minutes=1))
    with caplog.at_level("INFO"):
        Janitor(cast("Runtime", Clockwork()), driver, lease=LEASE).tick()

    assert too_early == ["by-hand", "hourly"]
    assert [*driver.inspector.schedules()] == ["by-hand"]
    assert "removed schedules that no worker has declared for 30 days: 1" in caplog.messages


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {Status.DEAD}),
        ({"keep": timedelta(days=30)}, {Status.SUCCEEDED, Status.DEAD}),
        ({"keep_dead": timedelta(days=10)}, set[Status]()),
        ({"keep_dead": timedelta(days=30)}, {Status.DEAD}),
    ],
)
def test_finished_jobs_and_dead_letters_have_their_own_retention(given: dict[str, Any], kept: set[Status]) -> None:
    subject = memory()
    driver = subject.driver
    done, dead = subject.bring(Status.SUCCEEDED), subject.bring(Status.DEAD)
    driver.maintenance.close_outbox("none", unseen_for=TICK, older_than=timedelta(0), limit=9)

    subject.advance(timedelta(days=10))
    Harbor(driver).worker(**given)._janitor.tick()  # type: ignore[union-attr]  # noqa: SLF001  without its loop

    assert {job.status for job in driver.inspector.get([done, dead]).values()} == kept


def test_a_janitor_resumes_a_queue_whose_pause_has_ended() -> None:
    clock, clockwork = ManualClock(), Clockwork()
    driver = MemoryDriver(clock=clock)
    driver.control.pause(["mail"], by="ana", lasts=timedelta(minutes=30))
    driver.control.pause(["images"], by="ana")
    janitor = Janitor(cast("Runtime", clockwork), driver, lease=LEASE)

    def tick_after(passed: timedelta) -> list[str]:
        clock.advance(passed)
        clockwork.seconds += passed.total_seconds()
        janitor.tick()
        return [queue.name for queue in driver.inspector.queues()]

    assert tick_after(timedelta(minutes=29)) == ["images", "mail"]
    assert tick_after(timedelta(minutes=1)) == ["images"]
    [entry] = driver.inspector.audit(limit=10)
    assert (entry.actor, entry.action, entry.target) == ("janitor", "queues.resume", "mail")
