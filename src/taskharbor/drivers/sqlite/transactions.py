"""Storing jobs, and recording how they ended, in a transaction of the user's own."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, SchemaOutOfDate, UsageError
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

_LEGACY: Final = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL, which Python 3.11 does not know yet


class SqliteTransaction:
    """A connection of the user's, through which jobs are stored and settled as part of what else it does."""

    undoes_settings: Final = True

    def __init__(self, connection: sqlite3.Connection, connections: SqlitePool, settings: SqliteSettings) -> None:
        rule = f"this store is SQLite; give a sqlite3.Connection to {connections.path}, or what works through one"
        check_kind(connection, sqlite3.Connection, rule)
        self._db = _Plain(connection)
        [file] = [row[2] for row in self._db.execute("PRAGMA database_list") if row[1] == "main"]
        if not file or not connections.path.exists() or not Path(file).samefile(connections.path):
            rule = f"it must be open on the driver's own file, {connections.path}"
            raise UsageError(Problem(field="connection", value=f"open on {file or 'no file'}", rule=rule))
        self._connection = connection
        self._now = connections.now
        self._settings = settings

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store *jobs* in the transaction that is open, or that Python's sqlite3 opens for them."""
        return insert(self._db, jobs, now=self._begin(), repeat=repeat)

    def remember(self, name: str, value: str) -> str:
        """Record a setting in the transaction that is open: SQLite has one writer, which may be this transaction."""
        known = self._settings.committed(name)
        if known is None:
            self._begin()
            known = record(self._db, name, value)  # not kept: a rollback undoes it
        return known

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record how attempts ended in the transaction that is open, or that Python's sqlite3 opens for it."""
        return settle_all(self._db, settlements, self._begin())

    def _begin(self) -> int:
        """See to it that there is, or will be, a transaction, and say what time it is."""
        mode = getattr(self._connection, "autocommit", _LEGACY)
        begins_none = self._connection.isolation_level is None if mode == _LEGACY else mode
        if begins_none and not self._connection.in_transaction:
            rule = "begin a transaction first, or a crash could leave half of a job behind"
            raise UsageError(Problem(field="connection", value="in autocommit mode", rule=rule))
        return self._now()


@contextmanager
def _explained() -> Iterator[None]:
    """Name the way out if the file has no tables of ours; every other error is the user's to handle."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "no such table: th_" not in str(error):
            raise
        raise SchemaOutOfDate("0", str(len(MIGRATIONS)), "run 'taskharbor migrate up'") from error


class _Plain:
    """Runs statements with cursors that return tuples, whatever kind the connection makes for its user."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        with _explained():
            return self._cursor().execute(statement, values)

    def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
        with _explained():
            return self._cursor().executemany(statement, values)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor
