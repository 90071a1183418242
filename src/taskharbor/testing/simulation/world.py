"""One thread, one seed, and time that moves when there is nothing left to do at the present moment."""

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
DEEPEST: Final = 16
"""How many may wait at once in the middle of what they do. Each is a frame on the one stack there is."""
DRIFT: Final = 0.01
BARELY: Final = 0.05
"""Seconds that a wait may take longer without anybody being the worse for it."""


class ProcessKilled(BaseException):
    """Ends whatever a killed process was doing. Nothing may catch it for good: the process is gone."""


class Process:
    """Something that can be killed or paused as a whole. Its own clock starts anywhere, and runs a little off."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0
        self.disturbed_at = -1e9
        """When it last stood still in the middle of something."""
        self.waits: list[float] = []
        """Until when those of its threads wanted to wait that do."""
        self.pending = 0
        self._starts_at = world.chance.uniform(0, 1e6)
        self._rate = 1 + world.chance.uniform(-DRIFT, DRIFT)

    def monotonic(self) -> float:
        return self._starts_at + self.world.now * self._rate

    def is_overdue(self) -> bool:
        """Whether one of its threads has waited long enough, and somebody on top of it keeps it from going on."""
        return any(end < self.world.now for end in self.waits)

    def last_disturbed(self) -> float:
        """Return when something last kept it from its work: now, if something does."""
        return self.world.now if self.is_overdue() else self.disturbed_at

    def is_disturbed(self, since: float) -> bool:
        """Whether something kept it from its work since then."""
        return self.last_disturbed() >= since

    def schedule(self, after: float, action: Callable[[], None]) -> ScheduledCall:
        """Let *action* come *after* seconds of this process's own clock."""
        return self.world.schedule(self.world.now + after / self._rate, action, process=self)

    def kill(self) -> None:
        """Let nothing of it happen ever again. Whoever does this to itself raises `ProcessKilled` next."""
        self.is_dead = True

    def pause(self, seconds: float) -> None:
        """Let nothing of it happen for a while."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.disturbed_at = self.paused_until


class ScheduledCall:
    """Something that will happen, unless it is called off."""

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
    """Lets things happen, one at a time: by their time, and those of one moment in an order drawn from the seed.

    What happens may wait in the middle (`wait`): the others go on meanwhile, on top of it on
    the same stack. So whoever waits may be kept longer than it asked for, as by a real scheduler.
    """

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311  repeatable is what it must be
        self.now = 0.0
        self.jump = timedelta(0)
        """How far the store's clock strays."""
        self.jumped_at = -1e9
        self.untold = 0.0
        """By how many seconds the store's clock jumped since somebody last told the store."""
        self.lag = 0.0
        """By how many it was set back since the store last heard of that: two jumps may look like one ahead."""
        self._coming: list[tuple[float, float, int, ScheduledCall]] = []
        self._count = 0
        self._current: Process | None = None
        self._depth = 0

    def true_time(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)

    def store_time(self) -> datetime:
        return self.true_time() + self.jump

    def jump_by(self, seconds: float) -> None:
        """Let the store's clock, and no other, jump."""
        self.jump += timedelta(seconds=seconds)
        self.jumped_at = self.now
        self.untold += seconds
        self.lag += max(0.0, -seconds)

    def token(self) -> Token:
        return Token(UUID(int=self.chance.getrandbits(128), version=4))

    def job_id(self) -> JobId:
        self._count += 1
        milliseconds, tail = int(self.now * 1000), self.chance.getrandbits(62)
        return JobId(UUID(int=milliseconds << 80 | 0x7 << 76 | (self._count & 0xFFF) << 64 | 0b10 << 62 | tail))

    def spend(self, seconds: float) -> None:
        """Let time pass in which nobody else gets his turn."""
        self.now += seconds

    def schedule(self, when: float, action: Callable[[], None], *, process: Process | None = None) -> ScheduledCall:
        entry = ScheduledCall(action, process)
        self._put(when, entry)
        return entry

    def _put(self, when: float, entry: ScheduledCall) -> None:
        self._count += 1
        heappush(self._coming, (when, self.chance.random(), self._count, entry))

    def run(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Let things happen for so long, or *until* something is true."""
        end = self.now + seconds
        while not until() and self._coming and self._coming[0][0] <= end:
            when, _, _, entry = heappop(self._coming)
            process = entry.process
            if entry.action is None or (process is not None and process.is_dead):
                entry.take()
            elif process is not None and process.paused_until > max(self.now, when):
                self._put(process.paused_until, entry)
            else:
                self.now = max(self.now, when)
                self._happen(entry)
        if not until():
            self.now = max(self.now, end)

    def _happen(self, entry: ScheduledCall) -> None:
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
        """Let whoever calls this stand still, while the others go on. A process that was killed meanwhile ends here."""
        process, end = self._current, self.now + seconds
        if process is not None:
            process.waits.append(end)
        if self._depth < DEEPEST:
            self.run(seconds, until=until)
        while process is not None and not process.is_dead and process.paused_until > self.now:
            self.run(process.paused_until - self.now)
        if process is not None:
            process.waits.remove(end)
            process.disturbed_at = max(process.disturbed_at, self.now if self.now > end + BARELY else -1e9)
            if process.is_dead:
                raise ProcessKilled


def shown(value: Any) -> str:
    """Return a short name of an id or a token: enough to tell them apart in one history."""
    return value.hex[-6:] if isinstance(value, UUID) else str(value)
