"""Waiting for jobs, whichever process of the machine stores them.

Our own commits ring (`taskharbor.drivers.sqlite.notify`). What cannot ring, a transaction of
the user's own or another tool, changes ``PRAGMA data_version``: a listener looks at that a few
times a second, on a connection of its own, since the number means nothing on any other.
"""

from __future__ import annotations

import math
import os
import secrets
import select
import socket
import sqlite3
import stat
import tempfile
import time
from contextlib import ExitStack, suppress
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.drivers.sqlite.pool import translate_error
from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from taskharbor.core.model import NewJob

ANY_QUEUE: Final = b""
"""What is sent for jobs of several queues, or of one that is not known."""

_LONGEST: Final = 103  # bytes of a socket's path that every system takes: macOS has 104 with the NUL, Linux 108
_TRIES: Final = 5
DATA_VERSION_POLL: Final = timedelta(seconds=0.25)  # what that costs stands in ADR 0007
_LONGEST_NAME: Final = 1_024


def socket_dir(file: Path) -> Path:
    """Return where the sockets are: beside the file, or where that is too long a path, among temporary files."""
    real = os.path.realpath(file)
    beside = Path(f"{real}-listeners")
    if len(os.fsencode(beside / _hidden(_new_name()))) <= _LONGEST:
        return beside
    digest = sha256(os.fsencode(real)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"taskharbor-{os.geteuid()}-{digest}"


class SqliteNotifier:
    """Rings for all who listen at one file."""

    def __init__(self, file: Path) -> None:
        self._folder = socket_dir(file)
        self._name = str(self._folder)

    def notify(self, jobs: Iterable[NewJob], now: int) -> None:
        """Tell of *jobs* that are new, where some can be taken at once."""
        # Most often there is no folder, since no process listens.
        if os.access(self._name, os.F_OK) and (queues := _ready_queues(jobs, now)):
            self._send(next(iter(queues)).encode() if len(queues) == 1 else ANY_QUEUE)

    def notify_any(self) -> None:
        """Tell of jobs of some queue or other."""
        if os.access(self._name, os.F_OK):
            self._send(ANY_QUEUE)

    def _send(self, message: bytes) -> None:
        with suppress(OSError):
            if _is_ours(self._folder):
                _send_all(_addresses(self._folder), message)


def _ready_queues(jobs: Iterable[NewJob], now: int) -> set[str]:
    """Return the queues that have one of *jobs* to take at once."""
    return {
        job.queue for job in jobs if (not job.delay if job.scheduled_for is None else micros(job.scheduled_for) <= now)
    }


def _addresses(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.path for entry in entries if not _is_hidden(entry.name)]


def _send_all(addresses: list[str], message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0)
        for address in addresses:
            with suppress(OSError):  # it is full: who listens there is about to look; or it was just taken down
                _send_one(sender, address, message)


def _send_one(sender: socket.socket, address: str, message: bytes) -> None:
    try:
        sender.sendto(message, address)
    except ConnectionRefusedError:
        # Whoever listened here was killed. Nothing but sockets is ever removed, whatever people keep here.
        if stat.S_ISSOCK(os.lstat(address).st_mode):
            Path(address).unlink()


def open_socket(folder: Path) -> tuple[socket.socket, Path] | None:
    """Put up a socket in *folder*, and return it with its path; None, where that cannot be done."""
    for _ in range(_TRIES):  # who takes down the last socket removes the folder, perhaps just now
        with suppress(OSError):
            _make(folder)
            return _bound(folder / _new_name()) if _is_ours(folder) else None
    return None


def remove_socket(path: Path) -> None:
    """Remove a socket, and the folder with the last one."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def _make(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(0o700)


def _bound(path: Path) -> tuple[socket.socket, Path]:
    """Bind a socket under a hidden name first: one that is bound half is refused, and would be taken for dead."""
    hidden = path.with_name(_hidden(path.name))
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        ear.settimeout(0)
        ear.bind(str(hidden))
        hidden.rename(path)
    except OSError:
        ear.close()
        raise
    return ear, path


def _is_ours(folder: Path) -> bool:
    """Nobody but this user can have put anything there, or led us elsewhere by it."""
    about = os.lstat(folder)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


def _new_name() -> str:
    return secrets.token_hex(8)


def _hidden(name: str) -> str:
    return f".{name}"


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


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
