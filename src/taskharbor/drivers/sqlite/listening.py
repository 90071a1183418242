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

from taskharbor.drivers.sqlite.connection import explained
from taskharbor.drivers.sqlite.ringing import ANY, folder_of, hang, take_down

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

LOOK: Final = timedelta(seconds=0.25)  # what that costs stands in ADR 0007
_LONGEST_NAME: Final = 1_024


class SqliteListener:
    def __init__(self, file: Path, queues: Collection[str], *, look: timedelta = LOOK) -> None:
        self._file = file
        self._look = look
        self._calls = {ANY, *(queue.encode() for queue in queues)}
        self._left_behind: list[tuple[Doorbell, Watch]] = []
        self._start()

    def _start(self) -> None:
        with ExitStack() as on_error:
            self._watch = Watch(self._file, every=self._look)
            on_error.callback(self._watch.close)
            self._doorbell = Doorbell(folder_of(self._file))
            on_error.pop_all()
        self._pid = os.getpid()

    def wait(self, timeout: timedelta) -> bool:
        self._start_anew_in_a_fork()
        now = time.monotonic()
        end = now + timeout.total_seconds()
        while not self._has_rung(within=min(end, self._watch.next_look) - now):
            now = time.monotonic()
            if now >= end:
                return False
        return True

    def _has_rung(self, *, within: float) -> bool:
        if not self._calls.isdisjoint(self._doorbell.hear(within)):
            self._watch.look()  # what rang must not be noticed a second time
            return True
        # Rings for other queues do not hasten the look: each comes with a commit, so that it would ring for all.
        return time.monotonic() >= self._watch.next_look and self._watch.look()

    def wake(self) -> None:
        self._start_anew_in_a_fork()
        self._doorbell.wake()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._doorbell.close()
            self._watch.close()

    def _start_anew_in_a_fork(self) -> None:
        if self._pid != os.getpid():
            # The socket is the other side's to hear, and a connection must not even be closed on this one.
            self._left_behind.append((self._doorbell, self._watch))
            self._start()


class Doorbell:
    """What ends a wait: a ring from any process, through a socket in the folder, or one of our own."""

    def __init__(self, folder: Path) -> None:
        self._inside, self._button = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inside.settimeout(0)
        self._button.settimeout(0)
        self._outside = hang(folder)  # None costs speed only
        ears = [self._inside] if self._outside is None else [self._inside, self._outside[0]]
        self._ears = {ear.fileno(): ear for ear in ears}
        self._poll = select.poll()
        for descriptor in self._ears:
            self._poll.register(descriptor, select.POLLIN)

    def hear(self, seconds: float) -> set[bytes]:
        """Return all that was called since this was last asked; where that is nothing, wait for it so long."""
        ready = self._poll.poll(max(0, math.ceil(seconds * 1_000)))
        return {call for descriptor, _ in ready for call in _calls(self._ears[descriptor])}

    def wake(self) -> None:
        with suppress(OSError):  # it is full, so it rings already; or it was closed, and nobody waits
            self._button.send(ANY)

    def close(self) -> None:
        if self._outside is not None:
            take_down(self._outside[1])
        for each in (*self._ears.values(), self._button):
            each.close()


def _calls(ear: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield ear.recv(_LONGEST_NAME)


class Watch:
    """Notices that something was committed, whoever did it."""

    def __init__(self, file: Path, *, every: timedelta) -> None:
        self._every = every.total_seconds()
        try:
            self._db = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise explained(error, file) from error
        self._seen = 0
        self.next_look = 0.0
        self.look()

    def look(self) -> bool:
        """Say whether anything was committed since the last look."""
        self.next_look = time.monotonic() + self._every
        before = self._seen
        with suppress(sqlite3.Error):  # who looks for jobs next will be told what is wrong
            [self._seen] = self._db.execute("PRAGMA data_version").fetchone()
        return before != self._seen

    def close(self) -> None:
        self._db.close()
