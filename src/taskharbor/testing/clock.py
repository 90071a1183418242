"""A clock that moves when it is told to."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Stands still until it is moved.

    >>> clock = ManualClock()
    >>> before = clock.now()
    >>> clock.advance(timedelta(hours=1))
    >>> clock.now() - before
    datetime.timedelta(seconds=3600)
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        """Move the clock: back, where *by* is negative."""
        with self._lock:
            self._now += by
