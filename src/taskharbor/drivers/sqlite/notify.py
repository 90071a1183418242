"""Notifications about new jobs and cancel requests between the processes of one machine.

`SqliteNotifier` sends a datagram to the Unix socket of every listener after a commit of the driver. Commits that
send none, in joined transactions or by other tools, change ``PRAGMA data_version``. A listener polls that number
a few times a second, on its own connection, since the number is meaningful only within one connection.
"""

from __future__ import annotations

import functools
import math
import operator
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

from taskharbor.drivers.notices import ANY_QUEUE, Notice, cancel_topic, notices_by_topic
from taskharbor.drivers.sqlite.pool import translate_error
from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from taskharbor.core.model import NewJob

ANY_CANCEL: Final = "!"
"""The topic of cancel requests for jobs of several workers."""
WAKE: Final = b"*"
"""The message that ends a wait, whatever the listener is notified of."""

_MAX_PATH_BYTES: Final = 103  # of a socket, on every system: macOS allows 104 with the NUL, Linux 108
_MAX_TRIES: Final = 5
DATA_VERSION_POLL: Final = timedelta(seconds=0.25)  # ADR 0007 has the measured cost
_MAX_MESSAGE_BYTES: Final = 1_024


def socket_dir(file: Path) -> Path:
    """Return the directory of the sockets: beside the file or, if that path is too long, in the temporary directory."""
    real = os.path.realpath(file)
    beside = Path(f"{real}-listeners")
    if len(os.fsencode(beside / _hidden(_new_name()))) <= _MAX_PATH_BYTES:
        return beside
    digest = sha256(os.fsencode(real)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"taskharbor-{os.geteuid()}-{digest}"


class SqliteNotifier:
    """Notifies all listeners of one file."""

    def __init__(self, file: Path) -> None:
        self._folder = socket_dir(file)
        self._name = str(self._folder)

    def notify(self, jobs: Iterable[NewJob], now: int) -> None:
        """Notify the listeners about new *jobs*, if some of them are ready to run."""
        # The directory exists only while there are listeners.
        if os.access(self._name, os.F_OK) and (queues := _ready_queues(jobs, now)):
            self._send(next(iter(queues)) if len(queues) == 1 else ANY_QUEUE)

    def notify_any(self) -> None:
        """Notify the listeners of all queues."""
        if os.access(self._name, os.F_OK):
            self._send(ANY_QUEUE)

    def notify_cancels(self, workers: Collection[str]) -> None:
        """Notify the listeners of *workers* that cancels of their running jobs were requested."""
        if workers and os.access(self._name, os.F_OK):
            self._send(cancel_topic(*workers) if len(workers) == 1 else ANY_CANCEL)

    def _send(self, topic: str) -> None:
        with suppress(OSError):
            if _is_private(self._folder):
                _send_all(_addresses(self._folder), topic.encode())


def _ready_queues(jobs: Iterable[NewJob], now: int) -> set[str]:
    """Return the queues of those *jobs* that are ready to run."""
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
            with suppress(OSError):  # full, so its listener will wake anyway; or just removed
                _send_one(sender, address, message)


def _send_one(sender: socket.socket, address: str, message: bytes) -> None:
    try:
        sender.sendto(message, address)
    except ConnectionRefusedError:
        # The listener was killed. Remove sockets only: other files here are not TaskHarbor's.
        if stat.S_ISSOCK(os.lstat(address).st_mode):
            Path(address).unlink()


def open_socket(folder: Path) -> tuple[socket.socket, Path] | None:
    """Create a socket in *folder* and return it with its path, or None if that is not possible."""
    for _ in range(_MAX_TRIES):  # another process may remove the directory along with its last socket
        with suppress(OSError):
            _make_dir(folder)
            return _bind(folder / _new_name()) if _is_private(folder) else None
    return None


def remove_socket(path: Path) -> None:
    """Remove a socket, and its directory if that is now empty."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def _make_dir(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(0o700)


def _bind(path: Path) -> tuple[socket.socket, Path]:
    """Bind a socket under a hidden name, then rename it.

    While it is being bound, a socket refuses datagrams, and a notifier would remove it as dead.
    """
    hidden = path.with_name(_hidden(path.name))
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.settimeout(0)
        bound.bind(str(hidden))
        hidden.rename(path)
    except OSError:
        bound.close()
        raise
    return bound, path


def _is_private(folder: Path) -> bool:
    """Return whether *folder* is a directory, not a link, that only this user can access."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _new_name() -> str:
    return secrets.token_hex(8)


def _hidden(name: str) -> str:
    return f".{name}"


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


class SqliteListener:
    def __init__(
        self,
        file: Path,
        queues: Collection[str],
        *,
        worker: str | None = None,
        poll: timedelta = DATA_VERSION_POLL,
    ) -> None:
        self._file = file
        self._poll = poll
        topics = notices_by_topic(queues, worker)
        self._any = _union(topics.values())
        topics |= {ANY_CANCEL: self._any & Notice.CANCELS}
        self._notices = {topic.encode(): notice for topic, notice in topics.items()}
        self._abandoned: list[tuple[WakeSocket, ChangeWatch]] = []
        self._start()

    def _start(self) -> None:
        with ExitStack() as on_error:
            self._watch = ChangeWatch(self._file, every=self._poll)
            on_error.callback(self._watch.close)
            self._wake_socket = WakeSocket(socket_dir(self._file))
            on_error.pop_all()
        self._pid = os.getpid()

    def wait(self, timeout: timedelta) -> Notice:
        self._reopen_after_fork()
        now = time.monotonic()
        end = now + timeout.total_seconds()
        while not (notice := self._receive(within=min(end, self._watch.next_check_at) - now)):
            now = time.monotonic()
            if now >= end:
                break
        return notice

    def _receive(self, *, within: float) -> Notice:
        messages = self._wake_socket.receive(within)
        woken = Notice.JOBS if WAKE in messages else Notice.NONE
        if notice := _union(self._notices[message] for message in messages if message in self._notices):
            self._watch.check()  # the commit that sent the message must not end the next wait, too
            return notice | woken
        # Messages for others do not cause an early check: each follows a commit, so every check would succeed.
        is_changed = time.monotonic() >= self._watch.next_check_at and self._watch.check()
        return self._any | woken if is_changed else woken

    def wake(self) -> None:
        self._reopen_after_fork()
        self._wake_socket.wake()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._wake_socket.close()
            self._watch.close()

    def _reopen_after_fork(self) -> None:
        if self._pid != os.getpid():
            # The socket belongs to the parent process. SQLite connections must not even be closed after a fork.
            self._abandoned.append((self._wake_socket, self._watch))
            self._start()


def _union(notices: Iterable[Notice]) -> Notice:
    return functools.reduce(operator.or_, notices, Notice.NONE)


class WakeSocket:
    """Receives messages from all processes, through a socket in the directory, and wakes from this process."""

    def __init__(self, folder: Path) -> None:
        self._receiver, self._sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.settimeout(0)
        self._sender.settimeout(0)
        self._shared = open_socket(folder)  # without it, only latency suffers
        sockets = [self._receiver] if self._shared is None else [self._receiver, self._shared[0]]
        self._sockets = {each.fileno(): each for each in sockets}
        self._poll = select.poll()
        for descriptor in self._sockets:
            self._poll.register(descriptor, select.POLLIN)

    def receive(self, seconds: float) -> set[bytes]:
        """Return all messages since the last call. If there are none, wait up to *seconds* for one."""
        ready = self._poll.poll(max(0, math.ceil(seconds * 1_000)))
        return {message for descriptor, _ in ready for message in _datagrams(self._sockets[descriptor])}

    def wake(self) -> None:
        with suppress(OSError):  # full, so the wait ends anyway; or closed, so no thread waits
            self._sender.send(WAKE)

    def close(self) -> None:
        if self._shared is not None:
            remove_socket(self._shared[1])
        for each in (*self._sockets.values(), self._sender):
            each.close()


def _datagrams(receiver: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield receiver.recv(_MAX_MESSAGE_BYTES)


class ChangeWatch:
    """Detects commits of any connection by polling ``PRAGMA data_version``."""

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
        """Return whether anything was committed since the last check."""
        self.next_check_at = time.monotonic() + self._every
        before = self._seen
        with suppress(sqlite3.Error):  # the next claim reports the error
            [self._seen] = self._db.execute("PRAGMA data_version").fetchone()
        return before != self._seen

    def close(self) -> None:
        self._db.close()
