"""Waiting for jobs: everybody who does so on one driver hears by the same ear."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, LiteralString

import psycopg

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.drivers.postgres.server import translate_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import timedelta

    from taskharbor.core.model import NewJob
    from taskharbor.drivers.postgres.pool import PostgresPool
    from taskharbor.drivers.postgres.server import ServerAddress

MIN_NOTIFY_SECONDS: Final = 0.001
MAX_NOTIFY_SECONDS: Final = 0.005
"""Seconds between two rings: who hears one takes what there is, and looks again. The longer, the more want to ring."""
ANY_QUEUE: Final = ""
"""What is called for jobs of a queue that is not known."""
NOTIFY: Final[LiteralString] = """
    SELECT pg_notify(%(channel)s, queue)
      FROM unnest(%(queues)s::text[]) AS asked (queue)
"""
_LOG: Final = logging.getLogger("taskharbor.notify")
SELF_TEST_SECONDS: Final = 30.0  # without a notification, after which it notifies itself
ECHO_TIMEOUT_SECONDS: Final = 5.0  # within which its own notification must arrive
RECONNECT_SECONDS: Final = 1.0
# A server that was demoted still takes NOTIFY, and nothing else: it must not pass for the primary.
_SELF_NOTIFY: Final = b"SELECT pg_notify($1, $2) WHERE NOT current_setting('transaction_read_only')::boolean"


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


class ListenConnection:
    """Rings for the listeners of the queues that it hears of, from a thread of its own.

    LISTEN dies in silence behind a pooler, or on a socket whose other end is gone. So it calls
    itself at the start and after some silence, and connects anew if it does not hear that. That
    it hears nothing, and that it hears again, is logged once; both may have cost a ring, and count as one.
    """

    def __init__(self, address: ServerAddress, listeners: ListenerRegistry) -> None:
        self._address = address
        self._listeners = listeners
        self._db: psycopg.Connection | None = None
        self._connect_at = 0.0
        self._last_notified_at = self._self_notified_at = 0.0
        self._expected_echo: str | None = None
        self._is_disconnected = self._is_closed = self._is_stale = False
        self._thread: threading.Thread | None = None
        if address.is_pooled:
            _LOG.info("a pooler is in between: nothing is listened to, and jobs are found by looking now and then")
            return
        self._connect()  # not in the thread: what is committed from here on is heard
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="taskharbor-ear", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        # Set the flag first: a thread that wakes before that would wait again.
        self._is_closed = True
        self._wake()
        self._thread.join(self._address.deadline.total_seconds())
        self._wake_sender.close()

    def renew(self) -> None:
        """Connect anew, from the listening thread: this server is no longer the primary."""
        self._is_stale = True
        if self._thread is not None:
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the thread has ended, and closed its end
            self._wake_sender.send(b".")  # closing the socket is not enough: a forked process may hold it open

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._wait()
                self._check()
            except Exception as error:  # noqa: BLE001  whatever it was, a password's function's own too: it is tried again
                self._lose_connection(repr(error))
        self._disconnect()
        self._wake_receiver.close()

    def _wait(self) -> None:
        """Wait until the connection is to be seen after, and tell at once what is called meanwhile."""
        poller = select.poll()
        poller.register(self._wake_receiver, select.POLLIN)
        if self._db is not None:
            poller.register(self._db.fileno(), select.POLLIN)
        seconds = max(0.0, self._next_check_at() - time.monotonic())
        ready = {fd for fd, _ in poller.poll(seconds * 1_000)}
        if self._wake_receiver.fileno() in ready:
            ready.remove(self._wake_receiver.fileno())
            self._wake_receiver.recv(64)
        if ready:
            self._read_notifications()

    def _read_notifications(self) -> None:
        """Read what arrived, and tell of it."""
        if self._db is None:
            return
        queues = set()
        try:
            self._db.pgconn.consume_input()
            while not self._db.pgconn.is_busy() and self._db.pgconn.get_result() is not None:
                pass  # what it answers to our own call
            while (note := self._db.pgconn.notifies()) is not None:
                if note.be_pid != self._listeners.notified_backend:
                    queues.add(note.extra.decode())
        except psycopg.Error as error:
            self._lose_connection(self._translate(error))
            return
        self._listeners.notify(queues)
        self._last_notified_at = time.monotonic()
        if self._expected_echo in queues:
            self._expected_echo = None
            self._report_recovery()

    def _next_check_at(self) -> float:
        """Return when to see after the connection, if nothing is heard."""
        if self._db is None:
            return self._connect_at
        return (
            self._self_notified_at + ECHO_TIMEOUT_SECONDS
            if self._expected_echo
            else self._last_notified_at + SELF_TEST_SECONDS
        )

    def _check(self) -> None:
        """Connect if that is due; call oneself after a silence, and hang up if that was not heard."""
        if self._is_stale:
            self._is_stale = False
            self._disconnect()
            self._connect()
            return
        if time.monotonic() < self._next_check_at():
            return
        if self._db is None:
            self._connect()
        elif self._expected_echo:
            self._lose_connection(
                "its own NOTIFY does not arrive: the socket's other end is gone, the server is read-only, "
                "or a pooler is in between"
            )
        else:
            self._notify_self()

    def _notify_self(self) -> None:
        """Call oneself, and do not wait for an answer: there may be none, and psycopg would keep the echo to itself."""
        if self._db is None:
            return
        self._expected_echo, self._self_notified_at = str(new_token()), time.monotonic()
        named = [channel_name(self._address.schema).encode(), self._expected_echo.encode()]
        try:
            self._db.pgconn.send_query_params(_SELF_NOTIFY, named)
            self._db.pgconn.flush()
        except psycopg.Error as error:
            self._lose_connection(self._translate(error))

    def _connect(self) -> None:
        self._connect_at = time.monotonic() + RECONNECT_SECONDS
        try:
            self._db = self._address.connect(pinned=False)
            self._last_notified_at = time.monotonic()
            self._listeners.notified_backend = 0  # a server that was restarted gives out the same numbers again
            self._db.execute(f'LISTEN "{channel_name(self._address.schema)}"'.encode())
        except psycopg.Error as error:
            self._lose_connection(self._translate(error))
        except StoreUnavailable as error:  # the user's password function failed
            self._lose_connection(str(error))
        else:
            self._notify_self()
            self._listeners.notify([ANY_QUEUE])  # notifications may have been lost meanwhile

    def _translate(self, error: psycopg.Error) -> str:
        return str(translate_error(error, self._address.place))

    def _lose_connection(self, reason: str) -> None:
        self._disconnect()
        if not self._is_disconnected:
            _LOG.warning("cannot listen for jobs, and tries again; until then workers look now and then: %s", reason)
            self._listeners.notify([ANY_QUEUE])
        self._is_disconnected = True

    def _report_recovery(self) -> None:
        if self._is_disconnected:
            _LOG.info("listens for jobs again")
        self._is_disconnected = False

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = self._expected_echo = None


class PostgresListener:
    """One who waits for jobs of some queues."""

    def __init__(self, audience: ListenerRegistry, queues: Collection[str]) -> None:
        self.queues = frozenset({ANY_QUEUE, *queues})
        self._audience = audience
        self._register()

    def _register(self) -> None:
        self._woken = threading.Event()
        self._pid = os.getpid()
        self._audience.add(self)

    def wait(self, timeout: timedelta) -> bool:
        self._reopen_after_fork()
        has_rung = self._woken.wait(timeout.total_seconds())
        # Cleared before the caller looks for jobs: what rings from here on is heard by the next wait.
        self._woken.clear()
        return has_rung

    def wake(self) -> None:
        self._reopen_after_fork()
        self._woken.set()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._audience.remove(self)

    def _reopen_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._register()  # the listening thread stayed in the parent


class ListenerRegistry:
    """All who listen on one driver, and the ear that they have while there are any."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._abandoned: list[ListenConnection | None] = []
        self._reset()

    def _reset(self) -> None:
        self._changing = threading.Lock()
        self._listeners: frozenset[PostgresListener] = frozenset()
        self._listen_connection: ListenConnection | None = None
        self.notified_backend = 0
        """The server's process whose calls those who listen here were told of already."""
        self._pid = os.getpid()

    def add(self, listener: PostgresListener) -> None:
        """Let *listener* hear, from here on."""
        if self._pid != os.getpid():
            # The connection is the other side's to use, and must not even be closed on this one.
            self._abandoned.append(self._listen_connection)
            self._reset()
        with self._changing:
            if self._listen_connection is None:
                self._listen_connection = ListenConnection(self._address, self)
            self._listeners |= {listener}

    def remove(self, listener: PostgresListener) -> None:
        """Let *listener* go, and with the last one the ear."""
        with self._changing:
            self._listeners -= {listener}
            if not self._listeners and self._listen_connection is not None:
                self._listen_connection.close()
                self._listen_connection = None

    def renew(self) -> None:
        """Let the listening connection be replaced: the server that it is on is no longer the primary."""
        connection = self._listen_connection if self._pid == os.getpid() else None
        if connection is not None:
            connection.renew()

    def notify(self, queues: Collection[str]) -> None:
        """Wake those who wait for jobs of these *queues*."""
        if self._pid != os.getpid():
            return  # nobody listens on this side of a fork
        # Without the lock: whoever comes or goes leaves this set as it was, and makes another.
        for listener in self._listeners:
            if not listener.queues.isdisjoint(queues):
                listener.wake()
