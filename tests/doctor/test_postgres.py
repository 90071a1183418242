"""Each check of a PostgreSQL server reports what was really broken, and is ok again when it is fixed."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import psycopg
import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.model import WorkerRecord
from taskharbor.doctor import Finding, Level, postgres, postgres_session, postgres_tables
from taskharbor.doctor.examination import count_pending_migrations, examine
from taskharbor.doctor.postgres import check_operation, check_server
from taskharbor.doctor.postgres_session import fetch
from taskharbor.drivers import migrate
from taskharbor.drivers.connect import connect, postgres_address
from taskharbor.drivers.postgres import server
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.drivers.postgres.server import ServerAddress, ServerConnection
from taskharbor.testing.conformance.subject import new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.pgbouncer import pooler
from tests.support.postgres import schema_at
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KEEP: Final = timedelta(days=7)
CONNECT: Final = ServerAddress.connect
DURABLE: Final = {"max_prepared_transactions": "5", "wal_level": "logical"}
OLD_DAY: Final = "th_jobs_finished_20260105"
MAKE_OLD_DAY: Final = "SELECT th_make_days('2026-01-05', 1)"
SESSIONS: Final = 60  # of a pooler: more than the statements of all checks
SAFE: Final = "ALTER DATABASE jobs SET idle_in_transaction_session_timeout = '10min'"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with PostgresServer.start(tmp_path_factory.mktemp("server"), durable=True, settings=DURABLE) as server:
        url = server.database("jobs")
        migrate.migrate_up(schema_at(url), MIGRATIONS)
        execute(url, SAFE)
        yield url


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for statement in statements:
            db.execute(statement.encode())


def problems(url: str, check: str | None = None) -> list[Finding]:
    """Return what the checks of the server find, but for those that are ok."""
    address = postgres_address(url)
    found = [*check_server(address), *check_operation(address, keep=KEEP)]
    return [each for each in found if each.level is not Level.OK and check in {None, each.check}]


def test_a_server_in_order_has_no_problem(url: str) -> None:
    assert [each for each in examine(url, keep=KEEP) if each.level is not Level.OK] == []


BROKEN: Final = [
    (
        "server",
        "ALTER DATABASE jobs SET default_transaction_read_only = on",
        "SET default_transaction_read_only = off; ALTER DATABASE jobs RESET default_transaction_read_only",
        "transactions are read-only by default",
    ),
    (
        "durability",
        "ALTER DATABASE jobs SET synchronous_commit = off",
        "ALTER DATABASE jobs RESET synchronous_commit",
        "synchronous_commit is off: jobs that were accepted shortly before a crash of the server can be lost",
    ),
    (
        "indexes",
        "DROP INDEX th_jobs_waiting_sent",
        (
            "CREATE INDEX th_jobs_waiting_sent ON th_jobs_waiting (queue, priority, dispatch_at, id) "
            "WHERE dispatch_at IS NOT NULL"
        ),
        "index th_jobs_waiting_sent is missing",
    ),
    (
        "indexes",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'th_audit_at'::regclass",
        "UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'th_audit_at'::regclass",
        "index th_audit_at is invalid",
    ),
    (
        "indexes",
        f"{MAKE_OLD_DAY}; DROP INDEX {OLD_DAY}_id",
        f"DROP TABLE {OLD_DAY}",
        f"index {OLD_DAY}_id is missing",
    ),
    (
        "triggers",
        "ALTER TABLE th_jobs_dead DISABLE TRIGGER th_jobs_death",
        "ALTER TABLE th_jobs_dead ENABLE TRIGGER th_jobs_death",
        "trigger th_jobs_death of th_jobs_dead is disabled",
    ),
    (
        "indexes",
        "ALTER TABLE th_keys DROP CONSTRAINT th_keys_pkey",
        "ALTER TABLE th_keys ADD PRIMARY KEY (key, queue)",
        "index th_keys_pkey is missing",
    ),
    (
        "indexes",
        "ALTER TABLE th_workers DROP CONSTRAINT th_workers_pkey",
        "ALTER TABLE th_workers ADD PRIMARY KEY (id)",
        "index th_workers_pkey is missing",
    ),
    (
        "triggers",
        "ALTER TABLE th_jobs_waiting DISABLE TRIGGER th_jobs_waiting_change",
        "ALTER TABLE th_jobs_waiting ENABLE TRIGGER th_jobs_waiting_change",
        "trigger th_jobs_waiting_change of th_jobs_waiting is disabled",
    ),
    (
        "triggers",
        "DROP TRIGGER th_jobs_death ON th_jobs_dead",
        "CREATE TRIGGER th_jobs_death AFTER INSERT ON th_jobs_dead FOR EACH ROW EXECUTE FUNCTION th_announce_death()",
        "trigger th_jobs_death of th_jobs_dead is missing",
    ),
    (
        "autovacuum",
        "ALTER TABLE th_jobs_waiting SET (autovacuum_enabled = off)",
        "ALTER TABLE th_jobs_waiting RESET (autovacuum_enabled)",
        "autovacuum is off for th_jobs_waiting; it grows with every job",
    ),
    (
        "idle transactions",
        "ALTER DATABASE jobs RESET idle_in_transaction_session_timeout",
        SAFE,
        "idle_in_transaction_session_timeout is off; a forgotten transaction holds back vacuum without end",
    ),
    (
        "vacuum",
        "SELECT pg_create_logical_replication_slot('stale', 'pgoutput')",
        "SELECT pg_drop_replication_slot('stale')",
        "the replication slot 'stale' is inactive and holds back vacuum",
    ),
]


@pytest.mark.parametrize(("check", "breaks", "repairs", "text"), BROKEN)
def test_what_is_broken_is_reported_until_it_is_repaired(
    url: str, check: str, breaks: str, repairs: str, text: str
) -> None:
    execute(url, *breaks.split("; "))
    try:
        wait_until(lambda: problems(url, check) != [], limit=30)  # a reload takes effect some time after its call
        [found] = problems(url, check)
        assert found.text == text
        assert found.remedy
    finally:
        execute(url, *repairs.split("; "))

    wait_until(lambda: not problems(url, check), limit=30)


@pytest.mark.parametrize(
    ("check", "breaks", "text"),
    [
        (
            "indexes",
            "ALTER TABLE th_migrations DROP CONSTRAINT th_migrations_pkey",
            "index th_migrations_pkey is missing",
        ),
        ("indexes", "DROP INDEX th_jobs_waiting_sent", "index th_jobs_waiting_sent is missing"),
        (
            "triggers",
            "DROP TRIGGER th_jobs_waiting_change ON th_jobs_waiting",
            "trigger th_jobs_waiting_change of th_jobs_waiting is missing",
        ),
    ],
)
def test_what_is_missing_is_restored_by_the_remedy(url: str, check: str, breaks: str, text: str) -> None:
    execute(url, breaks)
    [found] = problems(url, check)
    assert (found.level, found.text) == (Level.FAIL, text)

    execute(url, found.remedy)

    assert problems(url, check) == []


def test_a_missing_table_is_reported_until_it_is_back(url: str) -> None:
    execute(url, "ALTER TABLE th_audit RENAME TO elsewhere")
    [found] = problems(url, "tables")
    assert (found.level, found.text) == (Level.FAIL, "table th_audit is missing")
    assert "pg_dump -s -t th_audit" in found.remedy

    execute(url, "ALTER TABLE elsewhere RENAME TO th_audit")
    assert problems(url, "tables") == []


def test_a_changed_table_is_said_to_be_changed(url: str) -> None:
    execute(url, "ALTER TABLE th_workers RENAME lost_slots TO lost")
    try:
        [found] = [each for each in examine(url, keep=KEEP) if each.level is not Level.OK]
        assert (found.check, found.level) == ("jobs", Level.FAIL)
        assert 'column "lost_slots" does not exist' in found.text
        assert found.remedy.startswith("the tables are not as the migrations have made them")
    finally:
        execute(url, "ALTER TABLE th_workers RENAME lost TO lost_slots")

    assert [each for each in examine(url, keep=KEEP) if each.level is not Level.OK] == []


def test_one_pending_migration_is_a_warning(url: str) -> None:
    """New code works with it, so a container that runs it before the migration is healthy."""
    execute(url, "CREATE DATABASE behind")
    behind = make_conninfo_db(url, "behind")
    for migration in MIGRATIONS[:-1]:
        schema_at(behind).apply(migration)

    [found] = [
        each
        for each in examine(behind, keep=KEEP)
        if each.check in {"schema", "tables", "indexes", "triggers"} and each.level is not Level.OK
    ]
    assert (found.check, found.level, found.remedy) == ("schema", Level.WARN, "taskharbor migrate up")
    assert found.text == "pending: 1 migration; this code works without"

    migrate.migrate_up(schema_at(behind), MIGRATIONS)
    assert [each.level for each in examine(behind, keep=KEEP) if each.check == "schema"] == [Level.OK]


def test_a_server_with_dangerous_settings_is_reported(tmp_path: Path) -> None:
    with PostgresServer.start(tmp_path, settings={"autovacuum": "off"}) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)

        found = {each.text.partition(";")[0].partition(":")[0] for each in problems(server.url)}

    assert {"fsync is off", "full_page_writes is off", "autovacuum is off"} <= found


def test_a_version_that_is_too_old_is_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "MIN_VERSION", 990_000)

    [found] = problems(url, "server")

    assert found.text.startswith("the server is PostgreSQL ")
    assert found.remedy == "upgrade it to 99 or newer"


def test_a_standby_is_reported(tmp_path: Path) -> None:
    with PostgresServer.start(tmp_path) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        server.stop()
        [control] = tmp_path.rglob("pg_hba.conf")
        control.with_name("standby.signal").touch()
        server.restart()

        [found] = problems(server.url, "server")
        assert (found.level, found.text) == (Level.FAIL, "the server is a standby and read-only")

        execute(server.url, "SELECT pg_promote()")
        assert problems(server.url, "server") == []


def test_missing_privileges_are_named(url: str) -> None:
    execute(url, "CREATE ROLE app LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO app")
    try:
        fails, warns = problems(make_conninfo_url(url, "app"), "privileges")
        assert fails.text.startswith("user 'app' lacks INSERT on th_api_keys, UPDATE on th_api_keys")
        assert warns.level is Level.WARN

        execute(url, "GRANT ALL ON ALL TABLES IN SCHEMA public TO app", "GRANT postgres TO app")
        assert problems(make_conninfo_url(url, "app"), "privileges") == []
    finally:
        execute(url, "DROP OWNED BY app", "DROP ROLE app")


def make_conninfo_url(url: str, user: str) -> str:
    return url.replace("postgres@", f"{user}@")


def test_partitions_of_coming_days_are_missed(url: str) -> None:
    with psycopg.connect(url) as db:
        [(day,)] = db.execute("SELECT to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')").fetchall()
    execute(url, f"DROP TABLE th_jobs_finished_{day}")

    [found] = problems(url, "partitions")
    assert found.text == f"there is no partition for {day[:4]}-{day[4:6]}-{day[6:]}"

    with closing(connect(url)) as driver:
        driver.maintenance.roll_up(keep=KEEP)
    assert problems(url, "partitions") == []


def test_a_day_past_its_retention_is_reported_until_it_is_removed(url: str) -> None:
    execute(url, MAKE_OLD_DAY)

    [found] = problems(url, "old partitions")
    assert found.text == "the finished jobs of 2026-01-05 are past their retention, but not removed"
    assert found.remedy.startswith("start a worker or 'taskharbor janitor'")

    with closing(connect(url)) as driver:
        driver.maintenance.prune(older_than=KEEP, limit=100)
    assert problems(url, "old partitions") == []


def test_the_reader_that_keeps_an_old_day_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "OLD_READER", timedelta(0))
    execute(url, MAKE_OLD_DAY)
    with psycopg.connect(url) as reader, closing(connect(url)) as driver:
        reader.execute(f"SELECT FROM {OLD_DAY}".encode())
        driver.maintenance.prune(older_than=KEEP, limit=100)  # cannot lock it

        [found] = problems(url, "old partitions")
        assert f"a transaction of postgres (pid {reader.info.backend_pid}), " in found.text
        assert found.remedy == f"end it: SELECT pg_terminate_backend({reader.info.backend_pid})"

        reader.rollback()
        driver.maintenance.prune(older_than=KEEP, limit=100)
    assert problems(url, "old partitions") == []


def test_a_reader_of_an_old_day_is_named_without_its_age(url: str) -> None:
    execute(url, MAKE_OLD_DAY)
    with app_role(url) as own, psycopg.connect(url) as reader, closing(connect(url)) as driver:
        reader.execute(f"SELECT FROM {OLD_DAY}".encode())

        [found] = problems(own, "old partitions")
        assert f"(pid {reader.info.backend_pid}), whose age this user may not see, has locked them" in found.text

        reader.rollback()
        driver.maintenance.prune(older_than=KEEP, limit=100)
        assert problems(own, "old partitions") == []


def test_jobs_outside_of_all_days_are_reported(url: str) -> None:
    execute(
        url,
        """INSERT INTO th_jobs (id, type, queue, priority, scheduled_for, created_at, max_attempts, payload, status,
               completed_at)
           SELECT gen_random_uuid(), 't', 'q', 0, now(), now(), 1, '', 'CANCELED', now() - interval '1 year'""",
    )

    [found] = problems(url, "partitions")
    assert found.text.startswith("jobs ended on days without a partition")

    execute(url, "DELETE FROM th_jobs")
    assert problems(url, "partitions") == []


def test_a_transaction_that_has_locked_jobs_is_named_until_it_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "LONG_LOCK", timedelta(0))
    with psycopg.connect(url, application_name="report") as db:
        db.execute("SELECT id FROM th_jobs")
        assert problems(url, "locks") == []

        db.execute("SELECT id FROM th_jobs FOR UPDATE")
        [found] = problems(url, "locks")
        assert found.text.startswith(
            f"a transaction of postgres (pid {db.info.backend_pid}, 'report', idle in transaction)"
        )
        assert found.remedy == f"end it: SELECT pg_terminate_backend({db.info.backend_pid})"

    assert problems(url, "locks") == []


@contextmanager
def app_role(url: str) -> Iterator[str]:
    """Yield the URL of a user as applications have: it may use all tables, and see no session of others."""
    execute(url, "CREATE ROLE app LOGIN", "GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
    try:
        yield make_conninfo_url(url, "app")
    finally:
        execute(url, "DROP OWNED BY app", "DROP ROLE app")


def test_locks_of_a_session_whose_age_is_hidden_are_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "HIDDEN_LOCK", timedelta(0))
    with app_role(url) as own, psycopg.connect(url, application_name="report") as db:
        db.execute("SELECT id FROM th_jobs")
        assert problems(own, "locks") == []

        db.execute("SELECT id FROM th_jobs FOR UPDATE")
        [found] = problems(own, "locks")
        assert found.text.startswith(f"a transaction of postgres (pid {db.info.backend_pid}, 'report') has had locks ")
        assert f"SELECT pg_terminate_backend({db.info.backend_pid})" in found.remedy
        assert found.remedy.endswith("GRANT pg_read_all_stats TO app")

        db.rollback()
        assert problems(own, "locks") == []


def test_hidden_locks_of_short_transactions_are_no_problem(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "HIDDEN_LOCK", timedelta(0))
    with app_role(url) as own, psycopg.connect(url) as db:
        db.execute("SELECT id FROM th_jobs FOR UPDATE")

        def next_transaction(
            connection: psycopg.Connection, query: bytes, *values: object
        ) -> Sequence[tuple[Any, ...]]:
            found = fetch(connection, query, *values)
            db.rollback()
            db.execute("SELECT id FROM th_jobs FOR UPDATE")
            return found

        monkeypatch.setattr(postgres_tables, "fetch", next_transaction)
        assert problems(own, "locks") == []


def test_jobs_that_no_janitor_has_counted_are_reported(url: str) -> None:
    execute(url, "CREATE DATABASE uncounted")
    migrate.migrate_up(schema_at(other := make_conninfo_db(url, "uncounted")), MIGRATIONS)
    execute(other, SAFE.replace("jobs", "uncounted"))
    with closing(connect(other)) as driver:
        long_ago = driver.inspector.now() - timedelta(minutes=10)
        driver.insert([new_job(queue="mail", scheduled_for=long_ago)])

    [found] = [each for each in examine(other, keep=KEEP) if each.level is not Level.OK]

    assert (found.check, found.level) == ("queues", Level.FAIL)
    assert found.text == "queue 'mail' has waiting jobs and no live worker; the oldest has been due for 10 min"


def test_a_locked_table_is_reported_with_who_has_locked_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "LONG_LOCK", timedelta(0))
    monkeypatch.setattr(postgres_session, "STATEMENT_TIMEOUT", "500ms")
    with psycopg.connect(url) as db:
        db.execute("LOCK TABLE th_workers IN ACCESS EXCLUSIVE MODE")

        found = {each.check: each for each in examine(url, keep=KEEP) if each.level is not Level.OK}

        assert found.keys() >= {"connections", "locks", "jobs"}  # on a busy machine others may take too long, too
        assert found["locks"].remedy == f"end it: SELECT pg_terminate_backend({db.info.backend_pid})"
        assert "'locks'" in found["jobs"].remedy

    assert [each for each in examine(url, keep=KEEP) if each.level is not Level.OK] == []


def test_an_old_transaction_is_named_with_its_process(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "OLD_TRANSACTION", timedelta(0))
    with psycopg.connect(url, application_name="report") as db:
        db.execute("SELECT txid_current()")

        [found] = problems(url, "vacuum")
        assert found.text.startswith(
            f"a transaction of postgres (pid {db.info.backend_pid}, 'report', idle in transaction) has been open for "
        )
        assert found.remedy == f"end it: SELECT pg_terminate_backend({db.info.backend_pid})"

    assert problems(url, "vacuum") == []


def test_a_transaction_in_another_database_holds_back_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "OLD_TRANSACTION", timedelta(0))
    with psycopg.connect(make_conninfo_db(url, "postgres")) as db:
        db.execute("SELECT txid_current()")

        assert problems(url, "vacuum") == []


def test_a_transaction_whose_age_is_hidden_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "OLD_SNAPSHOT", 1)
    execute(url, "CREATE ROLE reader LOGIN", "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    own = make_conninfo_url(url, "reader")
    try:
        with psycopg.connect(url, application_name="report") as db:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            db.execute("SELECT FROM th_duties")
            execute(url, *3 * ["SELECT txid_current()"])

            [found] = problems(own, "vacuum")
            assert found.text.startswith(
                f"a session of postgres (pid {db.info.backend_pid}, 'report') has kept vacuum "
            )
            assert found.remedy.endswith("GRANT pg_read_all_stats TO reader")

        wait_until(lambda: problems(own, "vacuum") == [], limit=30)  # the server notices the end of the session later
    finally:
        execute(url, "DROP OWNED BY reader", "DROP ROLE reader")


def test_a_prepared_transaction_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "OLD_TRANSACTION", timedelta(0))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("BEGIN")
        db.execute("SELECT txid_current()")
        db.execute("PREPARE TRANSACTION 'forgotten'")
    try:
        [found] = problems(url, "vacuum")
        assert found.text.startswith("the prepared transaction 'forgotten' is ")
    finally:
        execute(url, "ROLLBACK PREPARED 'forgotten'")

    assert problems(url, "vacuum") == []


@pytest.mark.parametrize("slot", [{}, {"primary_slot_name": "one"}])
def test_a_query_on_a_standby_that_holds_back_vacuum_is_reported(
    slot: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_tables, "OLD_SNAPSHOT", 10)
    with PostgresServer.start(tmp_path / "primary") as primary:
        migrate.migrate_up(schema_at(primary.url), MIGRATIONS)
        execute(primary.url, *(f"SELECT pg_create_physical_replication_slot('{name}')" for name in slot.values()))
        with standby(primary, tmp_path, **slot) as copy:
            with psycopg.connect(copy.url) as other:
                other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                other.execute("SELECT FROM th_jobs")
                execute(primary.url, *["SELECT pg_current_xact_id()"] * 20)
                wait_until(lambda: problems(primary.url, "vacuum") != [])

                [found] = problems(primary.url, "vacuum")
                name = slot.get("primary_slot_name", "walreceiver")
                assert found.text.startswith(f"a query on the standby {name!r} has kept vacuum back for ")
                assert found.remedy.startswith("end it there")

            wait_until(lambda: problems(primary.url, "vacuum") == [])


@contextmanager
def standby(primary: PostgresServer, folder: Path, **settings: str) -> Iterator[PostgresServer]:
    """Start a standby of the server in the subfolder ``primary`` that reports its snapshots every second."""
    with psycopg.connect(primary.url, autocommit=True) as db:
        db.execute("SELECT pg_backup_start('standby', true)")
        subprocess.run(["cp", "--archive", folder / "primary", folder / "standby"], check=True)
        [label] = db.execute("SELECT labelfile FROM pg_backup_stop()").fetchone() or [""]
    [data] = (each.parent for each in (folder / "standby").rglob("pg_hba.conf"))
    (data / "backup_label").write_text(label)
    (data / "standby.signal").touch()
    (data / "postmaster.pid").unlink()
    port = urlsplit(primary.url).port
    feedback = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s", "max_standby_streaming_delay": "-1"}
    source = {"primary_conninfo": f"host=127.0.0.1 port={port} user=postgres"}
    with PostgresServer.start(folder / "standby", settings={**feedback, **source, **settings}) as copy:
        yield copy


def test_a_table_with_many_dead_rows_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "MAX_DEAD_ROWS", 10)

    def texts() -> list[str]:
        return [each.text for each in problems(url, "dead rows") if "th_duties" in each.text]

    execute(
        url,
        "ALTER TABLE th_duties SET (autovacuum_enabled = off)",
        "INSERT INTO th_duties SELECT 'd' || n, now() FROM generate_series(1, 100) AS n",
        "DELETE FROM th_duties",
    )
    try:
        wait_until(lambda: texts() != [], limit=30)  # statistics are reported with a delay
        [text] = texts()
        assert text.startswith("th_duties has 100 dead rows and 0 live ones, never vacuumed")
    finally:
        execute(url, "VACUUM th_duties", "ALTER TABLE th_duties RESET (autovacuum_enabled)")

    wait_until(lambda: texts() == [], limit=30)


def test_a_table_and_an_index_with_much_empty_space_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_tables, "LARGE_BYTES", 50_000)

    def named() -> set[str]:
        return {each.text.partition(" takes ")[0] for each in problems(url, "bloat")}

    assert named() == set()
    execute(
        url,
        "INSERT INTO th_settings SELECT 'name' || n, '' FROM generate_series(1, 5000) AS n",
        "DELETE FROM th_settings WHERE name ~ '^name' AND name <> 'name5000'",  # the last page stays
    )

    def vacuumed() -> set[str]:
        execute(url, "VACUUM ANALYZE th_settings")  # again: the rows that were deleted are reported with a delay
        return named()

    try:
        wait_until(lambda: vacuumed() == {"table th_settings", "index th_settings_pkey"}, limit=30)
    finally:
        execute(url, "DELETE FROM th_settings WHERE name = 'name5000'", "VACUUM FULL ANALYZE th_settings")

    assert named() == set()


def test_too_few_connections_are_reported(url: str) -> None:
    with closing(connect(url)) as driver, ExitStack() as removed:
        now = driver.inspector.now()
        for number in range(100):
            driver.maintenance.record_worker(
                WorkerRecord(id=f"w{number}", host="h", pid=1, queues=("q",), types=(), concurrency=1, started_at=now)
            )
            removed.callback(driver.maintenance.remove_worker, f"w{number}")

        [found] = problems(url, "connections")
        assert found.text.startswith("100 live workers may open up to 10 connections each, but the server allows ")

    assert problems(url, "connections") == []


def test_a_server_whose_connections_are_used_up_is_reported(url: str) -> None:
    with app_role(url) as own, psycopg.connect(url) as db, ExitStack() as opened:
        [(limit,)] = db.execute("SELECT current_setting('max_connections')::int").fetchall()
        for _ in range(limit * 8 // 10):
            opened.enter_context(psycopg.connect(url))

        for user in (url, own):
            [found] = problems(user, "connections")
            assert " connections are in use" in found.text

    wait_until(lambda: problems(url, "connections") == [], limit=30)  # the server notices their end later


def test_connections_that_are_refused_as_too_many_say_so(url: str) -> None:
    with app_role(url) as own:
        execute(url, "ALTER ROLE app CONNECTION LIMIT 0")
        found = list(examine(own, keep=KEEP))

        assert {each.level for each in found} == {Level.FAIL}
        assert all(each.remedy.startswith("close connections, or raise max_connections") for each in found), found

        execute(url, "ALTER ROLE app CONNECTION LIMIT -1")
        assert problems(own, "server") == []


def test_a_pooler_that_loses_notifications_is_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "NOTIFY_SECONDS", 0.5)
    with pooler(url) as pooled:
        [found] = problems(pooled, "notifications")
        assert found.text.startswith("a notification did not arrive; a pooler in transaction mode loses them")

        address = postgres_address(f"{pooled}?pooler=transaction")
        [fine] = [each for each in check_operation(address, keep=KEEP) if each.check == "notifications"]
        assert (fine.level, fine.text) == (Level.OK, "not used behind a pooler: workers poll")


def test_behind_a_pooler_other_programs_get_no_settings_of_the_doctor(url: str) -> None:
    show = "SELECT current_setting('statement_timeout'), current_setting('search_path')"
    with pooler(url, default_pool_size="2") as pooled:  # two: the check of notifications needs as many
        with psycopg.connect(pooled, prepare_threshold=None) as db:
            before = db.execute(show).fetchall()

        problems(f"{pooled}?pooler=transaction&schema=elsewhere")

        with psycopg.connect(pooled, prepare_threshold=None) as one, psycopg.connect(pooled) as other:
            assert [db.execute(show.encode()).fetchall() for db in (one, other)] == [before, before]


def test_behind_a_pooler_the_tables_of_the_schema_are_checked(url: str) -> None:
    migrate.migrate_up(schema_at(url, schema="jobs"), MIGRATIONS)
    execute(url, "DROP INDEX jobs.th_jobs_waiting_sent")
    try:
        with pooler(url, server_round_robin="1", default_pool_size=f"{SESSIONS}") as pooled:
            with ExitStack() as opened:  # from now on, each transaction is in another session
                for _ in range(SESSIONS):
                    opened.enter_context(psycopg.connect(pooled, prepare_threshold=None)).execute("SELECT 1")

            [found] = problems(f"{pooled}?pooler=transaction&schema=jobs", "indexes")
            assert found.text == "index th_jobs_waiting_sent is missing"
    finally:
        execute(url, "DROP SCHEMA jobs CASCADE")


def test_a_store_without_tables_gets_no_further_checks(url: str) -> None:
    execute(url, "CREATE DATABASE bare")

    found = list(examine(make_conninfo_db(url, "bare"), keep=KEEP))

    assert [(each.check, each.level) for each in found][-1] == ("schema", Level.FAIL)
    assert found[-1].text == "the store has no TaskHarbor tables yet"
    assert found[-1].remedy == "run 'taskharbor migrate up'"
    assert "indexes" not in {each.check for each in found}


def make_conninfo_db(url: str, name: str) -> str:
    return f"{url.rpartition('/')[0]}/{name}"


def test_a_server_that_is_away_is_reported() -> None:
    found = list(examine("postgresql://postgres@127.0.0.1:1/jobs", keep=KEEP))

    assert {each.level for each in found} == {Level.FAIL}
    assert all("could not be checked: store unavailable" in each.text for each in found), found
    assert all("start the server" in each.remedy for each in found), found


@pytest.fixture
def suspending(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a server that accepts a connection, and then replies to nothing."""
    monkeypatch.setattr(server, "REPLY_TIMEOUT_FACTOR", 0.05)
    with Proxy(url) as proxy:

        def connect_and_suspend(address: ServerAddress, *, with_settings: bool = True) -> ServerConnection:
            db = CONNECT(address, with_settings=with_settings)
            proxy.black_hole()
            return db

        monkeypatch.setattr(ServerAddress, "connect", connect_and_suspend)
        yield f"postgresql://postgres@127.0.0.1:{proxy.port}/jobs?sslmode=disable&gssencmode=disable"


def test_a_server_that_stops_replying_is_reported(suspending: str) -> None:
    found = next(examine(suspending, keep=KEEP))

    assert (found.check, found.level) == ("server", Level.FAIL)
    assert "no reply within" in found.text
    assert found.remedy.startswith("start the server")


def test_reading_the_version_of_a_schema_ends_if_the_server_stops_replying(suspending: str) -> None:
    with pytest.raises(StoreUnavailable, match="no reply within"):
        count_pending_migrations(suspending)
