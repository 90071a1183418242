"""Threads that come when there is something to do, and go when there is not."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG: Final = logging.getLogger(__name__)
IDLE_SECONDS: Final = 5.0  # seconds, after which a thread that has nothing to do ends
CLOSE_TIMEOUT_SECONDS: Final = 30.0  # seconds that closing waits for what is under way


class IdleThreadPool:
    """At most *most* threads, which nobody has to end: who forgets to close it keeps nothing for long."""

    def __init__(self, name: str, *, most: int) -> None:
        self._name, self._most = name, most
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_closed = False

    def run(self, work: Callable[[], None]) -> None:
        """Let *work* be done as soon as a thread is free. Raises `RuntimeError` where none can be started."""
        with self._changed:
            self._work.append(work)
            if len(self._work) <= self._idle:
                self._changed.notify()
            elif len(self._threads) < self._most:
                self._start()

    @property
    def is_busy(self) -> bool:
        """Whether it has threads."""
        with self._changed:
            return bool(self._threads)

    def close(self) -> None:
        """End the threads, once all work is done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = [*self._threads]
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            if not self._threads:
                self._work.clear()  # whoever is told that it failed must not see it done later
                raise

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:  # noqa: BLE001  the others' work must be done all the same
                _LOG.exception("%s met an error of ours", self._name)
            del work  # or an idle thread would keep alive what it did last

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            if not self._work:
                self._idle += 1
                self._changed.wait_for(lambda: self._work or self._is_closed, timeout=IDLE_SECONDS)
                self._idle -= 1
            if self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            return None
