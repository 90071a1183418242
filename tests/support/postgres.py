"""One PostgreSQL server for the whole test run, and new databases on it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg

from taskharbor.drivers import migrate
from taskharbor.drivers.postgres.schema import MIGRATIONS, PostgresSchema
from taskharbor.drivers.postgres.server import ServerAddress
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED: Final = "TASKHARBOR_TEST_SERVER"
"""The environment variable that names a running server: its port, a slash, and the template with our tables.

Planted bugs run in one process each and share a server.
"""
_NUMBERS: Final = count(1)
NEWEST: Final = len(MIGRATIONS)
PREVIOUS: Final = NEWEST - 1
"""The previous schema. Code must work with it, too, because it is deployed before its migration runs."""


@contextmanager
def database(*, migrated: bool = True, version: int = NEWEST) -> Iterator[str]:
    """Yield the URL of a new database, with our tables if *migrated*."""
    name = f"test_{os.getpid()}_{next(_NUMBERS)}"
    url = server().database(name, template=_template(version) if migrated else None)
    try:
        yield url
    finally:
        server().drop(name)


def emptied() -> str:
    """Return the URL of a shared database with empty tables, for hundreds of short cases, one at a time.

    Creating and dropping a database takes a checkpoint each. Deleting all rows does not.
    """
    return emptied_at(NEWEST)


def emptied_at(version: int) -> str:
    """Return the URL of a shared database with empty tables of an older schema."""
    url = _shared(version)
    try:
        _delete_all(_kept_connection(url, os.getpid()))
    except psycopg.OperationalError:  # a test has stopped the server, or ended all of its sessions
        _kept_connection.cache_clear()
        _delete_all(_kept_connection(url, os.getpid()))
    return url


def empty(url: str) -> None:
    """Delete everything from our tables."""
    with psycopg.connect(url, autocommit=True) as db:
        _delete_all(db)


def _delete_all(db: psycopg.Connection[Any]) -> None:
    tables = db.execute(_TABLES).fetchall()
    db.execute("; ".join(f"DELETE FROM {name}" for (name,) in tables).encode())


@cache
def _kept_connection(url: str, process: int) -> psycopg.Connection[Any]:  # noqa: ARG001  not shared with a fork
    """Connect once: a new session would read the catalog of every table again."""
    db = psycopg.connect(url, autocommit=True)
    atexit.register(db.close)
    return db


_TABLES: Final = """
    SELECT relname
      FROM pg_class
     WHERE relnamespace = 'public'::regnamespace
       AND relkind IN ('r', 'p')
       AND NOT relispartition
       AND relname <> 'th_migrations'
     ORDER BY relname <> 'th_jobs'  -- first: deleting dead letters inserts into th_dead_tallies
"""


@cache
def _shared(version: int) -> str:
    name = f"shared_{os.getpid()}_{version}"
    return server().database(name, template=_template(version))


@cache
def server() -> PostgresServer:
    if running := os.environ.get(SHARED):  # noqa: TID251  it selects the server of the tests
        return _borrowed(int(running.partition("/")[0]))
    folder = Path(tempfile.mkdtemp(prefix="taskharbor-postgres-"))
    started = PostgresServer.start(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(started.stop)
    return started


@cache
def _template(version: int) -> str:
    """Create a template database once: copying it is many times faster than migrating."""
    given = os.environ.get(SHARED, "").partition("/")[2]  # noqa: TID251  as above
    if given and version == NEWEST:
        return given
    name = f"template_{os.getpid()}_{version}"
    migrate.migrate_up(schema_at(server().database(name)), MIGRATIONS[:version])
    return name


def _borrowed(port: int) -> PostgresServer:
    """Return a server that another process starts and stops."""
    running: Any = object.__new__(PostgresServer)
    running._port = port  # noqa: SLF001  only its port is known here
    running.url = running._url("postgres")  # noqa: SLF001  as above
    with psycopg.connect(running.url) as db:
        running.version = db.info.server_version
    return cast("PostgresServer", running)


def schema_at(url: str, *, schema: str = "public") -> PostgresSchema:
    return PostgresSchema(ServerAddress(url=url, schema=schema))
