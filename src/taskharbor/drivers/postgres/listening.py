"""Waiting for jobs: everybody who does so on one driver hears by the same ear."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from taskharbor.drivers.postgres.hearing import Ear
from taskharbor.drivers.postgres.ringing import ANY

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from taskharbor.drivers.postgres.address import Address


class PostgresListener:
    """One who waits for jobs of some queues."""

    def __init__(self, audience: Audience, queues: Collection[str]) -> None:
        self.queues = frozenset({ANY, *queues})
        self._audience = audience
        self._sit_down()

    def _sit_down(self) -> None:
        self._rang = threading.Event()
        self._pid = os.getpid()
        self._audience.add(self)

    def wait(self, timeout: timedelta) -> bool:
        self._follow_a_fork()
        has_rung = self._rang.wait(timeout.total_seconds())
        # Cleared before the caller looks for jobs: what rings from here on is heard by the next wait.
        self._rang.clear()
        return has_rung

    def wake(self) -> None:
        self._follow_a_fork()
        self._rang.set()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._audience.remove(self)

    def _follow_a_fork(self) -> None:
        if self._pid != os.getpid():
            self._sit_down()  # the ear's thread stayed on the other side


class Audience:
    """All who listen on one driver, and the ear that they have while there are any."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._left_behind: list[Ear | None] = []
        self._start_anew()

    def _start_anew(self) -> None:
        self._changing = threading.Lock()
        self._listeners: frozenset[PostgresListener] = frozenset()
        self._ear: Ear | None = None
        self.knows = 0
        """The server's process whose calls those who listen here were told of already."""
        self._pid = os.getpid()

    def add(self, listener: PostgresListener) -> None:
        """Let *listener* hear, from here on."""
        if self._pid != os.getpid():
            # The connection is the other side's to use, and must not even be closed on this one.
            self._left_behind.append(self._ear)
            self._start_anew()
        with self._changing:
            if self._ear is None:
                self._ear = Ear(self._address, self)
            self._listeners |= {listener}

    def remove(self, listener: PostgresListener) -> None:
        """Let *listener* go, and with the last one the ear."""
        with self._changing:
            self._listeners -= {listener}
            if not self._listeners and self._ear is not None:
                self._ear.close()
                self._ear = None

    def renew(self) -> None:
        """Let the listening connection be replaced: the server that it is on is no longer the primary."""
        ear = self._ear if self._pid == os.getpid() else None
        if ear is not None:
            ear.renew()

    def ring(self, queues: Collection[str]) -> None:
        """Wake those who wait for jobs of these *queues*."""
        if self._pid != os.getpid():
            return  # nobody listens on this side of a fork
        # Without the lock: whoever comes or goes leaves this set as it was, and makes another.
        for listener in self._listeners:
            if not listener.queues.isdisjoint(queues):
                listener.wake()
