"""A simulated day of three schedulers that are killed often, between any two store calls."""

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
SCHEDULERS: Final = 3
KILL_FRACTION: Final = 0.05  # of all calls, before or after they take effect
ERROR_FRACTION: Final = 0.03  # of all calls; they raise before or after they take effect
OVERLAP_FRACTION: Final = 0.3  # of all calls; another scheduler ticks before or after them


class Killed(BaseException):
    """The process was killed. Nothing that it runs may catch this."""


@dataclass(frozen=True, slots=True)
class Verdict:
    restarts: int
    made: int
    missing: int
    doubled: int
    unwanted: int


class SchedulerDay:
    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._clock = ManualClock(START)
        self._store = MemoryDriver(clock=self._clock)
        self._specs = [
            ScheduleSpec(name=f"s{n}", cron=cron, timezone=ZONE, type="run", missed="all")
            for n, cron in enumerate(CRONS)
        ]
        self._busy: set[int] = set()
        self._restarts = 0
        Scheduler(self._store).put(self._specs)
        self._schedulers = [self._new_scheduler(n) for n in range(SCHEDULERS)]

    def live(self) -> Verdict:
        while self._clock.now() < END:
            self._tick(self._rng.randrange(SCHEDULERS))
            left = END - self._clock.now()
            self._clock.advance(min(left, timedelta(seconds=self._rng.expovariate(1 / 40))))
        Scheduler(self._store).tick()  # one that is not killed
        return self._verdict()

    def _new_scheduler(self, n: int) -> Scheduler:
        return Scheduler(meddled(self._store, lambda verb, call: self._meddle(n, verb, call)))

    def _tick(self, n: int) -> None:
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
        """Start a new scheduler and put its schedules, which may be killed, too."""
        self._restarts += 1
        self._schedulers[n] = self._new_scheduler(n)
        try:
            self._schedulers[n].put(self._specs)
        except StoreUnavailable:
            pass
        except Killed:
            self._restart(n)

    def _meddle(self, n: int, _verb: str, call: Callable[[], Any]) -> Any:
        self._maybe_tick_another(n)
        self._maybe_fail()
        answer = call()
        self._maybe_fail()
        self._maybe_tick_another(n)
        return answer

    def _maybe_fail(self) -> None:
        drawn = self._rng.random()
        if drawn < KILL_FRACTION / 2:
            raise Killed
        if drawn < (KILL_FRACTION + ERROR_FRACTION) / 2:
            raise StoreUnavailable("failed by a test")

    def _maybe_tick_another(self, n: int) -> None:
        free = [each for each in range(SCHEDULERS) if each != n and each not in self._busy]
        if free and self._rng.random() < OVERLAP_FRACTION / 2:
            self._clock.advance(timedelta(seconds=self._rng.random()))
            self._tick(self._rng.choice(free))

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
