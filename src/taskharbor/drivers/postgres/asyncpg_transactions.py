"""Inserting and settling jobs in the transaction of the caller's asyncpg connection. asyncpg is not imported."""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar
from uuid import UUID

from taskharbor.core.errors import Problem, SchemaOutOfDate, UsageError
from taskharbor.drivers.postgres.insert import insert
from taskharbor.drivers.postgres.notify import ready_queues
from taskharbor.drivers.postgres.pool import arun_statements
from taskharbor.drivers.postgres.rows import UuidArray
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.drivers.postgres.settle import WAITS, settle_statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob
    from taskharbor.core.results import Enqueued, Settlement
    from taskharbor.drivers.base import SettleAnswer
    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps
    from taskharbor.drivers.postgres.settings import PostgresSettings
    from taskharbor.drivers.postgres.transactions import Notification

T = TypeVar("T")

_NO_TABLES: Final = "run 'taskharbor migrate up' on the database of this connection, or connect to the store's own"
_MISSING: Final = frozenset({"42P01", "3F000"})
"""The SQLSTATE of a missing table and of a missing schema."""
_PARAMETER: Final = re.compile(r"%\((\w+)\)s(::)?")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-?)([0-9a-f]{4}\1){3}[0-9a-f]{12}")
_ITEM_BYTES: Final = 20  # of a uuid in a binary array: its size, then the uuid


class AsyncpgTransaction:
    """`AsyncPostgresTransaction` for a connection of asyncpg."""

    def __init__(
        self, connection: Any, connections: PostgresPool, settings: PostgresSettings, notification: Notification
    ) -> None:
        self._connection = connection
        self._connections = connections
        self._settings = settings
        self._notification = notification

    async def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        """Store *jobs* in the transaction that is open."""
        return await self._run(self._notification.after(insert(jobs, repeat=repeat), ready_queues(jobs)))

    async def remember(self, name: str, value: str) -> str:
        """Record a setting as `PostgresTransaction` does, in another thread."""
        known = self._settings.known(name)
        return await asyncio.to_thread(self._settings.remember, name, value) if known is None else known

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        """Record how attempts ended in the transaction that is open."""
        return await self._run(
            self._notification.after(settle_statements(settlements, WAITS), self._notification.queues_of(settlements))
        )

    async def _run(self, steps: Steps[T]) -> T:
        check_connection(self._connection)
        with _translate_missing_tables():
            return await arun_statements(steps, self._fetch)

    async def _fetch(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        query, values = numbered(
            self._connections.qualified(statement).decode(), self._connections.with_now(parameters)
        )
        return [tuple(map(_plain, row)) for row in await self._connection.fetch(query, *values)]


def check_connection(connection: Any) -> None:
    """Raise `UsageError` if an asyncpg connection has no transaction: each statement would be committed by itself."""
    if not connection.is_in_transaction():
        rule = "begin a transaction first: 'async with connection.transaction(): …'"
        raise UsageError(Problem(field="connection", value="in autocommit mode", rule=rule))


def numbered(query: str, parameters: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return *query* with the parameters $1, $2 and so on, and their values.

    asyncpg encodes a value by the type of its parameter. Arrays and JSON that are already text, and uuids, are sent as
    text, and the server converts them: so codecs that the application has set on its connection do not matter.
    """
    places: dict[str, int] = {}
    values: list[Any] = []

    def place(match: re.Match[str]) -> str:
        name, cast = match[1], match[2] or ""
        value, kind = _text(parameters[name])
        if name not in places:
            values.append(value)
            places[name] = len(values)
        as_text = f"::text{kind}" if (cast or kind) and isinstance(value, str) else ""
        return f"${places[name]}{as_text}{cast}"

    return _PARAMETER.sub(place, query).replace("%%", "%"), values


def _text(value: Any) -> tuple[Any, str]:
    """Return a uuid or an array of uuids as text, and the cast to its type; any other value as it is, without one."""
    if isinstance(value, UUID):
        return str(value), "::uuid"
    if isinstance(value, UuidArray):  # in the binary format of psycopg
        items = [value[start + 4 : start + _ITEM_BYTES].hex() for start in range(_ITEM_BYTES, len(value), _ITEM_BYTES)]
    elif isinstance(value, list) and value and isinstance(value[0], UUID):
        items = [each.hex for each in value]
    else:
        return value, ""
    return f"{{{','.join(items)}}}", "::uuid[]"


def _plain(value: Any) -> Any:
    """Return a uuid of asyncpg's own class, or as text by a codec of the application, as one of Python's."""
    if isinstance(value, UUID):
        return UUID(int=value.int)
    if isinstance(value, str) and _UUID.fullmatch(value):  # no other text in these results looks like that
        return UUID(value)
    return [_plain(each) for each in value] if isinstance(value, list) else value


@contextmanager
def _translate_missing_tables() -> Iterator[None]:
    """Raise `SchemaOutOfDate` if the tables are missing; leave every other error to the caller."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) not in _MISSING:
            raise
        raise SchemaOutOfDate("0", str(len(MIGRATIONS)), _NO_TABLES) from error
