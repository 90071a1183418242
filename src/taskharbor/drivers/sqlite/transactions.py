"""Insert and settle jobs in the caller's own transaction."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, SchemaOutOfDate, UsageError
from taskharbor.drivers.migrate import RUN_MIGRATIONS
from taskharbor.drivers.sqlite.insert import insert
from taskharbor.drivers.sqlite.schema import MIGRATIONS
from taskharbor.drivers.sqlite.settings import record
from taskharbor.drivers.sqlite.settle import settle_all
from taskharbor.drivers.unwrap import check_kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob
    from taskharbor.core.results import Enqueued, Settlement
    from taskharbor.drivers.base import SettleAnswer
    from taskharbor.drivers.sqlite.pool import SqlitePool
    from taskharbor.drivers.sqlite.settings import SqliteSettings

_LEGACY: Final = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, new in Python 3.12
_IN_PROGRESS: Final = "SQL statements in progress"


class SqliteTransaction:
    """A caller's connection. Inserts and settles jobs in its open transaction."""

    undoes_settings: Final = True

    def __init__(self, connection: sqlite3.Connection, connections: SqlitePool, settings: SqliteSettings) -> None:
        rule = f"this store is SQLite; pass a sqlite3.Connection to {connections.path}, or an object that wraps one"
        check_kind(connection, sqlite3.Connection, rule)
        self._db = _TupleCursors(connection)
        with _texts_as_str(connection):
            [file] = [row[2] for row in self._db.execute("PRAGMA database_list") if row[1] == "main"]
        if not file or not connections.path.exists() or not Path(file).samefile(connections.path):
            rule = f"it must be open on the driver's own file, {connections.path}"
            raise UsageError(Problem(field="connection", value=f"open on {file or 'no file'}", rule=rule))
        self._connection = connection
        self._now = connections.now
        self._settings = settings

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store *jobs* in the open transaction, or in one that is opened for them. An error leaves none of them."""
        with self._changes() as now:
            return insert(self._db, jobs, now=now, repeat=repeat)

    def remember(self, name: str, value: str) -> str:
        """Record a setting in the open transaction: SQLite has one writer, which may be this transaction."""
        known = self._settings.committed(name)
        if known is None:
            with self._changes():
                known = record(self._db, name, value)  # not cached: a rollback undoes it
        return known

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record outcomes in the open transaction, or in one that is opened for them. An error leaves none of them."""
        with self._changes() as now:
            return settle_all(self._db, settlements, now)

    @contextmanager
    def _changes(self) -> Iterator[int]:
        """Provide the time to a block that changes rows. If it raises, undo what it changed.

        The caller may handle the error and commit: a key would then remain without its job.
        """
        check_connection(self._connection)
        with _texts_as_str(self._connection):
            undo, keep = self._begin()
            try:
                yield self._now()
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself may have rolled it back
                    self._run(undo)
                raise
            self._run(keep)

    def _begin(self) -> tuple[Sequence[str], Sequence[str]]:
        """Begin a transaction, or a savepoint in an open one. Return the statements that undo and keep the changes."""
        if not self._connection.in_transaction:
            self._run(["BEGIN IMMEDIATE"])
            return ["ROLLBACK"], []
        try:
            self._run(["SAVEPOINT taskharbor"])
        except sqlite3.OperationalError as error:
            if _IN_PROGRESS not in str(error):
                raise
            return [], []  # the caller has read only some rows of an INSERT … RETURNING
        return ["ROLLBACK TO taskharbor", "RELEASE taskharbor"], ["RELEASE taskharbor"]

    def _run(self, statements: Sequence[str]) -> None:
        for each in statements:
            self._db.execute(each)


def check_connection(connection: sqlite3.Connection) -> None:
    """Raise `UsageError` if *connection* has no transaction and will not open one."""
    mode = getattr(connection, "autocommit", _LEGACY)
    is_autocommit = connection.isolation_level is None if mode == _LEGACY else mode
    if is_autocommit and not connection.in_transaction:
        rule = "begin a transaction first; otherwise a crash could leave half of a job behind"
        raise UsageError(Problem(field="connection", value="in autocommit mode", rule=rule))


@contextmanager
def _texts_as_str(connection: sqlite3.Connection) -> Iterator[None]:
    """Let the cursors of *connection* return texts as str, whatever its text factory."""
    factory = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = factory


@contextmanager
def _explain_missing_tables() -> Iterator[None]:
    """Suggest a migration if the file has no TaskHarbor tables. All other errors reach the caller unchanged."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "no such table: th_" not in str(error):
            raise
        raise SchemaOutOfDate("0", str(len(MIGRATIONS)), RUN_MIGRATIONS) from error


class _TupleCursors:
    """Runs statements with cursors that return tuples, whatever the connection's row factory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        with _explain_missing_tables():
            return self._cursor().execute(statement, values)

    def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
        with _explain_missing_tables():
            return self._cursor().executemany(statement, values)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor
