"""The schema of a SQLite file: read its version and apply migrations."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.drivers.migrate import load_migrations
from taskharbor.drivers.sqlite.pool import create_private, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.drivers.migrate import Migration

MIGRATIONS: Final = load_migrations("taskharbor.drivers.sqlite.migrations")


class SqliteSchema:
    """Stores the version in the table th_migrations, since the application may use the file's ``user_version``."""

    def __init__(self, path: Path, *, deadline: timedelta = timedelta(seconds=5)) -> None:
        self._path = path
        self._deadline = deadline

    def version(self) -> int:
        if not self._path.exists() and self._path.parent.is_dir():
            return 0
        # Not mode=ro: in WAL mode, a read-only connection creates two files beside this one and cannot remove them.
        with self._connection("rw") as connection:
            return _version(connection)

    def apply(self, migration: Migration) -> bool:
        create_private(self._path)
        with self._connection("rwc") as connection:
            _enter_wal(connection, self._deadline)
            connection.execute("BEGIN IMMEDIATE")
            if _version(connection) != migration.number - 1:
                return False
            try:
                for statement in statements(_with_its_record(migration)):
                    connection.execute(statement)
            except sqlite3.Error as error:
                error.add_note(f"in migration {migration.name}")
                raise
            connection.execute("COMMIT")
            return True

    def script(self, migration: Migration) -> str:
        begin = f"-- {migration.name}, for: sqlite3 -bail FILE\n\nPRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n"
        return f"{begin}\n{_with_its_record(migration)}\nCOMMIT;\n"

    @contextmanager
    def _connection(self, mode: str) -> Iterator[sqlite3.Connection]:
        """Open a connection. A transaction that is still open at the end is rolled back."""
        uri = f"{self._path.absolute().as_uri()}?mode={mode}"
        seconds = self._deadline.total_seconds()
        try:
            with closing(sqlite3.connect(uri, uri=True, timeout=seconds, isolation_level=None)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise translate_error(error, self._path) from error


def statements(sql: str) -> Iterator[str]:
    """Split a script as SQLite's own shell does: triggers, strings and comments may contain semicolons.

    ``executescript`` would split it too, but it first commits the open transaction.
    """
    *parts, rest = sql.split(";")
    statement = ""
    for part in parts:
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if (statement + rest).strip():
        yield statement + rest  # a comment, or a syntax error for SQLite to report


def _with_its_record(migration: Migration) -> str:
    # A script has no parameters. Number and name come from the name of a packaged file, so formatting them is safe.
    record = f"""\
CREATE TABLE IF NOT EXISTS th_migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
);
INSERT INTO th_migrations VALUES ({migration.number}, '{migration.name}', strftime('%s', 'now') * 1000000);
"""
    sql = migration.sql.rstrip()
    end = "\n" if sqlite3.complete_statement(sql) else "\n;\n"
    return f"{record}\n{sql}{end}"


def _version(connection: sqlite3.Connection) -> int:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'th_migrations'").fetchone():
        return 0
    version: int | None = connection.execute("SELECT max(number) FROM th_migrations").fetchone()[0]
    return version or 0


def _enter_wal(connection: sqlite3.Connection, deadline: timedelta) -> None:
    """Switch the file to WAL mode. SQLite does not wait for locks here, and other processes may do the same."""
    give_up_at = time.monotonic() + deadline.total_seconds()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > give_up_at:
                raise
            connection.execute("BEGIN IMMEDIATE")  # this does wait for the lock
            connection.execute("ROLLBACK")
        else:
            return
