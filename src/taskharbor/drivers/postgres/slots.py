"""The slots of a connection pool."""

from __future__ import annotations

import threading
from collections import deque


class ConnectionSlots:
    """A semaphore whose waiting threads get free slots in the order in which they asked.

    With `threading.Semaphore`, a thread that has just released its slot usually takes it again: of 32 threads
    with ten connections some waited for seconds, and failed, while others never waited.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Lock] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait."""
        return len(self._waiting)

    def acquire(self, *, timeout: float) -> bool:
        """Take a slot; return False if none was free for *timeout* seconds."""
        with self._lock:
            if self._free:  # then no thread waits
                self._free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()  # `release` releases it
            self._waiting.append(turn)
        try:
            has_slot = turn.acquire(timeout=timeout)
        except BaseException:  # Ctrl-C
            if not self._withdraw(turn):
                self.release()
            raise
        return has_slot or not self._withdraw(turn)

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def _withdraw(self, turn: threading.Lock) -> bool:
        """Stop waiting; return False if the slot was passed on to this thread meanwhile."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True
