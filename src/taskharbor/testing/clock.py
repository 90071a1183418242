"""A clock for tests that only moves when advanced."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from taskharbor.core.durations import Duration, as_timedelta


class ManualClock:
    """A clock whose time changes only in `advance`.

    >>> clock = ManualClock()
    >>> before = clock.now()
    >>> clock.advance(3600)
    >>> clock.now() - before
    datetime.timedelta(seconds=3600)
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def advance(self, by: Duration) -> None:
        """Move the clock by a timedelta or a number of seconds; a negative value moves it back."""
        span = as_timedelta(by, "by", least=timedelta.min)
        with self._lock:
            self._now += span
