"""NOTIFY after commits."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final, LiteralString, TypeVar

from psycopg.errors import ProgramLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from taskharbor.core.model import NewJob
    from taskharbor.drivers.postgres.listen import ListenerRegistry
    from taskharbor.drivers.postgres.pool import PostgresPool

T = TypeVar("T")

MIN_NOTIFY_SECONDS: Final = 0.001
MAX_NOTIFY_SECONDS: Final = 0.005
"""Seconds between two NOTIFY statements. The pause grows while several calls request one, and they share it."""
MIN_JOIN_SECONDS: Final = 0.01
JOIN_COST_FACTOR: Final = 20
"""An insert contains its NOTIFY if the last one was so long ago, and so many times its duration.

The faster of the last two counts: those that wait for the NOTIFY of other processes are all slow, others sometimes.
"""
FAILED_JOIN_SECONDS: Final = 60.0  # after an insert that failed, possibly by its NOTIFY, until the next one contains it
NOTIFY: Final[LiteralString] = """
    SELECT pg_notify(%(channel)s, queue)
      FROM unnest(%(queues)s::text[]) AS asked (queue)
"""
_NOTIFY_ALL: Final[LiteralString] = """
    -- A notification need not be durable; flushing the WAL for it would delay the next insert.
    SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, topic)
      FROM unnest(%(topics)s::text[]) AS asked (topic)
"""


def channel_name(schema: str) -> str:
    return f"taskharbor_{schema}"[:63]


def ready_queues(jobs: Iterable[NewJob]) -> set[str]:
    """Return the queues of *jobs* that are due now. A job with a time is left out: only the store knows the time."""
    return {job.queue for job in jobs if job.scheduled_for is None and not job.delay}


class PostgresNotifier:
    """Notifies listeners after a commit: those of the same driver immediately, all others from a thread.

    A transaction with NOTIFY holds a server-wide lock while it commits, so NOTIFY is part of an insert
    only if inserts are rare: then the start of the job does not wait for another thread and another
    statement. Calls made during a NOTIFY, or within a short pause after it, share the next one.
    """

    def __init__(self, connections: PostgresPool, listeners: ListenerRegistry) -> None:
        self._connections = connections
        self._listeners = listeners
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._topics: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_pausing = False
        self._requests, self._pause = 0, MIN_NOTIFY_SECONDS
        self._next_join_at, self._last_join_seconds = 0.0, inf
        self._pid = os.getpid()

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # the thread exists in the parent process only, and may hold the lock

    def may_join(self) -> bool:
        """Count an insert; return whether it may contain its NOTIFY. If so, `join` must follow.

        It may not if listeners of this driver exist: they are notified without NOTIFY, and would be notified twice.
        """
        self._reset_after_fork()
        now = time.monotonic()
        with self._changed:
            may_join = now >= self._next_join_at and not self._listeners.has_listeners
            self._next_join_at = inf if may_join else max(self._next_join_at, now + MIN_JOIN_SECONDS)
            return may_join

    def join(self, insert: Callable[[], T]) -> T | None:
        """Call *insert*, which contains its NOTIFY. Return None if it was rolled back because of the NOTIFY.

        A lock may have timed out because of it, too. That is raised: a repeated insert contains no NOTIFY.
        """
        began_at, pause = time.monotonic(), FAILED_JOIN_SECONDS
        try:
            answer = insert()
            seconds = time.monotonic() - began_at
            pause = max(MIN_JOIN_SECONDS, JOIN_COST_FACTOR * min(seconds, self._last_join_seconds))
            self._last_join_seconds = seconds
        except ProgramLimitExceeded:  # the server's queue of notifications is full
            return None
        finally:
            with self._changed:
                self._next_join_at = time.monotonic() + pause
        return answer

    def notify(self, topics: Collection[str]) -> None:
        """Notify the listeners of *topics*."""
        if not topics:
            return
        self._reset_after_fork()
        self._listeners.notify(topics)
        with self._changed:
            is_thread_waiting = not self._topics and not self._is_pausing
            self._topics.update(topics)
            self._requests += 1
            has_thread = self._thread is not None or self._is_closed or self._start_thread()
            if is_thread_waiting:
                self._changed.notify()
        if not has_thread:
            self._send(self._take())

    def _start_thread(self) -> bool:
        """Start the thread; return whether that was possible: not if the process exits, or has too many threads."""
        thread = threading.Thread(target=self._run, name="taskharbor-notify", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the caller's jobs are stored, so it must not get this error
            return False
        self._thread = thread
        return True

    def close(self) -> None:
        self._reset_after_fork()
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=self._connections.address.deadline.total_seconds())

    def _run(self) -> None:
        while topics := self._next():
            self._send(topics)
            self._wait_pause()

    def _send(self, topics: Collection[str]) -> None:
        # A notification is only a hint; workers also poll. Whatever is raised, such as an error of the schema check of
        # a new connection, the jobs are stored, and the thread must send the next ones.
        with suppress(Exception), self._connections.connection() as db:
            self._listeners.notified_backend = db.backend
            parameters = {"channel": channel_name(self._connections.address.schema), "topics": sorted(topics)}
            db.execute(_NOTIFY_ALL, parameters)

    def _wait_pause(self) -> None:
        with self._changed:
            self._is_pausing = True
            self._changed.wait_for(lambda: self._is_closed, self._pause)
            self._is_pausing = False
            # One call may be a reaction to the last NOTIFY. Several are independent of it, and can share the next one.
            self._pause = min(2 * self._pause, MAX_NOTIFY_SECONDS) if self._requests > 1 else MIN_NOTIFY_SECONDS

    def _next(self) -> set[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._topics or self._is_closed)
            return self._take()

    def _take(self) -> set[str]:
        with self._changed:
            topics, self._topics, self._requests = self._topics, set(), 0
            return topics
