"""Listeners, what they are notified of, and the inbox that keeps notices until the next wait."""

from __future__ import annotations

import threading
from enum import Flag, auto
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

ANY_QUEUE: Final = ""
"""The topic of jobs whose queue is not known."""
MAX_TOPIC_CHARS: Final = 200
"""Longer topics are cut: PostgreSQL limits the payload of a notification, and a datagram is read into a buffer."""


class Notice(Flag):
    """What a listener was notified of: jobs that may be ready, and cancel requests for running jobs."""

    NONE = 0
    JOBS = auto()
    CANCELS = auto()
    ALL = JOBS | CANCELS


class Listener(Protocol):
    """Receives notifications that jobs may be ready, or that cancels of running jobs were requested.

    Notifications are hints that only reduce latency: they may be spurious, and they may be lost, so callers also
    poll. Only one thread may wait at a time.
    """

    def wait(self, timeout: timedelta) -> Notice:
        """Return what was notified since the last wait, as soon as that is anything, or `Notice.NONE` after *timeout*.

        The notification is cleared before it is returned. One that arrives while the caller searches for jobs
        therefore ends the next wait.
        """

    def wake(self) -> None:
        """End the current wait, or else the next one, with `Notice.JOBS`. Callable from any thread."""

    def close(self) -> None:
        """Stop listening and release all resources. No thread may be waiting: call `wake` first."""


def cancel_topic(worker: str) -> str:
    """Return the topic of cancel requests for jobs that *worker* holds. No queue has a name like that."""
    return f"!{worker}"[:MAX_TOPIC_CHARS]


def notices_by_topic(queues: Collection[str], worker: str | None) -> dict[str, Notice]:
    """Return the topics that a listener for *queues* and *worker* is notified of."""
    topics = dict.fromkeys([ANY_QUEUE, *queues] if queues else [], Notice.JOBS)
    return topics if worker is None else {**topics, cancel_topic(worker): Notice.CANCELS}


class NoticeInbox:
    """Keeps the notices of one listener until its next wait."""

    def __init__(self, queues: Collection[str], worker: str | None) -> None:
        self._topics = notices_by_topic(queues, worker)
        self._changed = threading.Condition()
        self._pending = Notice.NONE

    def wait(self, timeout: timedelta) -> Notice:
        with self._changed:
            self._changed.wait_for(lambda: self._pending, timeout.total_seconds())
            # Cleared before the caller acts: a notification from here on ends the next wait.
            notice, self._pending = self._pending, Notice.NONE
        return notice

    def notify(self, topics: Collection[str]) -> None:
        """Keep the notices of those *topics* that the listener is notified of."""
        for topic in topics:
            if (notice := self._topics.get(topic)) is not None:
                self.put(notice)

    def put(self, notice: Notice) -> None:
        with self._changed:
            self._pending |= notice
            self._changed.notify()
