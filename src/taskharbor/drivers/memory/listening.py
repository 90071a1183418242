"""Waking those who wait for jobs, within the process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta


class MemoryNotifier:
    """Everybody who listens, and for which queues."""

    def __init__(self) -> None:
        self._listeners: frozenset[MemoryListener] = frozenset()
        self._changing = threading.Lock()

    def listen(self, queues: Collection[str]) -> MemoryListener:
        listener = MemoryListener(queues, self)
        with self._changing:
            self._listeners |= {listener}
        return listener

    def leave(self, listener: MemoryListener) -> None:
        with self._changing:
            self._listeners -= {listener}

    def notify(self, queues: Collection[str]) -> None:
        # Without the lock: whoever comes or goes leaves this set as it was, and makes another.
        for listener in self._listeners:
            if not listener.queues.isdisjoint(queues):
                listener.wake()


class MemoryListener:
    def __init__(self, queues: Collection[str], bells: MemoryNotifier) -> None:
        self.queues = frozenset(queues)
        self._bells = bells
        self._woken = threading.Event()

    def wait(self, timeout: timedelta) -> bool:
        has_rung = self._woken.wait(timeout.total_seconds())
        # Cleared before the caller looks for jobs: what rings from here on is heard by the next wait.
        self._woken.clear()
        return has_rung

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._bells.leave(self)
