"""Storing jobs in a transaction of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taskharbor.core.errors import Problem, UsageError
from taskharbor.drivers.sqlite.inserting import insert
from taskharbor.drivers.sqlite.rows import micros

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from taskharbor.core.answers import Inserted
    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob
    from taskharbor.drivers.sqlite.connection import Connections


class Joined:
    """A connection of the user's, through which jobs are stored as part of what else it does."""

    def __init__(self, connection: sqlite3.Connection, connections: Connections) -> None:
        [file] = [row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"]
        if not file or not Path(file).samefile(connections.path):
            rule = f"it must be open on the driver's own file, {connections.path}"
            raise UsageError(Problem(field="connection", value=f"open on {file or 'no file'}", rule=rule))
        self._connection = connection
        self._clock = connections.clock

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Inserted | IdempotencyConflict]:
        """Store *jobs* in the transaction that is open, or that Python's sqlite3 opens for them."""
        if self._connection.isolation_level is None and not self._connection.in_transaction:
            rule = "begin a transaction first, or a crash could leave half of a job behind"
            raise UsageError(Problem(field="connection", value="in autocommit mode", rule=rule))
        return insert(self._connection, jobs, now=micros(self._clock.now()), repeat=repeat)
