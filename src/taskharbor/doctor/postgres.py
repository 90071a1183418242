"""Checks of a PostgreSQL server: access, settings, connections, indexes and triggers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import psycopg

from taskharbor.core.ids import new_token
from taskharbor.doctor.findings import Finding, Level, run_check
from taskharbor.doctor.postgres_session import fetch, fetch_value, run_checks
from taskharbor.doctor.postgres_tables import check_tables
from taskharbor.drivers.postgres.driver import POOL_SIZE
from taskharbor.drivers.postgres.schema import MIGRATIONS, MIGRATIONS_TABLE
from taskharbor.drivers.postgres.server import translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from taskharbor.doctor.findings import Problem
    from taskharbor.drivers.postgres.server import ServerAddress

MIN_VERSION: Final = 140_000
FULL_SERVER: Final = 0.8
MAX_NAMED: Final = 5
NOTIFY_SECONDS: Final = 2.0
_NEEDED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_INDEX: Final = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+)", re.MULTILINE)
_NEW_TABLE: Final = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)
_TABLE: Final = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+) \(.*?^\)", re.MULTILINE | re.DOTALL)
_PRIMARY_KEY: Final = re.compile(
    r"^ +(?:PRIMARY KEY \(.*?\)(?: INCLUDE \(.*?\))?|(\w+) .*\bPRIMARY KEY\b)", re.MULTILINE
)
_TRIGGER: Final = re.compile(r"^CREATE TRIGGER (\w+) (?:BEFORE|AFTER) \w+(?: OF [\w, ]+)? ON (\w+)", re.MULTILINE)


def check_server(address: ServerAddress) -> Iterator[Finding]:
    """Check whether the server can be used."""
    yield from run_checks(
        address,
        ("server", "the server accepts writes, and its version is supported", _server),
        ("privileges", "this user may use all tables, and owns those that get partitions", _privileges),
    )


def check_operation(address: ServerAddress, *, keep: timedelta) -> Iterator[Finding]:
    """Check settings, connections, indexes, triggers and tables. *keep* is the retention of finished jobs."""
    yield from run_check(
        "notifications",
        "not used behind a pooler: workers poll" if address.is_pooled else "LISTEN and NOTIFY work",
        lambda: _notifications(address),
    )
    yield from run_checks(
        address,
        ("durability", "commits are durable", _durability),
        ("connections", "there are enough connections", _connections),
        ("tables", "all tables exist", _missing_tables),
        ("indexes", "all indexes exist and are valid", _indexes),
        ("triggers", "all triggers exist and are enabled", _triggers),
        ("idle transactions", "the server ends transactions that are left open", _idle_timeout),
    )
    yield from check_tables(address, keep=keep)


def _server(db: psycopg.Connection) -> Iterator[Problem]:
    version = db.info.server_version
    if version < MIN_VERSION:
        yield (
            Level.FAIL,
            f"the server is PostgreSQL {version // 10_000}",
            f"upgrade it to {MIN_VERSION // 10_000} or newer",
        )
    if fetch_value(db, b"SELECT pg_is_in_recovery()"):
        yield (
            Level.FAIL,
            "the server is a standby and read-only",
            "connect to the primary (target_session_attrs=read-write)",
        )
    elif fetch_value(db, b"SELECT current_setting('default_transaction_read_only')") == "on":
        yield (
            Level.FAIL,
            "transactions are read-only by default",
            "set default_transaction_read_only to off for this user",
        )


def _privileges(db: psycopg.Connection) -> Iterator[Problem]:
    tables = [name for (name,) in fetch(db, _TABLES)]
    missing = [
        f"{privilege} on {table}"
        for table in tables
        for privilege in _NEEDED
        if not fetch_value(db, b"SELECT has_table_privilege(%s, %s)", table, privilege)
    ]
    if missing:
        shown = ", ".join(missing[:MAX_NAMED])
        if len(missing) > MAX_NAMED:
            shown += f" and {len(missing) - MAX_NAMED} more"
        yield Level.FAIL, f"user {db.info.user!r} lacks {shown}", f"GRANT them to {db.info.user}"
    owner = fetch_value(
        db, b"SELECT max(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass('th_jobs_finished')"
    )
    if owner is not None and not fetch_value(db, b"SELECT pg_has_role(%s, 'USAGE')", owner):
        yield (
            Level.WARN,
            f"user {db.info.user!r} does not own the tables; it can neither create nor drop the partitions of days",
            f"GRANT {owner} TO {db.info.user}, or run 'taskharbor janitor' as {owner}",
        )


def _durability(db: psycopg.Connection) -> Iterator[Problem]:
    for name in ("fsync", "full_page_writes"):
        if fetch_value(db, b"SELECT current_setting(%s)", name) == "off":
            text = f"{name} is off: a crash of the machine can destroy the whole database"
            yield Level.FAIL, text, f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
    if fetch_value(db, b"SELECT current_setting('synchronous_commit')") == "off":
        text = "synchronous_commit is off: jobs that were accepted shortly before a crash of the server can be lost"
        yield Level.FAIL, text, "set it to on for this user or database"


def _connections(db: psycopg.Connection) -> Iterator[Problem]:
    [(limit, reserved)] = fetch(
        db, b"SELECT current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int"
    )
    usable = limit - reserved
    used = fetch_value(db, _USED_CONNECTIONS)
    if used >= usable * FULL_SERVER:
        text = f"{used} of {usable} connections are in use"
        yield Level.WARN, text, "raise max_connections, lower the pool sizes, or use a pooler (docs/stores.md)"
    workers = fetch_value(db, b"SELECT count(*) FROM th_workers WHERE seen_at > now() - interval '30 seconds'")
    if workers * POOL_SIZE > usable:
        text = f"{workers} live workers may open up to {POOL_SIZE} connections each, but the server allows {usable}"
        yield Level.WARN, text, "raise max_connections, or use a pooler (docs/stores.md)"


def _notifications(address: ServerAddress) -> Iterator[Problem]:
    """Send a notification through another connection: a pooler in transaction mode loses it."""
    if address.is_pooled:
        return
    try:
        with address.connect(with_settings=False) as listening, address.connect(with_settings=False) as other:
            listening.autocommit = other.autocommit = True
            channel = f"taskharbor_doctor_{new_token().hex}"
            listening.execute(f"LISTEN {channel}".encode())
            listening.execute(b"SELECT 1")  # a pooler may serve it, and what follows, by another session
            other.execute(b"SELECT pg_notify(%s, '')", [channel])
            if next(listening.notifies(timeout=NOTIFY_SECONDS, stop_after=1), None) is None:
                yield (
                    Level.WARN,
                    "a notification did not arrive; a pooler in transaction mode loses them, and workers then poll",
                    "connect workers directly, or add pooler=transaction to the URL if there is a pooler",
                )
    except psycopg.Error as error:
        raise translate_error(error, address.place) from error


def _made(db: psycopg.Connection) -> Iterator[str]:
    """Return the SQL that made the tables of this store. A migration may be pending: what it makes is not missing."""
    number = fetch_value(db, b"SELECT coalesce(max(number), 0) FROM th_migrations")
    yield MIGRATIONS_TABLE
    yield from (migration.sql for migration in MIGRATIONS[:number])


def _missing_tables(db: psycopg.Connection) -> Iterator[Problem]:
    found = {name for (name,) in fetch(db, _TABLES)}
    for name in (name for sql in _made(db) for name in _NEW_TABLE.findall(sql)):
        if name not in found:
            yield (
                Level.FAIL,
                f"table {name} is missing",
                f"restore it from a backup, or empty from a new database with the same schema: pg_dump -s -t {name}",
            )


def _indexes(db: psycopg.Connection) -> Iterator[Problem]:
    found = dict(fetch(db, _INDEXES))
    for name, statement in (index for sql in _made(db) for index in _indexes_in(sql)):
        if name not in found:
            yield Level.FAIL, f"index {name} is missing", statement
    for (leaf,) in fetch(db, _LEAVES):
        if f"{leaf}_id" not in found:
            yield Level.FAIL, f"index {leaf}_id is missing", f"CREATE UNIQUE INDEX {leaf}_id ON {leaf} (id);"
    for name, is_valid in found.items():
        if not is_valid:
            yield Level.FAIL, f"index {name} is invalid", f"REINDEX INDEX CONCURRENTLY {name}"


def _indexes_in(sql: str) -> Iterator[tuple[str, str]]:
    """Return each index that *sql* makes, primary keys too, and the statement that makes it."""
    for statement in re.findall(r"^CREATE (?:UNIQUE )?INDEX .*?;", sql, re.MULTILINE | re.DOTALL):
        name = _INDEX.match(statement)
        if name is not None:
            yield name[1], " ".join(statement.split())
    for table, definition in _primary_keys(sql):
        yield f"{table}_pkey", f"ALTER TABLE {table} ADD {definition};"


def _primary_keys(sql: str) -> Iterator[tuple[str, str]]:
    """Return each table that *sql* makes with a primary key, and the definition of that key."""
    for table in _TABLE.finditer(sql):
        if (key := _PRIMARY_KEY.search(table[0])) is not None:
            yield table[1], f"PRIMARY KEY ({key[1]})" if key[1] else key[0].strip()


def _triggers(db: psycopg.Connection) -> Iterator[Problem]:
    enabled = {(name, table): state != "D" for name, table, state in fetch(db, _TRIGGERS)}
    for sql in _made(db):
        for name, table in _TRIGGER.findall(sql):
            if (name, table) not in enabled:
                statement = re.search(rf"^CREATE TRIGGER {name}\b[^;]* ON {table}\b.*?;", sql, re.MULTILINE | re.DOTALL)
                remedy = " ".join(statement[0].split()) if statement is not None else ""
                yield Level.FAIL, f"trigger {name} of {table} is missing", remedy
            elif not enabled[name, table]:
                remedy = f"ALTER TABLE {table} ENABLE TRIGGER {name}"
                yield Level.FAIL, f"trigger {name} of {table} is disabled", remedy


def _idle_timeout(db: psycopg.Connection) -> Iterator[Problem]:
    if fetch_value(db, b"SELECT current_setting('idle_in_transaction_session_timeout')") == "0":
        yield (
            Level.WARN,
            "idle_in_transaction_session_timeout is off; a forgotten transaction holds back vacuum without end",
            f"ALTER DATABASE \"{db.info.dbname}\" SET idle_in_transaction_session_timeout = '10min'",
        )


# What a session of another user is, only a superuser and members of pg_read_all_stats may see.
_USED_CONNECTIONS: Final = b"""
    SELECT count(*)
      FROM pg_stat_activity
     WHERE backend_type = 'client backend'
        OR (backend_type IS NULL AND datid IS NOT NULL AND usesysid IS NOT NULL)
"""
_TABLES: Final = b"""
    SELECT relname
      FROM pg_class
     WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND relname LIKE 'th\\_%%'
     ORDER BY relname
"""
_INDEXES: Final = b"""
    SELECT class.relname, pg_index.indisvalid
      FROM pg_index
      JOIN pg_class AS class ON class.oid = pg_index.indexrelid
     WHERE class.relnamespace = current_schema()::regnamespace AND class.relname LIKE 'th\\_%%' AND class.relkind = 'i'
"""
_LEAVES: Final = b"""
    SELECT relname
      FROM pg_class
     WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname ~ '^th_jobs_finished_[0-9]{8}$'
"""
_TRIGGERS: Final = b"""
    SELECT tgname, class.relname, tgenabled
      FROM pg_trigger
      JOIN pg_class AS class ON class.oid = tgrelid
     WHERE class.relnamespace = current_schema()::regnamespace AND NOT tgisinternal
"""
