"""Connections to the file, and the one way to write to it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta
    from pathlib import Path

    from taskharbor.core.clocks import Clock


class SqlExecutor(Protocol):
    """What runs statements: a connection of ours, or a user's that was joined."""

    def execute(self, statement: str, values: Any = ..., /) -> sqlite3.Cursor: ...

    def executemany(self, statement: str, values: Any, /) -> sqlite3.Cursor: ...


class SqlitePool:
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
        self._reset()

    def _reset(self) -> None:
        self._abandoned = getattr(self, "_idle", [])  # kept, or Python would close them
        self._idle: list[WriteTransaction] = []
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._urgent = 0  # writers that wait, and go before all others
        self._none_urgent = threading.Event()
        self._is_file_locked = False
        self._is_closed = False
        self._pid = os.getpid()  # last: whoever sees it sees the others

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose statements see one snapshot each."""
        taken = self._take()
        try:
            yield taken.connection
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error
        finally:
            self._release(taken)

    def write(self, *, urgent: bool = False) -> WriteTransaction:
        """Return what runs one IMMEDIATE transaction, in a ``with`` statement.

        An *urgent* one goes before all others of this process that wait: leases end while it waits.
        """
        taken = self._take()
        taken.is_urgent = urgent
        return taken

    def begin(self, taken: WriteTransaction) -> int:
        """Begin; the time is read once it is alone, so that times follow its order."""
        if not (self._acquire_urgently() if taken.is_urgent else self._acquire()):
            self._release(taken)
            reason = _HELD if self._is_file_locked else _CROWDED
            raise StoreUnavailable(f"{self.path}: {reason}")  # noqa: TRY003  it says which file
        try:
            self.statements += 1
            self._is_file_locked = True  # by another connection, for as long as this one does not begin
            taken.run("BEGIN IMMEDIATE")
            self._is_file_locked = False
            return self.now()
        except BaseException:
            self.end(taken)
            raise

    def _acquire(self) -> bool:
        """Wait for the turn to write, behind every urgent writer; False if it does not come in time."""
        # At once, where that can be: to set a time takes longer than all the rest.
        give_up_at, has_turn = 0.0, self._writing.acquire(blocking=False)
        while not has_turn or self._urgent:
            give_up_at = give_up_at or time.monotonic() + self._seconds
            if has_turn:
                self._writing.release()
                self._none_urgent.wait(max(0.0, give_up_at - time.monotonic()))
            has_turn = self._writing.acquire(timeout=max(0.0, give_up_at - time.monotonic()))
            if not has_turn:
                return False
        return True

    def _acquire_urgently(self) -> bool:
        with self._counting:
            self._urgent += 1
            self._none_urgent.clear()
        try:
            return self._writing.acquire(timeout=self._seconds)
        finally:
            with self._counting:
                self._urgent -= 1
                if not self._urgent:
                    self._none_urgent.set()

    def end(self, taken: WriteTransaction) -> None:
        """Let the next one write; what was not committed is undone."""
        try:
            if taken.connection.in_transaction:
                taken.run("ROLLBACK")
        finally:
            self._writing.release()
            self._release(taken)

    def close(self) -> None:
        """Close what is not in use; what is, is closed when it is given back."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().connection.close()

    def _take(self) -> WriteTransaction:
        if self._pid != os.getpid():
            self._reset()  # a connection must not be used, nor closed, on the other side of a fork
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: {_CLOSED}")  # noqa: TRY003  it says which file
        try:
            taken = self._idle.pop()
        except IndexError:
            taken = WriteTransaction(self._open())
        taken.connections = self
        return taken

    def _release(self, taken: WriteTransaction) -> None:
        del taken.connections  # or it would keep alive whoever keeps it
        if self._is_closed:
            taken.connection.close()
        else:
            self._idle.append(taken)

    def _open(self) -> sqlite3.Connection:
        create_private(self.path)
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
                raise translate_error(error, self.path) from error
            on_error.pop_all()
            return connection


class WriteTransaction:
    """A connection, and one transaction after the other on it.

    A class, since a generator for a context would cost a single job 2 µs of each of its calls.
    """

    __slots__ = ("connection", "connections", "is_urgent", "run")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.connections: SqlitePool
        self.is_urgent = False
        self.run = connection.cursor().execute  # the connection's own makes a cursor each time

    def __enter__(self) -> tuple[sqlite3.Connection, int]:
        connections = self.connections
        try:
            return self.connection, connections.begin(self)
        except sqlite3.Error as error:
            raise translate_error(error, connections.path) from error

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
            raise translate_error(error, connections.path) from error


def create_private(path: Path) -> None:
    """Create the file for its owner alone; SQLite gives the mode to what it makes beside it. A file keeps its mode."""
    with suppress(OSError):  # it exists, or cannot be made: then SQLite gives the reason
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))


def _machine_time() -> int:
    return time.time_ns() // 1_000


PRIVATE: Final = 0o600
_CROWDED: Final = "other threads of this process have been writing to it for too long; try again"
_HELD: Final = (
    "another process, or a handler's own write transaction, has kept its write lock for too long; "
    "no lease can be extended meanwhile. Keep write transactions short, and try again"
)
_CLOSED: Final = "this driver was closed"
_HINTS: Final = {
    "SQLITE_BUSY": _HELD,
    "SQLITE_FULL": "the disk is full; nothing of this call was stored. Make room and try again",
    "SQLITE_CANTOPEN": "it cannot be opened; does its folder exist, and may this user write there?",
    "SQLITE_READONLY": "it is read-only for this user",
    "SQLITE_NOTADB": "it is no SQLite database",
    "SQLITE_CORRUPT": "it is damaged; restore it from a copy",
    "SQLITE_IOERR": "the disk does not answer as it should",
}


def translate_error(error: sqlite3.Error, path: Path) -> Exception:
    """Turn what means that the store is away into that; a mistake in our own SQL stays what it is."""
    name = getattr(error, "sqlite_errorname", "")
    hint = next((hint for code, hint in _HINTS.items() if name.startswith(code)), None)
    return error if hint is None else StoreUnavailable(f"{path}: {hint} ({error})")
