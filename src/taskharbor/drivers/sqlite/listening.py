"""Waiting for jobs, whichever process of the machine stores them.

Our own commits ring (`taskharbor.drivers.sqlite.ringing`). What cannot ring, a transaction of
the user's own or another tool, changes ``PRAGMA data_version``: a listener looks at that a few
times a second, on a connection of its own, since the number means nothing on any other.
"""

from __future__ import annotations

import math
import os
import select
import socket
import sqlite3
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.drivers.sqlite.connection import translate_error
from taskharbor.drivers.sqlite.ringing import ANY_QUEUE, open_socket, remove_socket, socket_dir

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

DATA_VERSION_POLL: Final = timedelta(seconds=0.25)  # what that costs stands in ADR 0007
_LONGEST_NAME: Final = 1_024


class SqliteListener:
    def __init__(self, file: Path, queues: Collection[str], *, look: timedelta = DATA_VERSION_POLL) -> None:
        self._file = file
        self._look = look
        self._calls = {ANY_QUEUE, *(queue.encode() for queue in queues)}
        self._abandoned: list[tuple[WakeSocket, ChangeWatch]] = []
        self._start()

    def _start(self) -> None:
        with ExitStack() as on_error:
            self._watch = ChangeWatch(self._file, every=self._look)
            on_error.callback(self._watch.close)
            self._wake_socket = WakeSocket(socket_dir(self._file))
            on_error.pop_all()
        self._pid = os.getpid()

    def wait(self, timeout: timedelta) -> bool:
        self._reopen_after_fork()
        now = time.monotonic()
        end = now + timeout.total_seconds()
        while not self._is_notified(within=min(end, self._watch.next_check_at) - now):
            now = time.monotonic()
            if now >= end:
                return False
        return True

    def _is_notified(self, *, within: float) -> bool:
        if not self._calls.isdisjoint(self._wake_socket.receive(within)):
            self._watch.check()  # what rang must not be noticed a second time
            return True
        # Rings for other queues do not hasten the look: each comes with a commit, so that it would ring for all.
        return time.monotonic() >= self._watch.next_check_at and self._watch.check()

    def wake(self) -> None:
        self._reopen_after_fork()
        self._wake_socket.wake()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._wake_socket.close()
            self._watch.close()

    def _reopen_after_fork(self) -> None:
        if self._pid != os.getpid():
            # The socket is the other side's to hear, and a connection must not even be closed on this one.
            self._abandoned.append((self._wake_socket, self._watch))
            self._start()


class WakeSocket:
    """What ends a wait: a ring from any process, through a socket in the folder, or one of our own."""

    def __init__(self, folder: Path) -> None:
        self._receiver, self._sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.settimeout(0)
        self._sender.settimeout(0)
        self._shared = open_socket(folder)  # None costs speed only
        ears = [self._receiver] if self._shared is None else [self._receiver, self._shared[0]]
        self._sockets = {ear.fileno(): ear for ear in ears}
        self._poll = select.poll()
        for descriptor in self._sockets:
            self._poll.register(descriptor, select.POLLIN)

    def receive(self, seconds: float) -> set[bytes]:
        """Return all that was called since this was last asked; where that is nothing, wait for it so long."""
        ready = self._poll.poll(max(0, math.ceil(seconds * 1_000)))
        return {call for descriptor, _ in ready for call in _datagrams(self._sockets[descriptor])}

    def wake(self) -> None:
        with suppress(OSError):  # it is full, so it rings already; or it was closed, and nobody waits
            self._sender.send(ANY_QUEUE)

    def close(self) -> None:
        if self._shared is not None:
            remove_socket(self._shared[1])
        for each in (*self._sockets.values(), self._sender):
            each.close()


def _datagrams(ear: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield ear.recv(_LONGEST_NAME)


class ChangeWatch:
    """Notices that something was committed, whoever did it."""

    def __init__(self, file: Path, *, every: timedelta) -> None:
        self._every = every.total_seconds()
        try:
            self._db = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise translate_error(error, file) from error
        self._seen = 0
        self.next_check_at = 0.0
        self.check()

    def check(self) -> bool:
        """Say whether anything was committed since the last look."""
        self.next_check_at = time.monotonic() + self._every
        before = self._seen
        with suppress(sqlite3.Error):  # who looks for jobs next will be told what is wrong
            [self._seen] = self._db.execute("PRAGMA data_version").fetchone()
        return before != self._seen

    def close(self) -> None:
        self._db.close()
