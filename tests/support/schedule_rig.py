"""A memory store with a manual clock, a scheduler on it, and helpers that read the jobs it created."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Settlement
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.testing.clock import ManualClock

if TYPE_CHECKING:
    from taskharbor.core.model import Job, Schedule
    from taskharbor.drivers.base import Driver

START: Final = datetime(2030, 1, 1, 0, 30, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)
SECOND: Final = timedelta(seconds=1)


def hourly(name: str = "hourly", **fields: Any) -> ScheduleSpec:
    return ScheduleSpec(**{"name": name, "cron": "0 * * * *", "type": "clean"} | fields)


def made(driver: Driver) -> list[Job]:
    """Return all jobs, oldest first."""
    found = driver.inspector.find(JobFilter(), limit=10_000).jobs[::-1]
    return list(driver.inspector.get([job.id for job in found]).values())


def fire_times(driver: Driver, schedule: str) -> list[datetime]:
    """Return the fire times that have jobs, one for each job, in order."""
    of_schedule = [job.metadata for job in made(driver) if job.metadata["schedule"] == schedule]
    return sorted(datetime.fromisoformat(metadata["fire_time"]) for metadata in of_schedule)


@dataclass
class ScheduleRig:
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))

    def __post_init__(self) -> None:
        self.driver: Driver = MemoryDriver(clock=self.clock)
        self.scheduler = Scheduler(self.driver)

    def pass_by(self, time: timedelta) -> None:
        self.clock.advance(time)
        self.scheduler.tick()

    def reach(self, hour: int) -> None:
        """Advance the clock to the full *hour*, and tick."""
        self.pass_by(START.replace(hour=hour, minute=0) - self.clock.now())

    def schedule(self, name: str = "hourly") -> Schedule:
        return self.driver.inspector.schedules()[name]

    def hours(self, name: str = "hourly") -> list[int]:
        """Return the hours of the fire times that have jobs."""
        return [time.hour for time in fire_times(self.driver, name)]

    def run_next(self) -> None:
        """Reserve the next due job and acknowledge it."""
        [claim] = self.driver.reserve(
            "default", token=new_token(), worker="w", lease=MINUTE, limit=1, overdue_after=HOUR
        )
        self.driver.settle([Settlement(claim.lease, Outcome.ack())])
