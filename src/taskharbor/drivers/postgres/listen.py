"""Listeners of notifications, and the LISTEN connection that all listeners of a driver share."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.drivers.notices import Notice, NoticeInbox
from taskharbor.drivers.postgres.notify import channel_name
from taskharbor.drivers.postgres.server import translate_error

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from taskharbor.drivers.postgres.server import ServerAddress

_LOG: Final = logging.getLogger("taskharbor.notify")
SELF_TEST_SECONDS: Final = 30.0  # without a notification, after which the connection notifies itself
ECHO_TIMEOUT_SECONDS: Final = 5.0  # within which that notification must arrive
RECONNECT_SECONDS: Final = 1.0
LOST_SECONDS: Final = 30.0
"""After how long without a connection that is logged. Before, the server restarts, and those who call it log that."""
# A demoted server still accepts NOTIFY; the condition keeps it from being taken for the primary.
_SELF_NOTIFY: Final = b"SELECT pg_notify($1, $2) WHERE NOT current_setting('transaction_read_only')::boolean"


class ListenConnection:
    """Notifies the listeners of each topic that was notified, from a thread of its own.

    LISTEN fails without an error behind a pooler, or on a socket whose peer is gone. So the
    connection notifies itself after connecting and after a time without notifications, and
    reconnects if that notification does not arrive. A connection that failed silently, or cannot be
    restored, is logged once, and so is its return. Both wake all listeners, because notifications may
    have been lost.
    """

    def __init__(self, address: ServerAddress, listeners: ListenerRegistry) -> None:
        self._address = address
        self._listeners = listeners
        self._db: psycopg.Connection | None = None
        self._connect_at = 0.0
        self._last_notified_at = self._self_notified_at = 0.0
        self._expected_echo: str | None = None
        self._is_disconnected = self._is_closed = self._is_stale = self._is_reported = False
        self._lost_at = 0.0
        self._thread: threading.Thread | None = None
        if address.is_pooled:
            _LOG.info("LISTEN disabled behind a pooler; polling")
            return
        self._connect()  # not in the thread, so that no commit from here on is missed
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="taskharbor-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        # Set the flag first: a thread that wakes before it is set would wait again.
        self._is_closed = True
        self._wake()
        self._thread.join(self._address.deadline.total_seconds())
        self._wake_sender.close()

    def renew(self) -> None:
        """Let the thread reconnect: this server is no longer the primary."""
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
            except Exception as error:  # noqa: BLE001  any error, also of the password function: reconnect
                self._lose_connection(repr(error))
        self._disconnect()
        self._wake_receiver.close()

    def _wait(self) -> None:
        """Wait until the connection must be checked, and process notifications meanwhile."""
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
        """Read the notifications that arrived, and pass them to their listeners."""
        if self._db is None:
            return
        topics = set()
        try:
            self._db.pgconn.consume_input()
            while not self._db.pgconn.is_busy() and self._db.pgconn.get_result() is not None:
                pass  # the results of _SELF_NOTIFY
            while (notification := self._db.pgconn.notifies()) is not None:
                if notification.be_pid != self._listeners.notified_backend:
                    topics.add(notification.extra.decode())
        except psycopg.Error as error:
            self._lose_connection(self._message_of(error))
            return
        self._listeners.notify(topics)
        self._last_notified_at = time.monotonic()
        if self._expected_echo in topics:
            self._expected_echo = None
            self._report_recovery()

    def _next_check_at(self) -> float:
        """Return when to check the connection if no notification arrives."""
        if self._db is None:
            return self._connect_at
        return (
            self._self_notified_at + ECHO_TIMEOUT_SECONDS
            if self._expected_echo
            else self._last_notified_at + SELF_TEST_SECONDS
        )

    def _check(self) -> None:
        """Connect if that is due; test the connection if it was silent, and disconnect if the test failed."""
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
                "its own NOTIFY did not arrive: the peer is gone, the server is read-only, "
                "or the connection goes through a pooler",
                is_silent=True,
            )
        else:
            self._notify_self()

    def _notify_self(self) -> None:
        """Notify this connection, without waiting for a reply: psycopg would consume the notification itself."""
        if self._db is None:
            return
        self._expected_echo, self._self_notified_at = str(new_token()), time.monotonic()
        parameters = [channel_name(self._address.schema).encode(), self._expected_echo.encode()]
        try:
            self._db.pgconn.send_query_params(_SELF_NOTIFY, parameters)
            self._db.pgconn.flush()
        except psycopg.Error as error:
            self._lose_connection(self._message_of(error))

    def _connect(self) -> None:
        self._connect_at = time.monotonic() + RECONNECT_SECONDS
        try:
            self._db = self._address.connect(with_settings=False)
            self._last_notified_at = time.monotonic()
            self._listeners.notified_backend = 0  # a restarted server assigns the same process ids again
            self._db.execute(f'LISTEN "{channel_name(self._address.schema)}"'.encode())
        except psycopg.Error as error:
            self._lose_connection(self._message_of(error))
        except StoreUnavailable as error:  # the user's password function failed
            self._lose_connection(str(error))
        else:
            self._notify_self()
            self._listeners.wake_all()  # notifications may have been lost meanwhile

    def _message_of(self, error: psycopg.Error) -> str:
        return str(translate_error(error, self._address.place))

    def _lose_connection(self, reason: str, *, is_silent: bool = False) -> None:
        self._disconnect()
        if not self._is_disconnected:
            self._lost_at = time.monotonic()
            self._listeners.wake_all()
        self._is_disconnected = True
        if not self._is_reported and (is_silent or time.monotonic() >= self._lost_at + LOST_SECONDS):
            self._is_reported = True
            _LOG.warning("LISTEN connection lost; polling, will reconnect: %s", reason)

    def _report_recovery(self) -> None:
        if self._is_reported:
            _LOG.info("LISTEN connection restored")
        self._is_disconnected = self._is_reported = False

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = self._expected_echo = None


class PostgresListener:
    """Waits for notifications about jobs of some queues, and about cancels of a worker's jobs."""

    def __init__(self, listeners: ListenerRegistry, queues: Collection[str], worker: str | None) -> None:
        self._queues, self._worker = queues, worker
        self._listeners = listeners
        self._register()

    def _register(self) -> None:
        self.inbox = NoticeInbox(self._queues, self._worker)
        self._pid = os.getpid()
        self._listeners.add(self)

    def wait(self, timeout: timedelta) -> Notice:
        self._reopen_after_fork()
        return self.inbox.wait(timeout)

    def wake(self) -> None:
        self._reopen_after_fork()
        self.inbox.put(Notice.JOBS)

    def close(self) -> None:
        if self._pid == os.getpid():
            self._listeners.remove(self)

    def _reopen_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._register()  # the listening thread exists in the parent process only


class ListenerRegistry:
    """The listeners of a driver, and the connection that they share while there are any."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._abandoned: list[ListenConnection | None] = []
        self._reset()

    def _reset(self) -> None:
        self._changing = threading.Lock()
        self._listeners: frozenset[PostgresListener] = frozenset()
        self._listen_connection: ListenConnection | None = None
        self.notified_backend = 0
        """The server process of this driver's own NOTIFY statements: the listeners here were already woken."""
        self._pid = os.getpid()

    def add(self, listener: PostgresListener) -> None:
        """Add *listener*; connect if it is the first one."""
        if self._pid != os.getpid():
            # The connection belongs to the parent process, and must not be used or closed in this one.
            self._abandoned.append(self._listen_connection)
            self._reset()
        with self._changing:
            if self._listen_connection is None:
                self._listen_connection = ListenConnection(self._address, self)
            self._listeners |= {listener}

    def remove(self, listener: PostgresListener) -> None:
        """Remove *listener*; disconnect if it was the last one."""
        with self._changing:
            self._listeners -= {listener}
            if not self._listeners and self._listen_connection is not None:
                self._listen_connection.close()
                self._listen_connection = None

    def renew(self) -> None:
        """Replace the LISTEN connection: its server is no longer the primary."""
        connection = self._listen_connection if self._pid == os.getpid() else None
        if connection is not None:
            connection.renew()

    def notify(self, topics: Collection[str]) -> None:
        """Notify the listeners of *topics*."""
        for listener in self._own_listeners():
            listener.inbox.notify(topics)

    @property
    def has_listeners(self) -> bool:
        return bool(self._own_listeners())

    def wake_all(self) -> None:
        for listener in self._own_listeners():
            listener.inbox.put(Notice.ALL)

    def _own_listeners(self) -> frozenset[PostgresListener]:
        """Return the listeners, unless they belong to the parent process."""
        # No lock is needed: the set is immutable, and add and remove replace it.
        return self._listeners if self._pid == os.getpid() else frozenset()
