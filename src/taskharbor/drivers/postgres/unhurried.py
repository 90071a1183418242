"""Statements that have to read or drop much, and that no caller waits for."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

from taskharbor.drivers.postgres.address import REPLY_TIMEOUT_FACTOR
from taskharbor.drivers.postgres.steps import run_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from taskharbor.drivers.postgres.address import ServerConnection
    from taskharbor.drivers.postgres.connection import PostgresPool, Row
    from taskharbor.drivers.postgres.steps import Steps

    T = TypeVar("T")

_LOCK_TIMEOUT: Final[LiteralString] = "SELECT set_config('statement_timeout', %s, true)"


def transact(connections: PostgresPool, verb: Callable[[], Steps[T]], *, patience: timedelta) -> T:
    """Run all statements of *verb* in one transaction; each may take *patience* instead of the driver's deadline.

    Two limits make up the deadline, the server's and the client's, and both are raised. The server's is set
    after the other settings: behind a pooler those are set in each transaction, and include it.
    """

    def work(db: ServerConnection) -> T:
        def fetch(statement: LiteralString, **asked: Any) -> list[Row]:
            connections.statements += 1
            return db.ask(connections.named(statement), connections.timed(asked))

        with _without_timeout(db, patience), db.transaction():
            connections.pin(db)
            db.execute(_LOCK_TIMEOUT, [str(round(patience.total_seconds() * 1_000))])
            return run_statements(verb(), fetch)

    return connections.run(work)


@contextmanager
def _without_timeout(db: ServerConnection, patience: timedelta) -> Iterator[None]:
    """Let the client wait for a reply for longer than the server may take, the reply to COMMIT included."""
    before = db.patience
    if before is not None:
        db.patience = max(before, REPLY_TIMEOUT_FACTOR * patience.total_seconds())
    try:
        yield
    finally:
        db.patience = before
