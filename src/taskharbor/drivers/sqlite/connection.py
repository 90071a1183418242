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
        self._pid = os.getpid()
        self._left_behind = getattr(self, "_idle", [])  # kept, or Python would close them
        self._idle: list[Writing] = []
        self.writing = threading.Lock()
        self._is_closed = False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose statements see one snapshot each."""
        taken = self.write()
        try:
            yield taken.connection
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        finally:
            self.give_back(taken)

    def write(self) -> Writing:
        """Return what runs one IMMEDIATE transaction, in a ``with`` statement."""
        if self._pid != os.getpid():
            self._start_anew()  # a connection must not be used, nor closed, on the other side of a fork
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: {_CLOSED}")  # noqa: TRY003  it says which file
        try:
            return self._idle.pop()
        except IndexError:
            return Writing(self, self._open())

    def wait_to_write(self) -> None:
        # At once, where that can be: to set a time takes longer than all the rest.
        if not (self.writing.acquire(blocking=False) or self.writing.acquire(timeout=self._seconds)):
            raise StoreUnavailable(f"{self.path}: {_CROWDED}")  # noqa: TRY003  it says which file

    def give_back(self, taken: Writing) -> None:
        if self._is_closed:
            taken.connection.close()
        else:
            self._idle.append(taken)

    def close(self) -> None:
        """Close what is not in use; what is, is closed when it is given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().connection.close()

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


class Writing:
    """A connection, and one transaction after the other on it.

    A class, since a generator for a context would cost a single job 2 µs of each of its calls.
    """

    __slots__ = ("_connections", "_run", "connection")

    def __init__(self, connections: Connections, connection: sqlite3.Connection) -> None:
        self._connections = connections
        self.connection = connection
        self._run = connection.cursor().execute  # the connection's own would make a cursor each time

    def __enter__(self) -> tuple[sqlite3.Connection, int]:
        """Begin; the time is read once it is alone, so that times follow its order."""
        connections, connection = self._connections, self.connection
        try:
            connections.wait_to_write()
        except BaseException:
            connections.give_back(self)
            raise
        connections.statements += 1
        try:
            self._run("BEGIN IMMEDIATE")
            return connection, connections.now()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Commit, and let the next one write; after an *error*, or where that fails, undo all of it."""
        connections, connection = self._connections, self.connection
        try:
            if error is None:
                self._run("COMMIT")
        except sqlite3.Error as refused:
            error = refused
        finally:
            try:
                if connection.in_transaction:
                    self._run("ROLLBACK")
            finally:
                connections.writing.release()
                connections.give_back(self)
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
