"""Connections to the file, and the one way to write to it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta
    from pathlib import Path

    from taskharbor.core.clock import Clock


class Database(Protocol):
    """What runs statements: a connection of ours, or a user's that was joined."""

    def execute(self, statement: str, values: Any = ..., /) -> sqlite3.Cursor: ...

    def executemany(self, statement: str, values: Any, /) -> sqlite3.Cursor: ...


class Connections:
    """Gives each call a connection of its own, and lets one thread of the process write at a time.

    SQLite has one writer; those who wait for it poll, and may starve. So the threads
    of a process queue up for a lock of ours first, and only processes compete for the
    file. Every wait ends by the deadline.
    """

    def __init__(self, path: Path, *, clock: Clock | None, deadline: timedelta, synchronous: str) -> None:
        self.path = path
        self.now: Callable[[], int] = _machine_time if clock is None else lambda: micros(clock.now())
        self.statements = 0
        self._seconds = deadline.total_seconds()
        self._synchronous = synchronous
        self._start_anew()

    def _start_anew(self) -> None:
        self._left_behind = getattr(self, "_idle", [])  # kept, or Python would close them
        self._idle: list[Link] = []
        self._writing = threading.Lock()
        self._is_closed = False
        self._pid = os.getpid()  # last: whoever sees it sees the others

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose statements see one snapshot each."""
        taken = self._take()
        try:
            yield taken.connection
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        finally:
            self._give_back(taken)

    def write(self) -> Link:
        """Return what runs one IMMEDIATE transaction, in a ``with`` statement."""
        return self._take()

    def begin(self, taken: Link) -> int:
        """Begin; the time is read once it is alone, so that times follow its order."""
        # At once, where that can be: to set a time takes longer than all the rest.
        if not (self._writing.acquire(blocking=False) or self._writing.acquire(timeout=self._seconds)):
            self._give_back(taken)
            raise StoreUnavailable(f"{self.path}: {_CROWDED}")  # noqa: TRY003  it says which file
        try:
            self.statements += 1
            taken.run("BEGIN IMMEDIATE")
            return self.now()
        except BaseException:
            self.end(taken)
            raise

    def end(self, taken: Link) -> None:
        """Let the next one write; what was not committed is undone."""
        try:
            if taken.connection.in_transaction:
                taken.run("ROLLBACK")
        finally:
            self._writing.release()
            self._give_back(taken)

    def close(self) -> None:
        """Close what is not in use; what is, is closed when it is given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().connection.close()

    def _take(self) -> Link:
        if self._pid != os.getpid():
            self._start_anew()  # a connection must not be used, nor closed, on the other side of a fork
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: {_CLOSED}")  # noqa: TRY003  it says which file
        try:
            taken = self._idle.pop()
        except IndexError:
            taken = Link(self._open())
        taken.connections = self
        return taken

    def _give_back(self, taken: Link) -> None:
        del taken.connections  # or it would keep alive whoever keeps it
        if self._is_closed:
            taken.connection.close()
        else:
            self._idle.append(taken)

    def _open(self) -> sqlite3.Connection:
        with ExitStack() as on_error:
            try:
                connection = sqlite3.connect(
                    self.path,
                    timeout=self._seconds,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=512,
                )
                on_error.callback(connection.close)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                # What a statement lays aside is small; a cache for each such table would cost a single claim 100 µs.
                connection.execute("PRAGMA temp_store = MEMORY")
            except sqlite3.Error as error:
                raise explained(error, self.path) from error
            on_error.pop_all()
            return connection


class Link:
    """A connection, and one transaction after the other on it.

    A class, since a generator for a context would cost a single job 2 µs of each of its calls.
    """

    __slots__ = ("connection", "connections", "run")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.connections: Connections
        self.run = connection.cursor().execute  # the connection's own makes a cursor each time

    def __enter__(self) -> tuple[sqlite3.Connection, int]:
        connections = self.connections
        try:
            return self.connection, connections.begin(self)
        except sqlite3.Error as error:
            raise explained(error, connections.path) from error

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        connections = self.connections
        try:
            if error is None:
                self.run("COMMIT")
        except sqlite3.Error as refused:
            error = refused
        finally:
            connections.end(self)
        if isinstance(error, sqlite3.Error):
            raise explained(error, connections.path) from error


def _machine_time() -> int:
    return time.time_ns() // 1_000


_CROWDED: Final = "other threads of this process have been writing to it for too long; try again"
_CLOSED: Final = "this driver was closed"
_HINTS: Final = {
    "SQLITE_BUSY": "another process has been writing to it for too long; try again",
    "SQLITE_FULL": "the disk is full; nothing of this call was stored. Make room and try again",
    "SQLITE_CANTOPEN": "it cannot be opened; does its folder exist, and may this user write there?",
    "SQLITE_READONLY": "it is read-only for this user",
    "SQLITE_NOTADB": "it is no SQLite database",
    "SQLITE_CORRUPT": "it is damaged; restore it from a copy",
    "SQLITE_IOERR": "the disk does not answer as it should",
}


def explained(error: sqlite3.Error, path: Path) -> Exception:
    """Turn what means that the store is away into that; a mistake in our own SQL stays what it is."""
    name = getattr(error, "sqlite_errorname", "")
    hint = next((hint for code, hint in _HINTS.items() if name.startswith(code)), None)
    return error if hint is None else StoreUnavailable(f"{path}: {hint} ({error})")
