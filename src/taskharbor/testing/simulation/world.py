"""Virtual time, seeded randomness, and the scheduler that runs all simulated processes in one thread."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from taskharbor.core.ids import JobId, Token

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
MAX_WAIT_DEPTH: Final = 16
"""The number of nested waits that may run other calls. Each occupies frames of the one stack."""
CLOCK_DRIFT_FRACTION: Final = 0.01
WAIT_TOLERANCE_SECONDS: Final = 0.05
"""A wait that takes longer by more than this counts as a disturbance."""


class ProcessKilled(BaseException):
    """Raised in a killed process to unwind its stack. Nothing may suppress it."""


class Process:
    """A unit that is killed or paused as a whole. Its clock has a random start and a small drift."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0
        self.disturbed_at = -1e9
        """When it was last delayed."""
        self.waits: list[float] = []
        """The requested end of each of its current waits."""
        self.pending = 0
        self._starts_at = world.rng.uniform(0, 1e6)
        self._rate = 1 + world.rng.uniform(-CLOCK_DRIFT_FRACTION, CLOCK_DRIFT_FRACTION)

    def monotonic(self) -> float:
        return self._starts_at + self.world.now * self._rate

    def is_overdue(self) -> bool:
        """Return whether one of its waits should have ended, but a wait higher on the stack prevents that."""
        return any(end < self.world.now for end in self.waits)

    def last_disturbed(self) -> float:
        """Return when the process was last delayed: now, if one of its waits is overdue."""
        return self.world.now if self.is_overdue() else self.disturbed_at

    def is_disturbed(self, since: float) -> bool:
        """Return whether the process was delayed since then."""
        return self.last_disturbed() >= since

    def schedule(self, after: float, action: Callable[[], None]) -> ScheduledCall:
        """Schedule *action* *after* seconds of this process's own clock."""
        return self.world.schedule(self.world.now + after / self._rate, action, process=self)

    def kill(self) -> None:
        """Run none of its calls again. A process that kills itself must raise `ProcessKilled` next."""
        self.is_dead = True

    def pause(self, seconds: float) -> None:
        """Run none of its calls for *seconds*."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.disturbed_at = self.paused_until


class ScheduledCall:
    """A call scheduled at some time, unless it is canceled."""

    __slots__ = ("action", "process")

    def __init__(self, action: Callable[[], None], process: Process | None) -> None:
        self.action: Callable[[], None] | None = action
        self.process = process
        if process is not None:
            process.pending += 1

    def cancel(self) -> None:
        self.take()

    def take(self) -> Callable[[], None] | None:
        action, self.action = self.action, None
        if action is not None and self.process is not None:
            self.process.pending -= 1
        return action


class World:
    """The scheduler: runs one call at a time, by time, and calls of the same time in an order drawn from the seed.

    A call may `wait`. Others then run on top of it, on the same stack, so a wait may take
    longer than requested, as with a real scheduler.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  it must be repeatable
        self.now = 0.0
        self.jump = timedelta(0)
        """The offset of the store's clock."""
        self.jumped_at = -1e9
        self.unreported_jump = 0.0
        """Seconds that the store's clock jumped since a jump was last reported to the store."""
        self.unreported_set_back = 0.0
        """Seconds that it was set back since that was last reported. Two jumps may be reported as one forward jump."""
        self._scheduled: list[tuple[float, float, int, ScheduledCall]] = []
        self._count = 0
        self._current: Process | None = None
        self._depth = 0

    def true_time(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)

    def store_time(self) -> datetime:
        return self.true_time() + self.jump

    def jump_by(self, seconds: float) -> None:
        """Move the store's clock, and no other clock."""
        self.jump += timedelta(seconds=seconds)
        self.jumped_at = self.now
        self.unreported_jump += seconds
        self.unreported_set_back += max(0.0, -seconds)

    def token(self) -> Token:
        return Token(UUID(int=self.rng.getrandbits(128), version=4))

    def job_id(self) -> JobId:
        self._count += 1
        milliseconds, tail = int(self.now * 1000), self.rng.getrandbits(62)
        return JobId(UUID(int=milliseconds << 80 | 0x7 << 76 | (self._count & 0xFFF) << 64 | 0b10 << 62 | tail))

    def spend(self, seconds: float) -> None:
        """Advance time without running other calls."""
        self.now += seconds

    def schedule(self, when: float, action: Callable[[], None], *, process: Process | None = None) -> ScheduledCall:
        entry = ScheduledCall(action, process)
        self._put(when, entry)
        return entry

    def _put(self, when: float, entry: ScheduledCall) -> None:
        self._count += 1
        heappush(self._scheduled, (when, self.rng.random(), self._count, entry))

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Run scheduled calls for *seconds*, or *until* it returns true."""
        end = self.now + seconds
        while not until() and self._scheduled and self._scheduled[0][0] <= end:
            when, _, _, entry = heappop(self._scheduled)
            process = entry.process
            if entry.action is None or (process is not None and process.is_dead):
                entry.take()
            elif process is not None and process.paused_until > max(self.now, when):
                self._put(process.paused_until, entry)
            else:
                self.now = max(self.now, when)
                self._run_call(entry)
        if not until():
            self.now = max(self.now, end)

    def _run_call(self, entry: ScheduledCall) -> None:
        action, process = entry.take(), entry.process
        before, self._current = self._current, process
        self._depth += 1
        try:
            if action is not None:
                action()
        except ProcessKilled:
            if process is None or not process.is_dead:
                raise
        finally:
            self._depth -= 1
            self._current = before

    def wait(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Suspend the caller while other calls run. Raise `ProcessKilled` if its process was killed meanwhile."""
        process, end = self._current, self.now + seconds
        if process is not None:
            process.waits.append(end)
        if self._depth < MAX_WAIT_DEPTH:
            self.run(seconds, until=until)
        while process is not None and not process.is_dead and process.paused_until > self.now:
            self.run(process.paused_until - self.now)
        if process is not None:
            process.waits.remove(end)
            process.disturbed_at = max(
                process.disturbed_at, self.now if self.now > end + WAIT_TOLERANCE_SECONDS else -1e9
            )
            if process.is_dead:
                raise ProcessKilled


def short_name(value: Any) -> str:
    """Return a short name of an id or a token that is unique within one history."""
    return value.hex[-6:] if isinstance(value, UUID) else str(value)
