"""Connections to the file, and the one way to write to it."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    from collections.abc import Iterator
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

    def __init__(self, path: Path, *, clock: Clock, deadline: timedelta, synchronous: str) -> None:
        self.path = path
        self.clock = clock
        self.statements = 0
        self._seconds = deadline.total_seconds()
        self._synchronous = synchronous
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._left_behind = getattr(self, "_idle", [])  # kept, or Python would close them
        self._idle: list[sqlite3.Connection] = []
        self._writing = threading.Lock()
        self._is_closed = False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose statements see one snapshot each."""
        connection = self._take()
        try:
            yield connection
        except sqlite3.Error as error:
            raise explained(error, self.path) from error
        finally:
            self._give_back(connection)

    def write(self) -> Writing:
        """Run one IMMEDIATE transaction; the time is read once it is alone, so that times follow its order."""
        return Writing(self)

    def take_to_write(self) -> sqlite3.Connection:
        connection = self._take()
        # At once, where that can be: to set a time takes longer than all the rest.
        if not (self._writing.acquire(blocking=False) or self._writing.acquire(timeout=self._seconds)):
            self._give_back(connection)
            raise StoreUnavailable(f"{self.path}: {_CROWDED}")  # noqa: TRY003  it says which file
        self.statements += 1
        return connection

    def give_back_written(self, connection: sqlite3.Connection) -> None:
        """Let the next one write; what was not committed is undone."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        finally:
            self._writing.release()
            self._give_back(connection)

    def close(self) -> None:
        """Close what is not in use; what is, is closed when it is given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            self._start_anew()  # a connection must not be used, nor closed, on the other side of a fork
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: {_CLOSED}")  # noqa: TRY003  it says which file
        try:
            return self._idle.pop()
        except IndexError:
            return self._open()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._is_closed:
            connection.close()
        else:
            self._idle.append(connection)

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
    """One transaction. A class, since a generator for a context would cost a single job 2 µs of each of its calls."""

    __slots__ = ("_connection", "_connections")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> tuple[sqlite3.Connection, int]:
        connections = self._connections
        self._connection = connection = connections.take_to_write()
        try:
            connection.execute("BEGIN IMMEDIATE")
            return connection, micros(connections.clock.now())
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        except sqlite3.Error as refused:
            error = refused
        finally:
            self._connections.give_back_written(self._connection)
        if isinstance(error, sqlite3.Error):
            raise explained(error, self._connections.path) from error


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
