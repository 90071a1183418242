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
    from collections.abc import Iterator
    from datetime import timedelta
    from pathlib import Path

    from taskharbor.core.clocks import Clock


class SqlExecutor(Protocol):
    """What runs statements: a connection of ours, or a user's that was joined."""

    def execute(self, statement: str, values: Any = ..., /) -> sqlite3.Cursor: ...

    def executemany(self, statement: str, values: Any, /) -> sqlite3.Cursor: ...


class SqlitePool:
    """The connections to one file. ``with pool as (connection, now)`` is one IMMEDIATE transaction.

    SQLite has one writer; connections that wait for it poll, and may starve. So the threads of a process
    wait for a lock of ours first, and only processes compete for the file. Since one thread writes at a
    time, the pool itself is the context manager: a generator would cost a single job 2 µs in each call.
    Every wait ends by the deadline.
    """

    def __init__(self, path: Path, *, clock: Clock | None, deadline: timedelta, synchronous: str) -> None:
        self.path = path
        self.statements = 0
        self._nanoseconds = time.time_ns if clock is None else lambda: 1_000 * micros(clock.now())
        self._seconds = deadline.total_seconds()
        self._synchronous = synchronous
        self._reset()

    def _reset(self) -> None:
        self._abandoned = getattr(self, "_idle", [])  # kept, or Python would close them
        self._idle: list[PooledConnection] = []
        self._writer: PooledConnection | None = None
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._urgent = 0  # writers that wait, and go before all others
        self._none_urgent = threading.Event()
        self._is_file_locked = False
        self._is_closed = False
        self._pid = os.getpid()  # last: a thread that sees it sees the others

    def now(self) -> int:
        """Return the store's time in microseconds."""
        return self._nanoseconds() // 1_000

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Return a connection whose statements see one snapshot each."""
        taken = self._take()
        try:
            yield taken.connection
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error
        finally:
            self._release(taken)

    def __enter__(self) -> tuple[sqlite3.Connection, int]:
        """Begin a transaction, after every urgent writer of this process that waits."""
        if self._pid != os.getpid():
            self._reset()  # a connection must not be used, nor closed, in a forked process
        has_turn = self._writing.acquire(blocking=False)
        if not has_turn or self._urgent:
            self._wait_for_turn(has_turn=has_turn)
        return self._begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        taken = self._writer
        assert taken is not None  # noqa: S101  set by __enter__
        try:
            if error is None:
                taken.run("COMMIT")
        except sqlite3.Error as refused:
            error = refused
        finally:
            if taken.connection.in_transaction or self._is_closed:
                self._end()
            else:
                self._writer = None
                self._idle.append(taken)
                self._writing.release()
        if isinstance(error, sqlite3.Error):
            raise translate_error(error, self.path) from error

    @contextmanager
    def urgently(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """Run a transaction before all others of this process that wait: leases expire while it waits."""
        if self._pid != os.getpid():
            self._reset()
        self._acquire_urgently()
        begun = self._begin()
        try:
            yield begun
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self.__exit__(None, None, None)

    def _begin(self) -> tuple[sqlite3.Connection, int]:
        """Begin; the time is read when no other thread writes, so that times follow the order of commits."""
        try:
            self.statements += 1
            try:
                taken = self._writer = self._idle.pop()
            except IndexError:
                taken = self._writer = self._take()
            self._is_file_locked = True  # by another connection, until this one has begun
            taken.run("BEGIN IMMEDIATE")
            self._is_file_locked = False
            return taken.connection, self._nanoseconds() // 1_000
        except BaseException as error:
            self._end()
            if isinstance(error, sqlite3.Error):
                raise translate_error(error, self.path) from error
            raise

    def _end(self) -> None:
        """Roll back what was not committed, and let the next thread write."""
        taken, self._writer = self._writer, None
        try:
            if taken is not None and taken.connection.in_transaction:
                taken.run("ROLLBACK")
        finally:
            self._writing.release()
            if taken is not None:
                self._release(taken)

    def _wait_for_turn(self, *, has_turn: bool) -> None:
        """Wait behind every urgent writer, until the deadline at most."""
        give_up_at = time.monotonic() + self._seconds
        while not has_turn or self._urgent:
            if has_turn:
                self._writing.release()
                self._none_urgent.wait(max(0.0, give_up_at - time.monotonic()))
            has_turn = self._writing.acquire(timeout=max(0.0, give_up_at - time.monotonic()))
            if not has_turn:
                raise self._crowded()

    def _acquire_urgently(self) -> None:
        with self._counting:
            self._urgent += 1
            self._none_urgent.clear()
        try:
            if not self._writing.acquire(timeout=self._seconds):
                raise self._crowded()
        finally:
            with self._counting:
                self._urgent -= 1
                if not self._urgent:
                    self._none_urgent.set()

    def _crowded(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.path}: {_HELD if self._is_file_locked else _CROWDED}")

    def close(self) -> None:
        """Close idle connections; those in use are closed when they are released."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().connection.close()

    def _take(self) -> PooledConnection:
        if self._pid != os.getpid():
            self._reset()
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: {_CLOSED}")  # noqa: TRY003  it says which file
        try:
            return self._idle.pop()
        except IndexError:
            return PooledConnection(self._open())

    def _release(self, taken: PooledConnection) -> None:
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


class PooledConnection:
    """A connection, and the ``execute`` of one cursor of it: the connection's own makes a cursor each time."""

    __slots__ = ("connection", "run")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.run = connection.cursor().execute


def create_private(path: Path) -> None:
    """Create the file for its owner alone; SQLite gives the mode to what it makes beside it. A file keeps its mode."""
    with suppress(OSError):  # it exists, or cannot be made: then SQLite gives the reason
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))


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
