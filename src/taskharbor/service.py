"""Run services until a signal, in an interpreter tuned for them."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.runtime import Runtime, ServiceLoop

SWITCH_INTERVAL_SECONDS: Final = 0.0005
"""The thread switch interval. Python's default of 0.005 halves the throughput of several busy threads."""
GC_THRESHOLD: Final = 20_000
"""Allocations between garbage collections. Python's default of 700 costs a busy worker a fifth of its time."""
SIGNAL_EXIT_BASE: Final = 128
"""Added to the number of a signal to get an exit code, as shells do."""
LOST_SLOTS_EXIT: Final = 12
"""The exit code of a worker that stopped because half of its slots were lost to handlers that do not return."""
SIGNAL_POLL_SECONDS: Final = 0.2
STOP_TIMEOUT: Final = timedelta(seconds=25)


def run_until_signal(start: Callable[[], None], stop: Callable[[], None], *, is_over: Callable[[], bool]) -> None:
    """Call *start*, wait for SIGTERM, SIGINT or *is_over*, and call *stop*. A second signal exits at once.

    Both signals are handled explicitly because process 1 has no default handlers.
    """
    # Not an Event: the waiting thread holds its lock briefly, and a signal handled in that thread
    # at that point would deadlock. SimpleQueue is reentrant.
    signals: SimpleQueue[int] = SimpleQueue()
    received: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        if received:
            os._exit(SIGNAL_EXIT_BASE + number)
        received.append(number)
        signals.put(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with tuned_interpreter():
            start()
            while not _received(signals) and not is_over():
                pass
            if not is_over():
                stop()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def tuned_interpreter() -> Iterator[None]:
    """Set the thread switch interval and garbage collection for a process that only runs services."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        sys.setswitchinterval(interval)


class ServiceLoops:
    """Named loops that run together, from `start` to `stop`.

    A loop named ``source:mail`` belongs to the group ``source``; `wake` takes the name of a loop or of a group.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._ticks: dict[str, Callable[[], timedelta | None]] = {}
        self._on_demand: dict[str, Callable[[], timedelta | None]] = {}
        self._loops: dict[str, ServiceLoop] = {}
        self._groups: dict[str, list[ServiceLoop]] = {}
        self.is_started = self.is_stopped = False

    def add(self, name: str, tick: Callable[[], timedelta | None], *, on_demand: bool = False) -> None:
        """Register a loop. One that is *on_demand* is not started by `start`, and outlives `stop`."""
        (self._on_demand if on_demand else self._ticks)[name] = tick

    def start(self) -> None:
        self.is_started = True
        for name, tick in self._ticks.items():
            loop = self._loops[name] = self._runtime.serve(name, self._unless_stopped(tick))
            for key in dict.fromkeys((name, name.partition(":")[0])):
                self._groups.setdefault(key, []).append(loop)

    def start_on_demand(self, name: str) -> None:
        """Start this loop unless it was started before."""
        with self._lock:
            if name not in self._loops:
                self._loops[name] = self._runtime.serve(name, self._on_demand[name])

    def wake(self, name: str) -> None:
        """End the pause of a loop or of a group; it does nothing before `start`."""
        for loop in self._groups.get(name, ()):
            loop.wake()

    def wake_all(self) -> None:
        for name in self._ticks:
            self.wake(name)

    def join(self, name: str, timeout: timedelta) -> None:
        """Wait until this loop has ended, if it was started."""
        if (loop := self._loops.get(name)) is not None:
            loop.join(timeout)

    def join_all(self, timeout: timedelta) -> None:
        """Wait for each loop that `start` has started."""
        for name in self._ticks:
            self.join(name, timeout)

    def stop(self) -> None:
        """Let the current ticks be the last, and wait for them."""
        self.begin_stop()
        self.join_all(STOP_TIMEOUT)

    def begin_stop(self) -> None:
        """Let the current ticks be the last, and return immediately."""
        self.is_stopped = True
        self.wake_all()

    def _unless_stopped(self, tick: Callable[[], timedelta | None]) -> Callable[[], timedelta | None]:
        return lambda: None if self.is_stopped else tick()


def tick_until_signal(runtime: Runtime, name: str, tick: Callable[[], timedelta]) -> None:
    """Run one tick in a loop until SIGTERM or SIGINT, and finish the current tick."""
    loops = ServiceLoops(runtime)
    loops.add(name, tick)
    run_until_signal(loops.start, loops.stop, is_over=lambda: False)


def _received(signals: SimpleQueue[int]) -> bool:
    try:
        signals.get(timeout=SIGNAL_POLL_SECONDS)
    except Empty:
        return False
    return True
