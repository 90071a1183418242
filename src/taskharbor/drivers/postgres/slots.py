"""The slots of a connection pool."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress


class ConnectionSlots:
    """A semaphore whose waiting threads get free slots in the order in which they asked.

    With `threading.Semaphore`, a thread that has just released its slot usually takes it again: of 32 threads
    with ten connections some waited for seconds, and failed, while others never waited.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait."""
        return len(self._waiting)

    def acquire(self, *, timeout: float) -> bool:
        """Take a slot; return False if none was free for *timeout* seconds."""
        turn: threading.Event | None = None
        is_taken = False
        try:
            with self._lock:
                if self._free:  # then no thread waits
                    self._free -= 1
                    is_taken = True
                    return True
                turn = threading.Event()
                self._waiting.append(turn)
            turn.wait(timeout)
        except BaseException:  # Ctrl-C
            if is_taken or (turn is not None and self._end_wait(turn)):
                self.release()
            raise
        return self._end_wait(turn)

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def _end_wait(self, turn: threading.Event) -> bool:
        """Wait no longer; return whether a slot was passed on to this thread."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(turn)
        return turn.is_set()
