"""Claims ahead of free slots: how many jobs to claim, and where they wait until a running handler ends."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from taskharbor.runtime import MIN_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.runtime import Runtime
    from taskharbor.worker.execution import Execution

HORIZON_SECONDS: Final = 0.05
"""A worker claims ahead what it will run within this time. So long does a job of higher priority wait at most."""
LEASE_FRACTION: Final = 0.1
"""The horizon is at most this part of the lease."""
WINDOW_SECONDS: Final = 0.02
"""The shortest time over which the rate of recorded attempts is measured."""
MAX_WAIT_HORIZONS: Final = 4
"""After how many horizons without a free place all waiting jobs are released: the handlers have become slower."""
LOW_STOCK_FRACTION: Final = 0.5
"""While more than this part of the claimed-ahead jobs waits, no more are claimed: otherwise each freed slot would be
filled by a statement of its own."""


class Prefetch:
    """The number of running handlers, and the claimed jobs that wait until there are fewer than *concurrency*.

    The rate of recorded attempts decides how many jobs are claimed ahead, at most *limit*. There are none unless
    the worker records as many attempts as it has slots within the horizon. A claim takes a few milliseconds, so a
    worker with longer handlers would gain nothing, and a worker with free slots has no use for them.
    """

    def __init__(self, runtime: Runtime, *, concurrency: int, limit: int, lease: timedelta) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._concurrency, self._limit = concurrency, limit
        self._horizon = min(HORIZON_SECONDS, lease.total_seconds() * LEASE_FRACTION)
        self._waiting: deque[tuple[Execution, float]] = deque()  # with the time of its arrival
        self._running = self._recorded = self._expected = self._ahead = 0
        self._measured_at, self._measured_recorded = runtime.monotonic(), 0

    def ahead(self) -> int:
        """Return how many jobs to claim beyond the free slots, by the rate since the last measurement."""
        if not self._limit:
            return 0
        elapsed = self._runtime.monotonic() - self._measured_at
        if elapsed >= WINDOW_SECONDS:
            self._measure(int((self._recorded - self._measured_recorded) / elapsed * self._horizon))
        return self._ahead

    def _measure(self, expected: int) -> None:
        """Decide by the lower of the last two measurements: one may be a chance, as of handlers that end together."""
        lower, self._expected = min(expected, self._expected), expected
        self._ahead = min(lower, self._limit) if lower >= self._concurrency else 0
        self._measured_at, self._measured_recorded = self._runtime.monotonic(), self._recorded

    @property
    def is_stocked(self) -> bool:
        """Whether so many jobs wait that no more must be claimed yet."""
        return len(self._waiting) > self._ahead * LOW_STOCK_FRACTION

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self._waiting)

    def admit(self, executions: Sequence[Execution]) -> Sequence[Execution]:
        """Return those of *executions* that may run now, and count them as running; let the others wait.

        Those that may run must not be seen as waiting, even for a moment: a freed slot would not wake the source.
        """
        now = self._runtime.monotonic()
        with self._lock:
            count = 0 if self._waiting else min(self._concurrency - self._running, len(executions))
            self._running += count
            self._waiting.extend((execution, now) for execution in executions[count:])
        return executions[:count]

    def take(self) -> list[Execution]:
        """Remove the next jobs that may run, and count them as running: `end` must follow for each."""
        with self._lock:
            count = min(self._concurrency - self._running, len(self._waiting))
            self._running += count
            return [self._waiting.popleft()[0] for _ in range(count)]

    def take_ahead(self, count: int, is_fit: Callable[[Execution], bool]) -> list[Execution]:
        """Remove up to *count* of the next jobs, as long as they are fit to run in the place of another after it."""
        taken: list[Execution] = []
        if count > 0 and self._waiting:
            with self._lock:
                while len(taken) < count and self._waiting and is_fit(self._waiting[0][0]):
                    taken.append(self._waiting.popleft()[0])
        return taken

    def put_back(self, executions: Sequence[Execution]) -> None:
        """Let jobs of `take_ahead` wait again, before all others."""
        now = self._runtime.monotonic()
        with self._lock:
            self._waiting.extendleft((execution, now) for execution in reversed(executions))

    def end(self, count: int = 1) -> bool:
        """Count taken jobs as no longer running; return whether others wait."""
        with self._lock:
            self._running -= count
            return bool(self._waiting)

    def count_recorded(self, attempts: int) -> None:
        """Count attempts whose outcomes were recorded, for the rate. While the store records none, it is zero."""
        self._recorded += attempts

    def remove_waiting(self) -> list[Execution]:
        """Remove all jobs that wait: no handler of theirs will begin."""
        with self._lock:
            removed = [execution for execution, _ in self._waiting]
            self._waiting.clear()
            return removed

    def remove_overdue(self) -> list[Execution]:
        """Remove all jobs that wait if the first has waited for too long: another worker may be idle.

        None are claimed ahead before the next measurement.
        """
        if self._waiting and self._seconds_left() <= 0:
            self._measure(0)
            return self.remove_waiting()
        return []

    def shortened(self, pause: timedelta) -> timedelta:
        """Return *pause*, or less if the first waiting job will be overdue before its end."""
        seconds = self._seconds_left()
        # A pause below a microsecond would be rounded to zero, and the next tick would find nothing overdue.
        return pause if seconds == inf else min(pause, max(timedelta(seconds=seconds), MIN_PAUSE))

    def _seconds_left(self) -> float:
        """Return in how many seconds the first waiting job will be overdue; `inf` if none waits."""
        with self._lock:
            since = self._waiting[0][1] if self._waiting else inf
        return since + MAX_WAIT_HORIZONS * self._horizon - self._runtime.monotonic()
