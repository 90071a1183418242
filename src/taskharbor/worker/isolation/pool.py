"""The child processes of a worker: idle ones are used again, and all are replaced after some jobs."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.worker.isolation.errors import ChildNotStarted
from taskharbor.worker.isolation.zygote import ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.worker.isolation.child import Child
    from taskharbor.worker.isolation.zygote import ChildApp

_LOG: Final = logging.getLogger("taskharbor.worker")
CHILD_MAX_JOBS: Final = 1_000
ZYGOTE_END_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 60.0
IDLE_CHECK: Final = timedelta(seconds=10)


class ChildPool:
    """Gives each isolated attempt a child of its own. There are as many as attempts have run at the same time.

    A child ends after *max_jobs* attempts, when it uses more than *max_memory* bytes, after an attempt that was asked
    to stop or left processes behind, and after a minute without an attempt.
    """

    def __init__(self, *, max_jobs: int = CHILD_MAX_JOBS, max_memory: int | None = None) -> None:
        self._max_jobs, self._max_memory = max_jobs, max_memory
        self._lock = threading.Lock()
        self._zygote_lock = threading.Lock()
        self._idle: deque[Child] = deque()
        self._zygote: ZygoteProcess | None = None
        self._app: ChildApp | None = None
        self._is_closed = False
        self.started = 0
        """How many children were started."""

    @property
    def is_started(self) -> bool:
        return self._app is not None

    def start(self, app: ChildApp) -> None:
        """Start the zygote. Raises `UsageError` if it cannot load the app or does not find the tasks in it."""
        if sys.platform != "linux":
            rule = "needs Linux; elsewhere, run such work in a subprocess (docs/cpu-work.md)"
            raise UsageError(Problem(field="isolate", value=sys.platform, rule=rule))
        self._app = app
        self._zygote = ZygoteProcess(app)

    def acquire(self) -> Child:
        """Return a child for one attempt: `release` must follow. Raises `ChildNotStarted`."""
        while (child := self._pop_idle()) is not None:
            if child.is_alive:
                return child
            child.close()  # it was killed while it was idle
        zygote = self._running_zygote()
        try:
            child = zygote.start_child()
        except ChildNotStarted:
            if not zygote.has_ended(within=ZYGOTE_END_SECONDS):
                raise
            child = self._running_zygote().start_child()
        child.is_measured, child.max_jobs = self._max_memory is not None, self._max_jobs
        with self._lock:
            self.started += 1
        return child

    def release(self, child: Child) -> None:
        """Take a child back after its attempt, and end it if it must not run another."""
        is_worn = child.jobs >= self._max_jobs or (
            self._max_memory is not None and child.memory_bytes > self._max_memory
        )
        with self._lock:
            is_kept = child.is_usable and not is_worn and not self._is_closed
            if is_kept:
                child.idle_since = time.monotonic()
                self._idle.append(child)
        if not is_kept:
            if child.is_usable:
                child.retire()
            child.close()

    def tick(self) -> timedelta:
        """End children that are idle for long."""
        until = time.monotonic() - IDLE_SECONDS
        self._end_idle(lambda child: child.idle_since < until)
        return IDLE_CHECK

    def close(self) -> None:
        """End all children: idle ones leave their lifespans, others are killed."""
        with self._lock:
            self._is_closed = True
        self._end_idle(lambda _: True)
        with self._zygote_lock:
            zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.finish()

    def _pop_idle(self) -> Child | None:
        with self._lock:  # the newest: so a few are used if that is enough, and the others end
            return self._idle.pop() if self._idle else None

    def _end_idle(self, is_due: Callable[[Child], bool]) -> None:
        with self._lock:
            due = [child for child in self._idle if is_due(child)]
            for child in due:
                self._idle.remove(child)
        for child in due:
            child.retire()
            child.close()

    def _running_zygote(self) -> ZygoteProcess:
        with self._zygote_lock:
            if self._is_closed or self._app is None:
                raise ChildNotStarted("stopped")
            if self._zygote is None or self._zygote.has_ended():
                _LOG.error("the process that isolated processes are forked from has ended; starting another")
                if self._zygote is not None:
                    self._zygote.close()
                    self._zygote = None
                self._zygote = self._restarted(self._app)
            return self._zygote

    def _restarted(self, app: ChildApp) -> ZygoteProcess:
        try:
            return ZygoteProcess(app)
        except (UsageError, OSError) as error:
            raise ChildNotStarted(str(error)) from error
