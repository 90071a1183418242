"""A day in the life of three schedulers that die between any two calls of the store, and often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.testing.clock import ManualClock
from tests.support.cron_oracle import MINUTE, walk
from tests.support.schedule_rig import fire_times
from tests.support.worker_rig import meddled

if TYPE_CHECKING:
    from collections.abc import Callable

ZONE: Final = "Europe/Paris"
START: Final = datetime(2030, 3, 30, 12, 0, 1, tzinfo=UTC)  # clocks go forward in the night that follows
END: Final = START + timedelta(days=1)
CRONS: Final = ["*/5 * * * *", "0 * * * *", "30 2 * * *", "15,45 1-3 * * *", "40 */2 * * *"]
AT_ONCE: Final = 3
DEATHS: Final = 0.05  # of all calls, before or after they took effect
CUTS: Final = 0.03  # calls that raise, having taken effect or not
MEETINGS: Final = 0.3  # calls during which another scheduler has its turn


class Killed(BaseException):
    """The process is gone. Nothing that it runs may catch this."""


@dataclass(frozen=True, slots=True)
class Verdict:
    restarts: int
    made: int
    missing: int
    doubled: int
    unwanted: int


class SchedulerDay:
    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._clock = ManualClock(START)
        self._store = MemoryDriver(clock=self._clock)
        self._specs = [
            ScheduleSpec(name=f"s{n}", cron=cron, timezone=ZONE, type="run", missed="all")
            for n, cron in enumerate(CRONS)
        ]
        self._busy: set[int] = set()
        self._restarts = 0
        Scheduler(self._store).put(self._specs)
        self._schedulers = [self._born(n) for n in range(AT_ONCE)]

    def live(self) -> Verdict:
        while self._clock.now() < END:
            self._let_tick(self._chance.randrange(AT_ONCE))
            left = END - self._clock.now()
            self._clock.advance(min(left, timedelta(seconds=self._chance.expovariate(1 / 40))))
        Scheduler(self._store).tick()  # one that lives long enough
        return self._verdict()

    def _born(self, n: int) -> Scheduler:
        return Scheduler(meddled(self._store, lambda verb, call: self._meddle(n, verb, call)))

    def _let_tick(self, n: int) -> None:
        self._busy.add(n)
        try:
            self._schedulers[n].tick()
        except StoreUnavailable:
            pass
        except Killed:
            self._restart(n)
        finally:
            self._busy.discard(n)

    def _restart(self, n: int) -> None:
        """Begin as every process does, and be killed at that, too."""
        self._restarts += 1
        self._schedulers[n] = self._born(n)
        try:
            self._schedulers[n].put(self._specs)
        except StoreUnavailable:
            pass
        except Killed:
            self._restart(n)

    def _meddle(self, n: int, _verb: str, call: Callable[[], Any]) -> Any:
        self._perhaps_somebody_else(n)
        self._perhaps_the_end()
        answer = call()
        self._perhaps_the_end()
        self._perhaps_somebody_else(n)
        return answer

    def _perhaps_the_end(self) -> None:
        luck = self._chance.random()
        if luck < DEATHS / 2:
            raise Killed
        if luck < (DEATHS + CUTS) / 2:
            raise StoreUnavailable("cut by a test")

    def _perhaps_somebody_else(self, n: int) -> None:
        free = [each for each in range(AT_ONCE) if each != n and each not in self._busy]
        if free and self._chance.random() < MEETINGS / 2:
            self._clock.advance(timedelta(seconds=self._chance.random()))
            self._let_tick(self._chance.choice(free))

    def _verdict(self) -> Verdict:
        first = START.replace(second=0) + MINUTE
        wanted = walk(ZoneInfo(ZONE), first, self._clock.now().replace(second=0, microsecond=0) + MINUTE)
        expected = Counter((f"s{n}", fire) for n, cron in enumerate(CRONS) for fire in wanted[cron])
        made = Counter((f"s{n}", fire) for n in range(len(CRONS)) for fire in fire_times(self._store, f"s{n}"))
        return Verdict(
            restarts=self._restarts,
            made=made.total(),
            missing=len(expected - made),
            doubled=sum(count - 1 for count in made.values()),
            unwanted=len(made.keys() - expected.keys()),
        )
