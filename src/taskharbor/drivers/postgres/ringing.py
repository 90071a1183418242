"""Telling of jobs by NOTIFY, and those who listen in this process without it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, LiteralString

import psycopg

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from taskharbor.core.model import NewJob
    from taskharbor.drivers.postgres.connection import PostgresPool
    from taskharbor.drivers.postgres.listening import ListenerRegistry

MIN_NOTIFY_SECONDS: Final = 0.001
MAX_NOTIFY_SECONDS: Final = 0.005
"""Seconds between two rings: who hears one takes what there is, and looks again. The longer, the more want to ring."""
ANY_QUEUE: Final = ""
"""What is called for jobs of a queue that is not known."""
NOTIFY: Final[LiteralString] = """
    SELECT pg_notify(%(channel)s, queue)
      FROM unnest(%(queues)s::text[]) AS asked (queue)
"""


def channel_name(schema: str) -> str:
    return f"taskharbor_{schema}"[:63]


def ready_queues(jobs: Iterable[NewJob]) -> set[str]:
    """Return the queues that have one of *jobs* to take at once, as far as one can tell without the store's clock."""
    return {job.queue for job in jobs if job.scheduled_for is None and not job.delay}


_NOTIFY_ALL: Final[LiteralString] = """
    -- A call is not worth a flush of the WAL, for which the next insert would have to wait.
    SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, queue)
      FROM unnest(%(queues)s::text[]) AS asked (queue)
"""


class PostgresNotifier:
    """Tells listeners of jobs after their commit: those on the same driver at once, all others from a thread.

    NOTIFY takes a lock of the whole server when it commits, so that it must not be part of
    an insert; and those that come in while one is under way, or within a moment after it, become one.
    """

    def __init__(self, connections: PostgresPool, audience: ListenerRegistry) -> None:
        self._connections = connections
        self._audience = audience
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._queues: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = self._rests = False
        self._asked, self._pause = 0, MIN_NOTIFY_SECONDS
        self._pid = os.getpid()

    def notify(self, queues: Collection[str]) -> None:
        """Tell of jobs of these *queues*, where there are any."""
        if not queues:
            return
        if self._pid != os.getpid():
            self._reset()  # the thread stayed on the other side of the fork
        self._audience.notify(queues)
        with self._changed:
            is_awaited = not self._queues and not self._rests
            self._queues.update(queues)
            self._asked += 1
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="taskharbor-bell", daemon=True)
                self._thread.start()
            if is_awaited:
                self._changed.notify()

    def close(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # a thread of the parent process may hold the lock
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=self._connections.address.deadline.total_seconds())

    def _run(self) -> None:
        while queues := self._next():
            try:
                with self._connections.connection() as db:
                    self._audience.notified_backend = db.backend
                    asked = {"channel": channel_name(self._connections.address.schema), "queues": sorted(queues)}
                    db.execute(_NOTIFY_ALL, asked)
            except (StoreUnavailable, psycopg.Error):
                pass  # a hint is lost; whoever waits for jobs looks now and then all the same
            self._rest()

    def _rest(self) -> None:
        with self._changed:
            self._rests = True
            self._changed.wait_for(lambda: self._is_closed, self._pause)
            self._rests = False
            # One may come of the last ring; two did not wait for it, and do not mind to be told of together.
            self._pause = min(2 * self._pause, MAX_NOTIFY_SECONDS) if self._asked > 1 else MIN_NOTIFY_SECONDS

    def _next(self) -> set[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._is_closed)
            queues, self._queues, self._asked = self._queues, set(), 0
            return queues
