"""Checks of TaskHarbor's tables in PostgreSQL: partitions, retention, and what vacuum cannot remove."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.text import duration_text
from taskharbor.doctor.findings import Finding, Level
from taskharbor.doctor.postgres_session import fetch, fetch_value, run_checks
from taskharbor.drivers.postgres.partitions import day_of
from taskharbor.drivers.postgres.retention import DAYS_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    import psycopg

    from taskharbor.doctor.findings import Problem
    from taskharbor.drivers.postgres.server import ServerAddress

OLD_TRANSACTION: Final = timedelta(minutes=5)
LONG_LOCK: Final = timedelta(seconds=30)
"""How long a transaction may have locks on the tables: workers pass over the rows that others have locked."""
HIDDEN_LOCK: Final = timedelta(seconds=1)
"""How long a transaction is watched that has locks, if this user may not see since when it is open."""
OLD_SNAPSHOT: Final = 100_000
"""From how many transactions on a snapshot is old, if this user or this server cannot see since when it is held."""
MAX_DEAD_ROWS: Final = 50_000
"""Dead rows of a table are a problem from this number on, if there are also many for each live one."""
MAX_DEAD_RATIO: Final = 5
LARGE_BYTES: Final = 100 * 2**20
"""Empty space of a table or an index is a problem from this size on, if it is also large compared with the rows."""
MAX_SPACE_RATIO: Final = 5
OLD_READER: Final = timedelta(minutes=1)
RETENTION_DELAY: Final = timedelta(days=1)
"""How long retention may take to remove a day."""


def check_tables(address: ServerAddress, *, keep: timedelta) -> Iterator[Finding]:
    """Check the tables. *keep* is the retention of finished jobs."""
    yield from run_checks(
        address,
        ("partitions", "the partitions of the coming days exist", _partitions),
        ("old partitions", "days past their retention are removed", lambda db: _old_days(db, keep)),
        ("locks", "no transaction has held locks on the tables for long", _locks),
        ("vacuum", "nothing holds back vacuum", _vacuum),
        ("autovacuum", "autovacuum is on", _autovacuum),
        ("dead rows", "tables have few dead rows", _dead_rows),
        ("bloat", "tables and indexes are not much larger than their rows", _bloat),
    )


def _partitions(db: psycopg.Connection) -> Iterator[Problem]:
    missing = [day for (day,) in fetch(db, _MISSING_DAYS, DAYS_AHEAD // 2)]
    if missing:
        yield (
            Level.WARN,
            f"there is no partition for {missing[0]}" + (f" and {len(missing) - 1} more days" if missing[1:] else ""),
            "start a worker or 'taskharbor janitor': they create partitions a week ahead",
        )
    if fetch_value(db, b"SELECT EXISTS (SELECT FROM th_jobs_finished_default)"):
        yield (
            Level.WARN,
            "jobs ended on days without a partition; they are in th_jobs_finished_default and removed one by one",
            "nothing, if the partitions of the coming days exist; retention removes them",
        )


def _old_days(db: psycopg.Connection, keep: timedelta) -> Iterator[Problem]:
    limit = fetch_value(db, b"SELECT ((now() - %s) AT TIME ZONE 'UTC')::date", keep + RETENTION_DELAY)
    days: dict[date, str] = {day_of(leaf): leaf for (leaf,) in fetch(db, _DAYS)}
    old = sorted(day for day in days if day < limit)
    if not old:
        return
    others = f" and {len(old) - 1} more days" if old[1:] else ""
    text = f"the finished jobs of {old[0]}{others} are past their retention, but not removed"
    readers = fetch(db, _READERS, [days[day] for day in old], OLD_READER)
    for pid, user, age in readers:
        aged = "whose age this user may not see" if age is None else f"{duration_text(age.total_seconds())} old"
        reader = f"a transaction of {user} (pid {pid}), {aged}, has locked them"
        yield Level.WARN, f"{text}: {reader}", f"end it: SELECT pg_terminate_backend({pid})"
    if not readers:
        yield (
            Level.WARN,
            text,
            "start a worker or 'taskharbor janitor' as the owner of the tables; set TASKHARBOR_KEEP here, too",
        )


def _locks(db: psycopg.Connection) -> Iterator[Problem]:
    for pid, user, application, state, age in fetch(db, _LOCKS, LONG_LOCK):
        transaction = _open_transaction(pid, user, application, state, age)
        text = (
            f"{transaction} with locks on TaskHarbor's tables; jobs that it has locked are neither claimed nor changed"
        )
        yield Level.WARN, text, f"end it: SELECT pg_terminate_backend({pid})"
    yield from _hidden_locks(db)


def _hidden_locks(db: psycopg.Connection) -> Iterator[Problem]:
    """Report transactions that have locks now and after a while, if this user may not see since when they are open."""
    if not (first := fetch(db, _HIDDEN_LOCKS)):
        return
    fetch(db, b"SELECT pg_sleep(%s)", HIDDEN_LOCK.total_seconds())
    still = {*fetch(db, _HIDDEN_LOCKS)}
    for transaction in first:
        if transaction in still:
            pid, user, application, _ = transaction
            text = (
                f"a transaction of {_session(pid, user, application)} has had locks on TaskHarbor's tables for "
                f"{duration_text(HIDDEN_LOCK.total_seconds())} or longer (since when, this user may not see); jobs "
                "that it has locked are neither claimed nor changed"
            )
            yield (
                Level.WARN,
                text,
                f"end it if it lasts: SELECT pg_terminate_backend({pid}); {_see_more(db)}",
            )


def _session(pid: int, user: str, application: str) -> str:
    return f"{user} (pid {pid}, {application!r})" if application else f"{user} (pid {pid})"


def _see_more(db: psycopg.Connection) -> str:
    return f"to see more, GRANT pg_read_all_stats TO {db.info.user}"


def _open_transaction(pid: int, user: str, application: str, state: str, age: timedelta) -> str:
    whose = f"{user} (pid {pid}, {application!r}, {state})" if application else f"{user} (pid {pid}, {state})"
    return f"a transaction of {whose} has been open for {duration_text(age.total_seconds())}"


def _vacuum(db: psycopg.Connection) -> Iterator[Problem]:
    for pid, user, application, state, age in fetch(db, _OLD_TRANSACTIONS, OLD_TRANSACTION):
        transaction = _open_transaction(pid, user, application, state, age)
        text = f"{transaction}; vacuum cannot remove what was deleted since, and claims get slower"
        yield Level.WARN, text, f"end it: SELECT pg_terminate_backend({pid})"
    for pid, user, application, age in fetch(db, _HIDDEN_SNAPSHOTS, OLD_SNAPSHOT):
        whose = _session(pid, user, application)
        yield (
            Level.WARN,
            f"a session of {whose} has kept vacuum back for {age:,} transactions; since when, this user may not see",
            f"end it: SELECT pg_terminate_backend({pid}); {_see_more(db)}",
        )
    for name, age in fetch(db, _STANDBYS, OLD_SNAPSHOT, OLD_SNAPSHOT):
        yield (
            Level.WARN,
            f"a query on the standby {name!r} has kept vacuum back for {age:,} transactions",
            "end it there (pg_stat_activity of the standby), or set hot_standby_feedback to off there",
        )
    for name, age in fetch(db, _PREPARED, OLD_TRANSACTION):
        text = f"the prepared transaction {name!r} is {duration_text(age.total_seconds())} old and holds back vacuum"
        yield Level.WARN, text, f"COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'"
    for (name,) in fetch(db, _SLOTS):
        text = f"the replication slot {name!r} is inactive and holds back vacuum"
        yield Level.WARN, text, f"start its consumer, or SELECT pg_drop_replication_slot('{name}')"


def _autovacuum(db: psycopg.Connection) -> Iterator[Problem]:
    if fetch_value(db, b"SELECT current_setting('autovacuum')") == "off":
        text = "autovacuum is off; the tables grow with every job"
        yield Level.FAIL, text, "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()"
    for (table,) in fetch(db, _NOT_VACUUMED):
        text = f"autovacuum is off for {table}; it grows with every job"
        yield Level.FAIL, text, f"ALTER TABLE {table} RESET (autovacuum_enabled)"


def _dead_rows(db: psycopg.Connection) -> Iterator[Problem]:
    for table, dead, live, vacuumed_at in fetch(db, _DEAD_ROWS, MAX_DEAD_ROWS, MAX_DEAD_RATIO):
        when = "never vacuumed" if vacuumed_at is None else f"last vacuumed at {vacuumed_at:%Y-%m-%d %H:%M}"
        yield (
            Level.WARN,
            f"{table} has {dead:,} dead rows and {live:,} live ones, {when}; claims read them all",
            f"see the check 'vacuum' for what holds it back, then VACUUM {table}",
        )


def _bloat(db: psycopg.Connection) -> Iterator[Problem]:
    for name, is_index, size, rows in fetch(db, _BLOATED, LARGE_BYTES, MAX_SPACE_RATIO):
        remedy = (
            f"REINDEX INDEX CONCURRENTLY {name}" if is_index else f"VACUUM FULL {name}, which locks it, or pg_repack"
        )
        yield (
            Level.WARN,
            f"{'index' if is_index else 'table'} {name} takes {_megabytes(size)} for about {rows:,.0f} rows",
            f"see the check 'vacuum' for what holds it back, then {remedy}",
        )


def _megabytes(size: Any) -> str:
    return f"{size / 2**20:,.0f} MB"


_MISSING_DAYS: Final = b"""
    SELECT day::date
      FROM generate_series(
           (now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date + %s::int, interval '1 day'
           ) AS day
     WHERE to_regclass('th_jobs_finished_' || to_char(day, 'YYYYMMDD')) IS NULL
"""
_DAYS: Final = b"""
    SELECT relname
      FROM pg_class
     WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname ~ '^th_jobs_finished_[0-9]{8}$'
"""
_READERS: Final = b"""
    SELECT DISTINCT pid, usename, clock_timestamp() - xact_start
      FROM pg_locks
      JOIN pg_stat_activity USING (pid)
     WHERE granted
       AND relation = ANY (ARRAY(SELECT to_regclass(leaf) FROM unnest(%s::text[] || ARRAY['th_jobs_finished']) AS leaf))
       AND (xact_start < clock_timestamp() - %s::interval OR (xact_start IS NULL AND backend_type IS NULL))
       AND pid <> pg_backend_pid()
     LIMIT 5
"""
# Reads and vacuum lock no rows. TaskHarbor's own transactions take milliseconds.
_LOCKS: Final = b"""
    SELECT pid, usename, application_name, state, clock_timestamp() - min(xact_start)
      FROM pg_locks
      JOIN pg_stat_activity USING (pid)
      JOIN pg_class ON pg_class.oid = relation
     WHERE granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
       AND backend_type = 'client backend'
       AND relnamespace = current_schema()::regnamespace
       AND relkind IN ('r', 'p')
       AND relname LIKE 'th\\_%%'
       AND xact_start < clock_timestamp() - %s::interval
       AND pid <> pg_backend_pid()
     GROUP BY pid, usename, application_name, state
     ORDER BY min(xact_start)
     LIMIT 5
"""
_HIDDEN_LOCKS: Final = b"""
    SELECT DISTINCT pid, usename, application_name, virtualtransaction
      FROM pg_locks
      JOIN pg_stat_activity USING (pid)
      JOIN pg_class ON pg_class.oid = relation
     WHERE granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
       AND xact_start IS NULL
       AND backend_type IS NULL
       AND usesysid IS NOT NULL
       AND relnamespace = current_schema()::regnamespace
       AND relkind IN ('r', 'p')
       AND relname LIKE 'th\\_%%'
     LIMIT 5
"""
_OLD_TRANSACTIONS: Final = b"""
    SELECT pid, usename, application_name, state, clock_timestamp() - xact_start
      FROM pg_stat_activity
     WHERE backend_type = 'client backend'
       AND datname = current_database()
       AND xact_start < clock_timestamp() - %s::interval
       AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
       AND pid <> pg_backend_pid()
     ORDER BY xact_start
     LIMIT 5
"""
_HIDDEN_SNAPSHOTS: Final = b"""
    SELECT pid, usename, application_name, age(backend_xmin)
      FROM pg_stat_activity
     WHERE xact_start IS NULL
       AND backend_type IS NULL
       AND datname = current_database()
       AND age(backend_xmin) > %s
     ORDER BY 4 DESC
     LIMIT 5
"""
# With hot_standby_feedback, a standby reports the oldest snapshot of its queries: by its connection, or by its slot.
_STANDBYS: Final = b"""
    SELECT coalesce(nullif(application_name, ''), host(client_addr), pid::text), age(backend_xmin)
      FROM pg_stat_replication
     WHERE age(backend_xmin) > %s
     UNION ALL
    SELECT slot_name::text, age(xmin)
      FROM pg_replication_slots
     WHERE active AND age(xmin) > %s
     ORDER BY 2 DESC
     LIMIT 5
"""
_PREPARED: Final = b"""
    SELECT gid, now() - prepared
      FROM pg_prepared_xacts
     WHERE database = current_database() AND prepared < now() - %s::interval
     LIMIT 5
"""
_SLOTS: Final = b"""
    SELECT slot_name
      FROM pg_replication_slots
     WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
     LIMIT 5
"""
_NOT_VACUUMED: Final = b"""
    SELECT relname
      FROM pg_class
     WHERE relnamespace = current_schema()::regnamespace
       AND relname LIKE 'th\\_%%'
       AND EXISTS (
           SELECT FROM pg_options_to_table(reloptions)
            WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean
           )
     ORDER BY relname
"""
_DEAD_ROWS: Final = b"""
    SELECT relname, n_dead_tup, n_live_tup, greatest(last_vacuum, last_autovacuum)
      FROM pg_stat_user_tables
     WHERE schemaname = current_schema() AND relname LIKE 'th\\_%%'
       AND n_dead_tup >= %s
       AND n_dead_tup > %s * n_live_tup
     ORDER BY n_dead_tup DESC
     LIMIT 5
"""
# A row takes its columns and 28 bytes, an entry of an index less. Rows are those of the last vacuum or since.
_BLOATED: Final = b"""
    WITH tables AS (
        SELECT class.oid,
               greatest(class.reltuples, stats.n_live_tup) + stats.n_dead_tup AS row_count,
               28 + coalesce((SELECT sum(avg_width) FROM pg_stats WHERE schemaname = current_schema()
                                 AND tablename = class.relname), 500) AS row_bytes
          FROM pg_class AS class
          JOIN pg_stat_user_tables AS stats ON stats.relid = class.oid
         WHERE class.relnamespace = current_schema()::regnamespace
           AND class.relname LIKE 'th\\_%%'
           AND class.reltuples >= 0
        )
    SELECT class.relname, class.relkind = 'i', pg_relation_size(class.oid), tables.row_count
      FROM tables
      LEFT JOIN pg_index ON pg_index.indrelid = tables.oid
      JOIN pg_class AS class ON class.oid IN (tables.oid, pg_index.indexrelid)
     WHERE pg_relation_size(class.oid) > %s + %s * tables.row_count * tables.row_bytes
     GROUP BY class.oid, class.relname, class.relkind, tables.row_count
     ORDER BY 3 DESC
     LIMIT 5
"""
