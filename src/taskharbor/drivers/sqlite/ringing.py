"""Telling those who wait, in whichever process of the machine, that there are jobs to take.

Each listener has a Unix datagram socket in one folder, and whoever has committed a job sends
a queue's name to all of them. A ring is a hint: whatever keeps it from being heard must not
fail the call that rings, for its commit is done, and listeners look at the file themselves a
few times a second. So errors end here, without a word.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskharbor.core.model import NewJob

ANY_QUEUE: Final = b""
"""What is sent for jobs of several queues, or of one that is not known."""

_LONGEST: Final = 103  # bytes of a socket's path that every system takes: macOS has 104 with the NUL, Linux 108
_TRIES: Final = 5


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
        if self._has_listeners() and (queues := _ready_queues(jobs, now)):
            self._send(next(iter(queues)).encode() if len(queues) == 1 else ANY_QUEUE)

    def notify_any(self) -> None:
        """Tell of jobs of some queue or other."""
        if self._has_listeners():
            self._send(ANY_QUEUE)

    def _has_listeners(self) -> bool:
        return os.access(self._name, os.F_OK)  # most often there is no folder, since nobody listens

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
