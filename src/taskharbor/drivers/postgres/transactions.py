"""Inserting and settling jobs in the caller's own transaction."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.errors import InvalidSchemaName, UndefinedTable
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from taskharbor.core.errors import Problem, SchemaOutOfDate, UsageError
from taskharbor.core.states import Event
from taskharbor.drivers.notices import ANY_QUEUE
from taskharbor.drivers.postgres.insert import insert
from taskharbor.drivers.postgres.notify import NOTIFY, channel_name, ready_queues
from taskharbor.drivers.postgres.pool import arun_statements, run_statements
from taskharbor.drivers.postgres.rows import UuidArray, UuidArrayDumper
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.drivers.postgres.settle import WAITS, settle_statements
from taskharbor.drivers.unwrap import check_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob
    from taskharbor.core.results import Enqueued, Settlement
    from taskharbor.drivers.base import SettleAnswer
    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps
    from taskharbor.drivers.postgres.settings import PostgresSettings

T = TypeVar("T")

_KIND_RULE: Final = (
    "this store is PostgreSQL; pass a psycopg (3) Connection to its database, or an object that wraps one"
)
_ASYNC_KIND_RULE: Final = f"{_KIND_RULE}; await the call if it is async"
_NO_TABLES: Final = "run 'taskharbor migrate up' on the database of this connection, or connect to the store's own"


class PostgresTransaction:
    """Stores and settles jobs in the open transaction of the caller's connection."""

    def __init__(
        self, connection: Connection[Any], connections: PostgresPool, settings: PostgresSettings, *, notify: bool
    ) -> None:
        check_kind(connection, Connection, _KIND_RULE)
        self._connection = connection
        self._connections = connections
        self._settings = settings
        self._notification = Notification(connections, is_on=notify)

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store *jobs* in the transaction that is open, or that psycopg opens for them."""
        return self._run(self._notification.after(insert(jobs, repeat=repeat), ready_queues(jobs)))

    def remember(self, name: str, value: str) -> str:
        """Record a setting on a connection of the driver: in the caller's transaction it would block other sessions."""
        return self._settings.remember(name, value)

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record how attempts ended in the transaction that is open, or that psycopg opens for it."""
        return self._run(
            self._notification.after(settle_statements(settlements, WAITS), self._notification.queues_of(settlements))
        )

    def _run(self, steps: Steps[T]) -> T:
        check_connection(self._connection)
        with _translate_missing_tables():
            return run_statements(steps, self._fetch)

    def _fetch(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        query, values = self._connections.qualified(statement), self._connections.with_now(parameters)
        # Not connection.cursor(): the cursor class of Django's connections returns no binary results.
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.adapters.register_dumper(UuidArray, UuidArrayDumper)
            # An inner pipeline ends with the answers; an outer one would keep them back.
            with self._connection.pipeline() if self._connection.info.pipeline_status else nullcontext():
                # Never prepared: the connection may go through a pooler.
                cursor.execute(query, values, prepare=False, binary=True)
            return [] if cursor.rownumber is None else cursor.fetchall()


class AsyncPostgresTransaction:
    """`PostgresTransaction` for an async connection."""

    def __init__(
        self, connection: AsyncConnection[Any], connections: PostgresPool, settings: PostgresSettings, *, notify: bool
    ) -> None:
        check_kind(connection, AsyncConnection, _ASYNC_KIND_RULE)
        self._connection = connection
        self._connections = connections
        self._settings = settings
        self._notification = Notification(connections, is_on=notify)

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store *jobs* in the transaction that is open, or that psycopg opens for them."""
        return await self._run(self._notification.after(insert(jobs, repeat=repeat), ready_queues(jobs)))

    async def remember(self, name: str, value: str) -> str:
        """Record a setting as `PostgresTransaction` does, in another thread."""
        known = self._settings.known(name)
        return await asyncio.to_thread(self._settings.remember, name, value) if known is None else known

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record how attempts ended in the transaction that is open, or that psycopg opens for it."""
        return await self._run(
            self._notification.after(settle_statements(settlements, WAITS), self._notification.queues_of(settlements))
        )

    async def _run(self, steps: Steps[T]) -> T:
        check_connection(self._connection)
        with _translate_missing_tables():
            return await arun_statements(steps, self._fetch)

    async def _fetch(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        query, values = self._connections.qualified(statement), self._connections.with_now(parameters)
        async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            cursor.adapters.register_dumper(UuidArray, UuidArrayDumper)
            async with self._connection.pipeline() if self._connection.info.pipeline_status else nullcontext():
                await cursor.execute(query, values, prepare=False, binary=True)
            return [] if cursor.rownumber is None else await cursor.fetchall()


class Notification:
    """Adds a NOTIFY to the transaction. Listeners receive it at commit, and not at all after a rollback."""

    def __init__(self, connections: PostgresPool, *, is_on: bool) -> None:
        self._channel = channel_name(connections.address.schema)
        self._is_on = is_on

    def after(self, steps: Steps[T], queues: Collection[str]) -> Steps[T]:
        """Run *steps*, then notify *queues*, if there are any."""
        answers = yield from steps
        if self._is_on and queues:
            yield NOTIFY, {"channel": self._channel, "queues": sorted(queues)}
        return answers

    @staticmethod
    def queues_of(settlements: Sequence[Settlement]) -> list[str]:
        """Return the queues to notify: any queue if a job was released, because its queue is not known."""
        return [ANY_QUEUE] if any(each.outcome.event is Event.RELEASE for each in settlements) else []


@contextmanager
def _translate_missing_tables() -> Iterator[None]:
    """Raise `SchemaOutOfDate` if the tables are missing; leave every other error to the caller."""
    try:
        yield
    except (InvalidSchemaName, UndefinedTable) as error:
        raise SchemaOutOfDate("0", str(len(MIGRATIONS)), _NO_TABLES) from error


def check_connection(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Raise `UsageError` if *connection* cannot send every text, or has no transaction and will not open one."""
    if connection.info.encoding != "utf-8":
        encoding = connection.info.parameter_status("client_encoding")
        rule = "it could not send every text; connect with client_encoding=UTF8"
        raise UsageError(Problem(field="connection", value=f"in client_encoding {encoding}", rule=rule))
    if connection.autocommit and connection.pgconn.transaction_status == TransactionStatus.IDLE:
        rule = "begin a transaction first: 'with connection.transaction(): …'"
        raise UsageError(Problem(field="connection", value="in autocommit mode", rule=rule))
