"""Waiting for jobs: everybody who does so on one driver hears by the same ear."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from taskharbor.drivers.postgres.hearing import ListenConnection
from taskharbor.drivers.postgres.ringing import ANY_QUEUE

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from taskharbor.drivers.postgres.address import ServerAddress


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
