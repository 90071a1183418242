"""The threads of sync handlers."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from math import nan
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

_THREAD: Final[int | None] = getattr(resource, "RUSAGE_THREAD", None)  # of Linux
_LOG: Final = logging.getLogger("taskharbor.runtime")
WATCH_SECONDS: Final = 0.0025
MAX_STALLS: Final = 2
"""If no brief item was started twice in a row for so long, another thread continues. Once may mean that the machine is
busy: then a second thread would only compete for the same processor.
"""
METERED_ITEMS: Final = 32
"""After how many items a thread decides anew whether items are brief."""
MAX_BLOCKED: Final = 2
"""If so many threads run items and make no progress, items are not brief, and one thread after another is woken."""
MAX_WAITS_FRACTION: Final = 0.25
"""Items are brief if a thread waits for anything, including the interpreter, less often than once in four of them."""
MAX_BRIEF_SECONDS: Final = 0.0001
"""And if they take less CPU time on average. Longer ones may run C code without the GIL, on several processors."""


class HandlerThreads:
    """A pool of daemon threads for sync handlers, started on demand: one per unfinished work item.

    The standard library's pool joins its threads at exit, so one handler that does not return would
    keep a worker from exiting.

    One thread is woken at a time, and it wakes the next when it starts an item. So a few threads run
    short items one after another, and if one blocks, the next continues. Waking a thread for each
    item would cost more than a short item.

    Short items that do not wait for anything gain nothing from several threads, which would only wait for each other:
    one Python thread runs at a time. While items are that brief, one thread runs all of them, and a second one watches:
    if no item is started for a while, it continues, and a third one watches.
    """

    def __init__(self, *, max_threads: int) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._work: deque[Callable[[], None]] = deque()
        self._on_idle: Callable[[], None] | None = None
        self._wakeups: SimpleQueue[bool] = SimpleQueue()  # False: end the thread
        self._closing: SimpleQueue[None] = SimpleQueue()
        self._count = self._idle = self._active = self._unfinished = self._started = 0
        self._is_waking = self._is_watched = self._is_brief = False

    def run(self, work: Callable[[], None], on_idle: Callable[[], None]) -> None:
        """Call *work* in a thread. A thread that finds no more work calls the last *on_idle*, which may add some."""
        with self._lock:
            if self._unfinished >= self._count and self._count < self._max_threads:
                # Before queueing the work: if no thread can be started, the work must not run later.
                threading.Thread(target=self._run, name=f"taskharbor-handler-{self._count + 1}", daemon=True).start()
                self._count += 1
                self._idle += 1
            self._unfinished += 1
            self._on_idle = on_idle
            self._work.append(work)
            self._wake_next()

    def close(self) -> None:
        for _ in range(self._count):
            self._wakeups.put(False)  # noqa: FBT003  a queue item
        self._closing.put(None)

    def _wake_next(self) -> None:
        has_enough = self._is_brief and self._is_watched and self._active
        if self._work and self._idle and not self._is_waking and not has_enough:
            self._is_waking = True
            self._idle -= 1
            self._wakeups.put(True)  # noqa: FBT003  as above

    def _run(self) -> None:
        while self._wakeups.get():
            with self._lock:
                self._is_waking = False
                must_watch = self._is_brief and self._active > 0 and not self._is_watched
                self._is_watched = self._is_watched or must_watch
                self._active += not must_watch
            if not must_watch or self._watch():
                self._run_items()

    def _watch(self) -> bool:
        """Wait until no item was started for a while; return whether this thread must continue: not if it must end."""
        started, stalls = -1, 0
        while not self._is_closing():
            with self._lock:
                stalls = stalls + 1 if self._started == started else 0
                started = self._started
                if stalls == MAX_STALLS:
                    self._is_watched = False
                    if self._work:
                        self._is_brief = self._is_brief and self._active < MAX_BLOCKED
                    # Without work, too: the other thread may be blocked in the last item. It has run others before, and
                    # has not called `on_idle` since.
                    self._active += 1
                    return True
        return False

    def _is_closing(self) -> bool:
        """Wait for `WATCH_SECONDS`; return whether the pool is closed."""
        try:
            self._closing.get(timeout=WATCH_SECONDS)
        except Empty:
            return False
        self._closing.put(None)  # for the next watcher
        return True

    def _run_items(self) -> None:
        thread, items, usage = threading.current_thread(), 0, _usage()
        work = self._next_work(ended=0)
        while work is not None:
            try:
                work()
            except BaseException:  # noqa: BLE001  the pool must not lose the thread
                _LOG.exception("internal error in a handler thread")
            if threading.main_thread() is thread:
                os._exit(0)  # a copy of the process, which the item has forked: the others are those of the original
            items += 1
            if items == METERED_ITEMS:
                before, items, usage = usage, 0, _usage()
                self._is_brief = _are_brief(before, usage)
                if self._is_brief and self._has_retired():
                    return
            work = self._next_work(ended=1)

    def _has_retired(self) -> bool:
        """Become idle if another thread can run the brief items; return whether it does."""
        with self._lock:
            may_retire = self._active > 1 and bool(self._work)
            if may_retire:
                self._unfinished -= 1
                self._active -= 1
                self._idle += 1
                self._wake_next()  # there must be a watcher, in case the other thread is blocked
            return may_retire

    def _next_work(self, *, ended: int) -> Callable[[], None] | None:
        """Remove the next item after *ended* items; None if there is none, and this thread is idle now."""
        with self._lock:
            self._unfinished -= ended
            if (work := self._take()) is not None:
                return work
            on_idle = self._on_idle
        if on_idle is not None:
            try:
                on_idle()
            except BaseException:  # noqa: BLE001  as above
                _LOG.exception("internal error in a handler thread")
        with self._lock:
            if (work := self._take()) is None:  # checked again: work that arrived meanwhile may have woken no thread
                self._active -= 1
                self._idle += 1
            return work

    def _take(self) -> Callable[[], None] | None:
        if not self._work:
            return None
        self._started += 1
        work = self._work.popleft()
        self._wake_next()
        return work


def _usage() -> tuple[float, float]:
    """Return how often the calling thread has waited, and its CPU seconds; nan if the platform does not count that."""
    if _THREAD is None:
        return nan, nan
    usage = resource.getrusage(_THREAD)
    return usage.ru_nvcsw, usage.ru_utime + usage.ru_stime


def _are_brief(before: tuple[float, float], after: tuple[float, float]) -> bool:
    """Return whether the items between two usages of a thread were brief."""
    waits, seconds = after[0] - before[0], after[1] - before[1]
    return waits < METERED_ITEMS * MAX_WAITS_FRACTION and seconds < METERED_ITEMS * MAX_BRIEF_SECONDS
