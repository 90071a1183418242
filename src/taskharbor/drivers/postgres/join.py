"""Storing jobs in a transaction of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

from psycopg import Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from taskharbor.core.errors import Problem, UsageError
from taskharbor.drivers.postgres.inserting import insert
from taskharbor.drivers.postgres.listening import RING, channel, fed_queues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

    from taskharbor.core.answers import Inserted
    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob
    from taskharbor.drivers.postgres.connection import Connections, Row


class Joined:
    """A connection of the user's, through which jobs are stored as part of what else it does."""

    def __init__(self, connection: Connection[Any], connections: Connections, *, notify: bool) -> None:
        self._connection = connection
        self._connections = connections
        self._notify = notify

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Inserted | IdempotencyConflict]:
        """Store *jobs* in the transaction that is open, or that psycopg opens for them."""
        status = self._connection.pgconn.transaction_status
        if self._connection.autocommit and status == TransactionStatus.IDLE:
            rule = "begin a transaction first: 'with connection.transaction(): …'"
            raise UsageError(Problem(field="connection", value="in autocommit mode", rule=rule))
        answers = insert(self._fetch, jobs, repeat=repeat)
        if self._notify and (queues := sorted(fed_queues(jobs))):
            self._fetch(RING, channel=channel(self._connections.address.schema), queues=queues)
        return answers

    def _fetch(self, statement: LiteralString, **asked: Any) -> list[Row]:
        query, values = self._connections.named(statement), self._connections.timed(asked)
        # A plain cursor, whatever kind the connection makes for its user: Django's returns no binary results.
        with Cursor(self._connection, row_factory=tuple_row) as cursor:
            # Never prepared: whose pooler is in between is not known here.
            return cursor.execute(query, values, prepare=False, binary=True).fetchall()
