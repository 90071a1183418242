"""Pauses of a loop that end at a notification of the store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.drivers.base import Notice
from taskharbor.worker.notified_pause import NotifiedPause

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE = timedelta(seconds=5)


class FakeListener:
    """Returns the given notices, and counts its wakes. *at_end* is called at the end of each wait."""

    at_end: Callable[[], None] | None = None

    def __init__(self, *notices: Notice) -> None:
        self._notices = iter(notices)
        self.wakes = 0
        self.waits: list[timedelta] = []

    def wait(self, timeout: timedelta) -> Notice:
        self.waits.append(timeout)
        if self.at_end is not None:
            self.at_end()
        return next(self._notices)

    def wake(self) -> None:
        self.wakes += 1

    def close(self) -> None: ...


def test_only_notices_of_cancels_are_passed_on() -> None:
    canceled: list[str] = []
    listener = FakeListener(Notice.NONE, Notice.JOBS, Notice.CANCELS, Notice.ALL)
    pause = NotifiedPause(listener, on_cancels=lambda: canceled.append("noted"))

    counts = []
    for _ in range(4):
        pause.wait(PAUSE)
        counts.append(len(canceled))

    assert counts == [0, 0, 1, 2]
    assert listener.waits == 4 * [PAUSE]


def test_wakes_during_one_tick_wake_the_listener_once() -> None:
    listener = FakeListener(Notice.JOBS)
    pause = NotifiedPause(listener, on_cancels=lambda: None)

    pause.wake()
    pause.wake()
    before = listener.wakes
    pause.wait(PAUSE)
    pause.wake()

    assert (before, listener.wakes) == (1, 2)


def test_a_wake_at_the_end_of_a_wait_is_passed_on_or_seen_by_the_next_tick() -> None:
    """The next tick sees what the waker has changed. Wakes after it must reach the listener again."""
    listener = FakeListener(Notice.JOBS)
    pause = NotifiedPause(listener, on_cancels=lambda: None)
    listener.at_end = pause.wake

    pause.wait(PAUSE)
    pause.wake()

    assert listener.wakes == 2
