"""Marks that show whether a user's transaction was committed, also after its connection was closed.

Neither psycopg nor sqlite3 reports commits. So the harness writes a mark in the transaction, or in its savepoint, and
reads it on a connection of its own:

- PostgreSQL: the mark is the id of the transaction or subtransaction. The server knows whether that was committed.
- SQLite: the mark is a row in a file that is attached to the user's connection. Others can read it after the commit.
"""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
import threading
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from taskharbor.core.errors import Problem, UsageError
from taskharbor.drivers.unwrap import is_asyncpg

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import AsyncConnection, Connection

CONNECT_TIMEOUT_SECONDS: Final = 10


class Fate(Enum):
    """What became of the writes of a transaction. A rolled back one may stay OPEN: on SQLite both look the same."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


@dataclass(frozen=True, slots=True)
class PostgresMark:
    """The id of a PostgreSQL transaction, or of the subtransaction that a savepoint begins."""

    server: tuple[tuple[str, Any], ...] = field(repr=False)  # with the password
    transaction: int

    def fate_inside(self) -> Fate:
        """Return the fate that the transaction around an open one sees: this one was not aborted, so it is kept."""
        return Fate.COMMITTED


@dataclass(frozen=True, slots=True)
class SqliteMark:
    """A row in the file that is attached to a user's connection."""

    connection: sqlite3.Connection
    file: Path
    row: bytes
    thread: int

    def fate_inside(self) -> Fate:
        """Return the fate that the transaction around an open one sees: whether the connection still has the row."""
        if self.thread != threading.get_ident():
            return Fate.OPEN  # sqlite3 would refuse to use the connection in this thread
        try:
            is_kept = _has_row(self.connection, f"{_SCHEMA}.marks", self.row)
        except sqlite3.ProgrammingError:  # the connection is closed
            is_kept = False
        return Fate.COMMITTED if is_kept else Fate.ROLLED_BACK


Mark = PostgresMark | SqliteMark


def mark(connection: Any) -> Mark:
    """Write a mark in the open transaction of a psycopg or sqlite3 connection."""
    return _mark_sqlite(connection) if isinstance(connection, sqlite3.Connection) else _mark_postgres(connection)


async def amark(connection: Any) -> PostgresMark:
    """Write a mark in the open transaction of an async connection of psycopg or asyncpg."""
    if is_asyncpg(connection):
        await connection.execute(_CREATE_TABLE)
        transaction = await connection.fetchval(_TRANSACTION_OF_TABLE)
        await connection.execute(_DROP_TABLE)
        return PostgresMark(_server_of_asyncpg(connection), transaction)
    from psycopg import AsyncCursor  # noqa: PLC0415  users of SQLite may not have it
    from psycopg.rows import tuple_row  # noqa: PLC0415  as above

    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_CREATE_TABLE, prepare=False)
        [(transaction,)] = await (await cursor.execute(_TRANSACTION_OF_TABLE, prepare=False)).fetchall()
        await cursor.execute(_DROP_TABLE, prepare=False)
    return PostgresMark(_server_of(connection), transaction)


def fates(marks: Iterable[Mark]) -> dict[Mark, Fate]:
    """Return what became of the transactions of *marks*, with one query for each PostgreSQL server."""
    found: dict[Mark, Fate] = {}
    by_server: defaultdict[tuple[tuple[str, Any], ...], set[PostgresMark]] = defaultdict(set)
    for each in marks:
        if isinstance(each, PostgresMark):
            by_server[each.server].add(each)
        else:
            found[each] = _fate_of_row(each)
    for server, asked in by_server.items():
        found |= _ask_postgres(server, asked)
    return found


# A subtransaction has an id once it has written something. PostgreSQL shows this id only as the xmin of a row, such as
# that of a new table in pg_class; pg_current_xact_id() is the id of the whole transaction, whose upper half it shares.
# Never prepared: the connection may go through a pooler.
_CREATE_TABLE: Final = "CREATE TEMPORARY TABLE taskharbor_mark () ON COMMIT DROP"
_TRANSACTION_OF_TABLE: Final = """
    SELECT (pg_current_xact_id()::text::bigint >> 32 << 32) + xmin::text::bigint
      FROM pg_class
     WHERE oid = 'pg_temp.taskharbor_mark'::regclass
"""
_DROP_TABLE: Final = "DROP TABLE pg_temp.taskharbor_mark"
_STATUS: Final = """
    SELECT id, pg_xact_status(id::text::xid8)
      FROM unnest(%s::bigint[]) AS asked (id)
"""
_POSTGRES_FATES: Final = {
    "in progress": Fate.OPEN,
    "committed": Fate.COMMITTED,
    "aborted": Fate.ROLLED_BACK,
}


def _mark_postgres(connection: Connection[Any]) -> PostgresMark:
    from psycopg import Cursor  # noqa: PLC0415  users of SQLite may not have it
    from psycopg.rows import tuple_row  # noqa: PLC0415  as above

    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(_CREATE_TABLE, prepare=False)
        [(transaction,)] = cursor.execute(_TRANSACTION_OF_TABLE, prepare=False).fetchall()
        cursor.execute(_DROP_TABLE, prepare=False)
    return PostgresMark(_server_of(connection), transaction)


def _server_of(connection: Connection[Any] | AsyncConnection[Any]) -> tuple[tuple[str, Any], ...]:
    """Return the parameters for another connection to the same server."""
    return tuple((connection.info.get_parameters() | {"password": connection.info.password}).items())


def _server_of_asyncpg(connection: Any) -> tuple[tuple[str, Any], ...]:
    """Return the same of a connection of asyncpg, which has no public attribute for it."""
    place, params = connection._addr, connection._params  # noqa: SLF001  see above
    host, port = place if isinstance(place, tuple) else (str(Path(place).parent), place.rpartition(".")[2])
    given = {"host": host, "port": port, "user": params.user, "password": params.password, "dbname": params.database}
    return tuple((name, str(value)) for name, value in given.items() if value)


def _ask_postgres(server: tuple[tuple[str, Any], ...], marks: Iterable[PostgresMark]) -> dict[Mark, Fate]:
    import psycopg  # noqa: PLC0415  as above

    by_id = {each.transaction: each for each in marks}
    parameters: dict[str, Any] = dict(server) | {"connect_timeout": CONNECT_TIMEOUT_SECONDS}
    try:
        # Closed at once: a test may drop its database, which fails while a connection is open.
        with psycopg.connect(**parameters, autocommit=True) as db:
            rows = db.execute(_STATUS, [list(by_id)]).fetchall()
    except psycopg.OperationalError as error:
        rule = f"the harness cannot ask its server whether the transaction was committed: {error}"
        raise UsageError(Problem(field="connection", value="a psycopg connection", rule=rule)) from error
    return {by_id[id_]: _POSTGRES_FATES[status] for id_, status in rows}


_SCHEMA: Final = "taskharbor_marks"


def _mark_sqlite(connection: sqlite3.Connection) -> SqliteMark:
    cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    attached = {name: file for _, name, file in cursor.execute("PRAGMA database_list")}
    if _SCHEMA not in attached:
        attached[_SCHEMA] = str(_new_file())
        cursor.execute(f"ATTACH ? AS {_SCHEMA}", (attached[_SCHEMA],))
    row = uuid4().bytes
    cursor.execute(f"INSERT INTO {_SCHEMA}.marks VALUES (?)", (row,))  # noqa: S608  a constant
    return SqliteMark(connection, Path(attached[_SCHEMA]), row, threading.get_ident())


def _new_file() -> Path:
    """Create a file for marks. It is removed when Python exits, because the connection may stay open until then."""
    folder = Path(tempfile.mkdtemp(prefix="taskharbor-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with closing(sqlite3.connect(folder / "marks.db")) as db:
        db.execute("PRAGMA journal_mode = WAL")  # so that the user's open transaction does not block reads
        db.execute("CREATE TABLE marks (row BLOB PRIMARY KEY) WITHOUT ROWID")
    return folder / "marks.db"


def _fate_of_row(mark: SqliteMark) -> Fate:
    with closing(sqlite3.connect(mark.file)) as db:
        return Fate.COMMITTED if _has_row(db, "marks", mark.row) else Fate.OPEN


def _has_row(db: sqlite3.Connection, table: str, row: bytes) -> bool:
    cursor = db.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    return bool(cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {table} WHERE row = ?)", (row,)).fetchone()[0])  # noqa: S608  a constant
