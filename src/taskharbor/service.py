"""Run services until a signal, in an interpreter tuned for them."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from taskharbor.observability.failure_log import FailureLog
from taskharbor.observability.hook_caller import NO_HOOKS
from taskharbor.observability.log_guard import guard_loggers
from taskharbor.runtime import NO_PAUSE
from taskharbor.thread_loop import ERROR_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.observability.hook_caller import HookCaller
    from taskharbor.runtime import Runtime, ServiceLoop
    from taskharbor.thread_loop import LoopPause

_LOG: Final = logging.getLogger("taskharbor.runtime")
SWITCH_INTERVAL_SECONDS: Final = 0.0005
"""The thread switch interval. Python's default of 0.005 halves the throughput of several busy threads."""
GC_THRESHOLD: Final = 20_000
"""Allocations between garbage collections. Python's default of 700 costs a busy worker a fifth of its time."""
SIGNAL_EXIT_BASE: Final = 128
"""Added to the number of a signal to get an exit code, as shells do."""
LOST_SLOTS_EXIT: Final = 12
"""The exit code of a worker that stopped because half of its slots were lost to handlers that do not return."""
RECYCLED_EXIT: Final = 13
"""The exit code of a worker that stopped after its maximum of jobs or memory, so that another process replaces it."""
SIGNAL_POLL_SECONDS: Final = 0.2
LAST_WORDS_SECONDS: Final = 1.0
SAME_STOP_SECONDS: Final = 0.25
"""Signals so soon after the first one belong to the same stop: timeout(1) and process managers send one to the process
group and one to the process. A person who presses Ctrl-C twice is slower, or presses it once more.
"""
STOP_TIMEOUT: Final = timedelta(seconds=25)


def run_until_signal(
    start: Callable[[], None],
    stop: Callable[[], None],
    *,
    is_over: Callable[[], bool],
    last_words: Callable[[], str] = lambda: "exiting now",
) -> None:
    """Call *start*, wait for SIGTERM, SIGINT or *is_over*, and call *stop*.

    *stop* is also called if the service is over by itself: the exit must not cut off what it does last. A second signal
    logs *last_words* and exits at once, unless it belongs to the same stop.

    Both signals are handled explicitly because process 1 has no default handlers.
    """
    # Not an Event: the waiting thread holds its lock briefly, and a signal handled in that thread
    # at that point would deadlock. SimpleQueue is reentrant.
    signals: SimpleQueue[int] = SimpleQueue()
    received_at: list[float] = []

    def handle(number: int, _frame: Any) -> None:
        if received_at:
            if is_same_stop(received_at[0]):
                return
            _log_within(LAST_WORDS_SECONDS, last_words)
            os._exit(SIGNAL_EXIT_BASE + number)
        received_at.append(time.monotonic())
        signals.put(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with tuned_interpreter():
            start()
            while not _received(signals) and not is_over():
                pass
            stop()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def is_same_stop(first_at: float) -> bool:
    """Return whether a signal now belongs to the stop that was requested at *first_at*."""
    return time.monotonic() < first_at + SAME_STOP_SECONDS


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


class LoopState(NamedTuple):
    """Since when a loop ticks or pauses, for how long it pauses (None: it has ended), and what the last tick raised."""

    since: float
    is_ticking: bool
    pause: timedelta | None
    error: str


class LoopActivity:
    """What a loop does now. Its thread writes this, and `taskharbor.health` judges by it whether the loop is stuck.

    *may_take* is how long a tick takes by design: it may wait for messages, or run large statements.
    """

    __slots__ = ("errors", "may_take", "noted")

    def __init__(self, since: float, may_take: timedelta) -> None:
        self.may_take = may_take
        self.errors = 0
        """How many ticks have raised."""
        self.noted: tuple[float, bool, timedelta | None, str] = (since, False, NO_PAUSE, "")
        """The fields of the state. A tuple is written in one step, and takes a tenth of the time of a `LoopState`."""

    @property
    def state(self) -> LoopState:
        return LoopState(*self.noted)


class ServiceLoops:
    """Named loops that run together, from `start` to `stop`.

    A loop named ``source:mail`` belongs to the group ``source``; `wake` takes the name of a loop or of a group.
    All of them log outages with ``failures``. ``activities`` has what each started loop does now.
    """

    def __init__(self, runtime: Runtime, *, call_hooks: HookCaller = NO_HOOKS) -> None:
        guard_loggers()
        self._runtime = runtime
        self._lock = runtime.lock()
        self._ticks: dict[str, Callable[[], timedelta | None]] = {}
        self._on_demand: dict[str, Callable[[], timedelta | None]] = {}
        self._loops: dict[str, ServiceLoop] = {}
        self._groups: dict[str, list[ServiceLoop]] = {}
        self._may_take: dict[str, timedelta] = {}
        self._between: dict[str, LoopPause] = {}
        self.activities: dict[str, LoopActivity] = {}
        self.is_started = self.is_stopped = False
        self.failures = FailureLog(_LOG, runtime.monotonic, call_hooks=call_hooks)

    def add(
        self,
        name: str,
        tick: Callable[[], timedelta | None],
        *,
        on_demand: bool = False,
        may_take: timedelta = NO_PAUSE,
        between: LoopPause | None = None,
    ) -> None:
        """Register a loop. One that is *on_demand* is not started by `start`, and outlives `stop`.

        *may_take* is how long one tick takes by design. Pauses are those of *between*, if given.
        """
        (self._on_demand if on_demand else self._ticks)[name] = tick
        self._may_take[name] = may_take
        if between is not None:
            self._between[name] = between

    def start(self) -> None:
        self.is_started = True
        for name, tick in self._ticks.items():
            loop = self._loops[name] = self._serve(name, self._unless_stopped(tick))
            for key in dict.fromkeys((name, name.partition(":")[0])):
                self._groups.setdefault(key, []).append(loop)

    def start_on_demand(self, name: str) -> None:
        """Start this loop unless it was started before."""
        with self._lock:
            if name not in self._loops:
                self._loops[name] = self._serve(name, self._on_demand[name])

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
        """Wait up to *timeout* for all loops that `start` has started."""
        give_up_at = self._runtime.monotonic() + timeout.total_seconds()
        for name in self._ticks:
            self.join(name, timedelta(seconds=max(0.0, give_up_at - self._runtime.monotonic())))

    def stop(self) -> None:
        """Let the current ticks be the last, and wait for them."""
        self.begin_stop()
        self.join_all(STOP_TIMEOUT)

    def begin_stop(self) -> None:
        """Let the current ticks be the last, and return immediately."""
        self.is_stopped = True
        self.wake_all()

    def _serve(self, name: str, tick: Callable[[], timedelta | None]) -> ServiceLoop:
        """Start a loop that writes its activity."""
        monotonic = self._runtime.monotonic
        activity = self.activities[name] = LoopActivity(monotonic(), self._may_take[name])

        def tick_and_note() -> timedelta | None:
            activity.noted = (monotonic(), True, NO_PAUSE, activity.noted[-1])
            try:
                pause = tick()
            except BaseException as error:
                activity.errors += 1
                activity.noted = (monotonic(), False, ERROR_PAUSE, type(error).__name__)
                raise
            activity.noted = (monotonic(), False, pause, "")
            return pause

        return self._runtime.serve(name, tick_and_note, self._between.get(name))

    def _unless_stopped(self, tick: Callable[[], timedelta | None]) -> Callable[[], timedelta | None]:
        return lambda: None if self.is_stopped else tick()


def tick_until_signal(runtime: Runtime, name: str, tick: Callable[[], timedelta]) -> None:
    """Run one tick in a loop until SIGTERM or SIGINT, and finish the current tick."""
    loops = ServiceLoops(runtime)
    loops.add(name, tick)
    run_until_signal(loops.start, loops.stop, is_over=lambda: False)


def _log_within(seconds: float, text: Callable[[], str]) -> None:
    """Log in another thread: the thread that a signal interrupts may be writing to the log, and hold its lock."""
    thread = Thread(target=lambda: _LOG.warning("%s", text()), name="taskharbor-exit", daemon=True)
    thread.start()
    thread.join(seconds)


def _received(signals: SimpleQueue[int]) -> bool:
    try:
        signals.get(timeout=SIGNAL_POLL_SECONDS)
    except Empty:
        return False
    return True
