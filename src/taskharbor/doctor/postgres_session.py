"""A connection of the doctor to a PostgreSQL server, and how its checks are run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from taskharbor.doctor.findings import Finding, run_check
from taskharbor.drivers.postgres.server import translate_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from taskharbor.doctor.findings import Problem
    from taskharbor.drivers.postgres.server import ServerAddress

    Check = Callable[[psycopg.Connection], Iterable[Problem]]

STATEMENT_TIMEOUT: Final = "5s"


def run_checks(address: ServerAddress, *checks: tuple[str, str, Check]) -> Iterator[Finding]:
    """Run each check, given as its name, what it says if all is fine, and its function, on a connection of its own."""
    for name, fine, check in checks:

        def run(check: Check = check) -> list[Problem]:
            with _connection(address) as db:
                return list(check(db))

        yield from run_check(name, fine, run)


@contextmanager
def _connection(address: ServerAddress) -> Iterator[psycopg.Connection]:
    """Begin a read-only transaction without a driver, which would reject a schema of another version.

    The settings end with it: behind a pooler, the session is one of other programs afterwards.
    """
    try:
        with address.connect(with_settings=False) as db:
            db.read_only = True
            with db.transaction():
                settings = [STATEMENT_TIMEOUT, f'"{address.schema}"']
                db.execute(
                    "SELECT set_config('statement_timeout', %s, true), set_config('search_path', %s, true)", settings
                )
                yield db
    except psycopg.Error as error:
        raise translate_error(error, address.place) from error


def fetch(db: psycopg.Connection, query: bytes, *values: Any) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a query."""
    return db.execute(query, values).fetchall()


def fetch_value(db: psycopg.Connection, query: bytes, *values: Any) -> Any:
    """Return the value of a query that has one."""
    [(value,)] = fetch(db, query, *values)
    return value
