"""Pauses of a loop that end at a notification of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.drivers.base import Notice

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from taskharbor.drivers.base import Listener


class NotifiedPause:
    """Lets the thread of a loop wait for the store's notifications itself.

    Another thread that waits for them and wakes the loop would delay each job by 0.04 ms.
    """

    def __init__(self, listener: Listener, *, on_cancels: Callable[[], None]) -> None:
        self._listener = listener
        self._on_cancels = on_cancels
        self._is_woken = False

    def wait(self, pause: timedelta) -> None:
        notice = self._listener.wait(pause)
        # Cleared before the next tick: what it does not see comes with a wake that is passed on.
        self._is_woken = False
        if Notice.CANCELS in notice:
            self._on_cancels()

    def wake(self) -> None:
        if not self._is_woken:  # wakes are frequent, and with SQLite each one sends a datagram
            self._is_woken = True
            self._listener.wake()
