"""Connections to the SQLite file, serialized write transactions, and the translation of errors."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskharbor.core.errors import StoreRefused, StoreUnavailable
from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta
    from pathlib import Path

    from taskharbor.core.clocks import Clock

    FileIdentity = tuple[int, int]
    """The device and the inode of a file."""


class SqlExecutor(Protocol):
    """Runs statements: the driver's own connection, or a joined one."""

    def execute(self, statement: str, values: Any = ..., /) -> sqlite3.Cursor: ...

    def executemany(self, statement: str, values: Any, /) -> sqlite3.Cursor: ...


class SqlitePool:
    """The connections to one file. ``with pool as (connection, now)`` is one IMMEDIATE transaction.

    SQLite allows one writer. Waiting connections poll for its lock and may starve. So the threads of a process
    first wait for a lock of the pool, and only processes compete for the file. Since one thread writes at a
    time, the pool itself is the context manager: a generator would cost a single job 2 µs in each call.
    Every wait has a deadline.

    Once in a second a call checks whether the path still leads to the open file. If a backup was moved there, the
    connections are replaced: those to the old file would claim nothing new, and what they store would be lost.
    """

    def __init__(self, path: Path, *, clock: Clock | None, deadline: timedelta, synchronous: str) -> None:
        self.path = path
        self.statements = 0
        self._nanoseconds = time.time_ns if clock is None else lambda: 1_000 * micros(clock.now())
        self._seconds = deadline.total_seconds()
        self._synchronous = synchronous
        self._reset()

    def _reset(self) -> None:
        self._abandoned = getattr(self, "_idle", [])  # keep references, or Python closes the parent's connections
        self._idle: list[PooledConnection] = []
        self._writer: PooledConnection | None = None
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._urgent = 0  # waiting writers that precede all others
        self._none_urgent = threading.Event()
        self._is_file_locked = False
        self._is_closed = False
        self._file: FileIdentity | None = None
        self._check_file_at = 0.0
        self._pid = os.getpid()  # last: threads that see it also see the other attributes

    def now(self) -> int:
        """Return the store's time in microseconds."""
        return self._nanoseconds() // 1_000

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Provide a connection. Each of its statements sees its own snapshot."""
        pooled = self._acquire_connection()
        try:
            yield pooled.connection
        except sqlite3.Error as error:
            raise translate_error(error, self.path) from error
        finally:
            self._release_connection(pooled)

    def __enter__(self) -> tuple[sqlite3.Connection, int]:
        """Begin a transaction, after all waiting urgent writers of this process."""
        if self._pid != os.getpid():
            self._reset()  # SQLite connections must not be used or closed after a fork
        is_locked = self._writing.acquire(blocking=False)
        if not is_locked or self._urgent:
            self._wait_for_lock(is_locked=is_locked)
        return self._begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pooled = self._writer
        assert pooled is not None  # noqa: S101  set by __enter__
        try:
            if error is None:
                pooled.run("COMMIT")
        except sqlite3.Error as refused:
            error = refused
        finally:
            if pooled.connection.in_transaction or self._is_closed or pooled.file != self._file:
                self._end()
            else:
                self._writer = None
                self._idle.append(pooled)
                self._writing.release()
        if isinstance(error, sqlite3.Error):
            raise translate_error(error, self.path) from error

    @contextmanager
    def urgently(self) -> Iterator[tuple[sqlite3.Connection, int]]:
        """Run a transaction before all others of this process that wait, since leases may expire meanwhile."""
        if self._pid != os.getpid():
            self._reset()
        self._lock_urgently()
        begun = self._begin()
        try:
            yield begun
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self.__exit__(None, None, None)

    def _begin(self) -> tuple[sqlite3.Connection, int]:
        """Begin a transaction, and read the time under the write lock, so that times follow the order of commits."""
        try:
            self.statements += 1
            if time.monotonic() >= self._check_file_at:
                self._check_file()
            try:
                pooled = self._writer = self._idle.pop()
            except IndexError:
                pooled = self._writer = self._acquire_connection()
            self._is_file_locked = True  # by another connection, until this one has begun
            pooled.run("BEGIN IMMEDIATE")
            self._is_file_locked = False
            return pooled.connection, self._nanoseconds() // 1_000
        except BaseException as error:
            self._end()
            if isinstance(error, sqlite3.Error):
                raise translate_error(error, self.path) from error
            raise

    def _end(self) -> None:
        """Roll back what was not committed, and release the write lock and the connection."""
        pooled, self._writer = self._writer, None
        try:
            if pooled is not None and pooled.connection.in_transaction:
                pooled.run("ROLLBACK")
        finally:
            self._writing.release()
            if pooled is not None:
                self._release_connection(pooled)

    def _wait_for_lock(self, *, is_locked: bool) -> None:
        """Wait for the write lock, after all urgent writers, until the deadline."""
        deadline = time.monotonic() + self._seconds
        while not is_locked or self._urgent:
            if is_locked:
                self._writing.release()
                self._none_urgent.wait(max(0.0, deadline - time.monotonic()))
            is_locked = self._writing.acquire(timeout=max(0.0, deadline - time.monotonic()))
            if not is_locked:
                raise self._lock_timeout()

    def _lock_urgently(self) -> None:
        with self._counting:
            self._urgent += 1
            self._none_urgent.clear()
        try:
            if not self._writing.acquire(timeout=self._seconds):
                raise self._lock_timeout()
        finally:
            with self._counting:
                self._urgent -= 1
                if not self._urgent:
                    self._none_urgent.set()

    def _lock_timeout(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.path}: {_LOCKED_BY_OTHERS if self._is_file_locked else _LOCKED_BY_THREADS}")

    def close(self) -> None:
        """Close idle connections now, and each one in use when it is released."""
        self._is_closed = True
        self._close_idle()

    def _acquire_connection(self) -> PooledConnection:
        if self._pid != os.getpid():
            self._reset()
        if self._is_closed:
            raise StoreUnavailable(f"{self.path}: {_CLOSED}")  # noqa: TRY003  it says which file
        if time.monotonic() >= self._check_file_at:
            self._check_file()
        try:
            return self._idle.pop()
        except IndexError:
            self._check_file()  # no new file may be created in place of one that was removed
            connection = self._open()
            identity = file_identity(self.path)
            self._file = self._file or identity
            return PooledConnection(connection, identity)

    def _check_file(self) -> None:
        """Close the connections if the path leads to another file now."""
        if self._file is None:
            return  # none was opened yet
        identity = file_identity(self.path)
        self._check_file_at = time.monotonic() + FILE_CHECK_SECONDS
        if identity != self._file:
            self._file = identity
            # SQLite leaves the files beside it alone when it closes a file that was moved.
            self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # not checked before: another thread may pop the last one in between
            while True:
                self._idle.pop().connection.close()

    def _release_connection(self, pooled: PooledConnection) -> None:
        if self._is_closed or pooled.file != self._file:
            pooled.connection.close()
        else:
            self._idle.append(pooled)

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
                # Temporary tables are small; creating a page cache for each would cost a single claim 100 µs.
                connection.execute("PRAGMA temp_store = MEMORY")
            except sqlite3.Error as error:
                raise translate_error(error, self.path) from error
            on_error.pop_all()
            return connection


class PooledConnection:
    """A connection, and the ``execute`` of one of its cursors: `Connection.execute` creates a cursor for each call."""

    __slots__ = ("connection", "file", "run")

    def __init__(self, connection: sqlite3.Connection, file: FileIdentity) -> None:
        self.connection = connection
        self.file = file
        self.run = connection.cursor().execute


def file_identity(path: Path) -> FileIdentity:
    """Return what distinguishes the file at *path* from others before it. Raise `StoreUnavailable` if there is none."""
    try:
        found = path.stat()
    except OSError as error:
        raise StoreUnavailable(f"{path}: {_REMOVED} ({error.strerror})") from error  # noqa: TRY003  it says which file
    return found.st_dev, found.st_ino


def create_private(path: Path) -> None:
    """Create the file, accessible by its owner only, unless it exists.

    SQLite uses the same mode for the files that it creates beside it. An existing file keeps its mode.
    """
    with suppress(OSError):  # it exists, or cannot be created: then SQLite reports the reason
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE_MODE))


FILE_MODE: Final = 0o600
FILE_CHECK_SECONDS: Final = 1.0
_REMOVED: Final = "removed while it was in use; restore it from a backup"
_LOCKED_BY_THREADS: Final = "other threads of this process have held the write lock for too long; try again"
_LOCKED_BY_OTHERS: Final = (
    "another process, or a handler's own write transaction, has held the write lock for too long; "
    "no lease can be extended meanwhile. Keep write transactions short, and try again"
)
_CLOSED: Final = "this driver was closed"
_HINTS: Final = {
    "SQLITE_BUSY": _LOCKED_BY_OTHERS,
    "SQLITE_PROTOCOL": "other processes have held its locks for too long; try again",
    "SQLITE_FULL": "disk full; nothing of this call was stored. Free disk space and try again",
    "SQLITE_CANTOPEN": "cannot be opened; check that its directory exists and that this user may write there",
    "SQLITE_READONLY": "read-only for this user",
    "SQLITE_NOTADB": "not a SQLite database",
    "SQLITE_CORRUPT": "database file damaged; restore it from a backup",
    "SQLITE_IOERR": "disk I/O error",
}
_REFUSED: Final = {"SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_NOTADB", "SQLITE_CORRUPT"}


def translate_error(error: sqlite3.Error, path: Path) -> Exception:
    """Return a `StoreUnavailable` for errors of the file or its lock, and any other error unchanged."""
    name = getattr(error, "sqlite_errorname", "")
    code = next((code for code in _HINTS if name.startswith(code)), None)
    if code is None:
        return error
    return (StoreRefused if code in _REFUSED else StoreUnavailable)(f"{path}: {_HINTS[code]} ({error})")
