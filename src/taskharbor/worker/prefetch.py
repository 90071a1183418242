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
MAX_GROWTH: Final = 2.0
"""How many times the recorded attempts of a horizon may be claimed ahead. They may be few because jobs were missing."""
MIN_STOCKED_SECONDS: Final = 0.001
"""If jobs have waited for a shorter time, it does not show how fast waiting jobs begin."""
CERTAIN_ROUNDS: Final = 4
"""If each slot was used so often in one window, that is no chance: handlers that end together use it twice."""


class Prefetch:
    """The number of running handlers, and the claimed jobs that wait until there are fewer than *concurrency*.

    The rate of recorded attempts decides how many jobs are claimed ahead, at most *limit*. There are none unless
    the worker records as many attempts as it has slots within the horizon. A claim takes a few milliseconds, so a
    worker with longer handlers would gain nothing, and a worker with free slots has no use for them.

    That rate is too low if handlers run out of jobs. So while jobs wait, the rate at which they begin decides, up to
    `MAX_GROWTH` times the other one. A removal that leaves so few that the source may claim again calls *on_low*.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        concurrency: int,
        limit: int,
        lease: timedelta,
        on_low: Callable[[], None] = lambda: None,
    ) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._concurrency, self._limit = concurrency, limit
        self._horizon = min(HORIZON_SECONDS, lease.total_seconds() * LEASE_FRACTION)
        self._on_low = on_low
        self._waiting: deque[tuple[Execution, float]] = deque()  # with the time of its arrival
        self._running = self._recorded = self._expected = self._ahead = 0
        self._measured_at, self._measured_recorded = runtime.monotonic(), 0
        self._begun, self._stocked_seconds = (
            0,
            0.0,
        )  # since the measurement: waiting jobs that began, and how long any waited
        self._stocked_at = 0.0  # since when jobs wait, if any does

    def ahead(self) -> int:
        """Return how many jobs to claim beyond the free slots, by the rates since the last measurement."""
        if not self._limit:
            return 0
        elapsed = self._runtime.monotonic() - self._measured_at
        recorded = self._recorded - self._measured_recorded
        # None recorded says something only after a while: they are recorded a thousand at a time.
        if elapsed >= (WINDOW_SECONDS if recorded else MAX_WAIT_HORIZONS * self._horizon):
            self._measure(int(self._run_within_horizon(recorded, elapsed)))
        return self._ahead

    def _run_within_horizon(self, recorded: int, elapsed: float) -> float:
        """Return how many jobs the worker would run within the horizon if some waited at any time."""
        expected = recorded / elapsed * self._horizon
        with self._lock:
            stocked = self._stocked_seconds
            stocked += self._runtime.monotonic() - self._stocked_at if self._waiting else 0.0
            if stocked < MIN_STOCKED_SECONDS:
                return expected
            return min(self._begun / stocked * self._horizon, MAX_GROWTH * expected)

    def _measure(self, expected: int) -> None:
        """Decide by the lower of the last two measurements: one may be a chance, as of handlers that end together."""
        recorded = self._recorded - self._measured_recorded
        is_certain = recorded >= CERTAIN_ROUNDS * self._concurrency
        lower, self._expected = expected if is_certain else min(expected, self._expected), expected
        self._ahead = min(lower, self._limit) if lower >= self._concurrency else 0
        with self._lock:
            self._measured_at, self._measured_recorded = self._runtime.monotonic(), self._recorded
            self._begun, self._stocked_seconds, self._stocked_at = 0, 0.0, self._measured_at

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
            self._stocked_at = self._stocked_at if self._waiting else now
            self._waiting.extend((execution, now) for execution in executions[count:])
        return executions[:count]

    def take(self) -> list[Execution]:
        """Remove the next jobs that may run, and count them as running: `end` must follow for each."""
        with self._lock:
            count = min(self._concurrency - self._running, len(self._waiting))
            self._running += count
            was_stocked = self.is_stocked
            taken = [self._waiting.popleft()[0] for _ in range(count)]
            self._count_begun(count)
            is_low = was_stocked and not self.is_stocked
        if is_low:
            self._on_low()
        return taken

    def _count_begun(self, count: int) -> None:
        self._begun += count
        if count and not self._waiting:
            self._stocked_seconds += self._runtime.monotonic() - self._stocked_at

    def take_ahead(self, count: int, is_fit: Callable[[Execution], bool]) -> list[Execution]:
        """Remove up to *count* of the next jobs, as long as they are fit to run in the place of another after it."""
        taken: list[Execution] = []
        is_low = False
        if count > 0 and self._waiting:
            with self._lock:
                was_stocked = self.is_stocked
                while len(taken) < count and self._waiting and is_fit(self._waiting[0][0]):
                    taken.append(self._waiting.popleft()[0])
                self._count_begun(len(taken))
                is_low = was_stocked and not self.is_stocked
        if is_low:
            self._on_low()
        return taken

    def put_back(self, executions: Sequence[Execution]) -> None:
        """Let jobs of `take_ahead` wait again, before all others."""
        now = self._runtime.monotonic()
        with self._lock:
            self._stocked_at = self._stocked_at if self._waiting else now
            self._begun -= len(executions)
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
