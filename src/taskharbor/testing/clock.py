"""A clock for tests that only moves when advanced."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """A clock whose time changes only in `advance`.

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
        """Move the clock by *by*; a negative value moves it back."""
        with self._lock:
            self._now += by
