"""The version of the database schema, and its migrations."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg

from taskharbor.core.errors import Problem, SchemaOutOfDate, UsageError
from taskharbor.drivers.migrate import RUN_MIGRATIONS, load_migrations
from taskharbor.drivers.postgres.server import ENCODING, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.migrate import Migration
    from taskharbor.drivers.postgres.pool import PostgresPool
    from taskharbor.drivers.postgres.server import ServerAddress

MIGRATIONS: Final = load_migrations("taskharbor.drivers.postgres.migrations")
DECLARED_VERSION: Final = 3
"""The migration that added the columns declared_at of th_schedules and schedules of th_workers."""
OPERATORS_VERSION: Final = 4
"""The migration that added what operators need: bulk operations, statistics, captured log lines and timelines."""


def require_operators(connections: PostgresPool) -> None:
    """Raise `SchemaOutOfDate` unless the schema has what that migration added. Read the version again before."""
    if connections.schema_version < OPERATORS_VERSION:
        connections.check_schema_again()
        if (found := connections.schema_version) < OPERATORS_VERSION:
            raise SchemaOutOfDate(str(found), str(OPERATORS_VERSION), RUN_MIGRATIONS)


class PostgresSchema:
    """Applies migrations and records them in th_migrations. An advisory lock serializes concurrent migrations."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address

    def version(self) -> int:
        with self._connection(self._address) as db, db.transaction():
            # The server must give up, too: behind a locked table, each try would leave a connection that waits.
            limits = self._address.settings
            db.execute(_LIMIT_TIME, [limits["lock_timeout"], limits["statement_timeout"]])
            return version(db, self._address.schema)

    def apply(self, migration: Migration) -> bool:
        # A migration may take hours, or wait as long for another process that migrates.
        with self._connection(replace(self._address, is_timed=False)) as db, db.transaction():
            db.execute(_script_start(self._address.schema).encode())
            if version(db, self._address.schema) != migration.number - 1:
                return False
            if migration.number == 1:
                _check_encoding(db)
            db.execute(_make_schema(self._address.schema).encode())
            try:
                db.execute(_with_record(migration).encode())
            except psycopg.Error as error:
                error.add_note(f"in migration {migration.name}")
                raise
            return True

    def script(self, migration: Migration) -> str:
        schema = self._address.schema
        start = f"-- {migration.name}, for: psql --set ON_ERROR_STOP=1 --file FILE\n\n{_BEGIN}{_script_start(schema)}"
        check = _CHECK_ENCODING if migration.number == 1 else ""
        return f"{start}{check}{_make_schema(schema)}\n{_with_record(migration)}\nCOMMIT;\n"

    @contextmanager
    def _connection(self, address: ServerAddress) -> Iterator[psycopg.Connection]:
        try:
            with address.connect(with_settings=False) as db:
                # At a higher level, migrations that others committed during the wait for the lock would not be visible.
                db.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                yield db
        except psycopg.Error as error:
            raise translate_error(error, address.place) from error


def version(db: psycopg.Connection, schema: str) -> int:
    """Return the number of the last migration of *schema*, or 0."""
    [has_table] = db.execute("SELECT to_regclass(%s) IS NOT NULL", [f'"{schema}".th_migrations']).fetchone() or [False]
    if not has_table:
        return 0
    # ServerAddress has validated the name of the schema.
    row = db.execute(f'SELECT max(number) FROM "{schema}".th_migrations'.encode()).fetchone()
    return row[0] or 0 if row else 0


def _check_encoding(db: psycopg.Connection) -> None:
    """Reject a database that is not UTF-8: it could refuse a job, or store text that cannot be read back."""
    [encoding] = db.execute("SHOW server_encoding").fetchone() or [""]
    if encoding != ENCODING:
        raise UsageError(Problem(field="database", value=f"encoded in {encoding}", rule=_ENCODING_RULE))


def _script_start(schema: str) -> str:
    return (
        "SET LOCAL statement_timeout = 0;\n"
        f"SELECT pg_advisory_xact_lock(hashtext('taskharbor'), hashtext('{schema}'));\n"
        f'SET LOCAL search_path = "{schema}";\n'
    )


def _make_schema(schema: str) -> str:
    # Not CREATE SCHEMA IF NOT EXISTS: it needs the CREATE privilege even if the schema exists.
    return f"""\
DO $$
BEGIN
    IF to_regnamespace('"{schema}"') IS NULL THEN
        CREATE SCHEMA "{schema}";
    END IF;
END
$$;
"""


def _with_record(migration: Migration) -> str:
    # A script has no parameters; number and name come from the name of a packaged file.
    return f"""\
{MIGRATIONS_TABLE if migration.number == 1 else ""}\
INSERT INTO th_migrations (number, name) VALUES ({migration.number}, '{migration.name}');

{migration.sql.rstrip()}
"""


_LIMIT_TIME: Final = "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)"
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED;\n"
_ENCODING_RULE: Final = (
    "the encoding must be UTF8; "
    "create another database: CREATE DATABASE name ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
)
_CHECK_ENCODING: Final = f"""\
DO $$
BEGIN
    IF current_setting('server_encoding') <> '{ENCODING}' THEN
        RAISE 'database is encoded in %', current_setting('server_encoding')
        USING HINT = $hint${_ENCODING_RULE}$hint$;
    END IF;
END
$$;
"""
MIGRATIONS_TABLE: Final = """\
CREATE TABLE IF NOT EXISTS th_migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""
