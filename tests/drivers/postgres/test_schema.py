"""Migrations of the PostgreSQL schema: concurrent, under any schema name, and by printed SQL."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from threading import Barrier
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.core.errors import SchemaOutOfDate, StoreUnavailable, UsageError
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.drivers import migrate
from taskharbor.drivers.connect import connect
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance import Subject
from taskharbor.testing.conformance.retention import LATEST, RETENTION
from taskharbor.testing.conformance.subject import new_job
from taskharbor.testing.postgres import binaries
from tests.support.postgres import NEWEST, PREVIOUS, database, schema_at, server
from tests.support.query_plans import Watched, all_day
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.testing.conformance.subject import Insert

NAMES: Final = [migration.name for migration in MIGRATIONS]
VERBS: Final = ["up", "status", "sql", "check"]
STARTERS: Final = 8
IN_USE: Final = f"error: the store's schema is 99, this code needs {len(NAMES)}: update TaskHarbor\n"
MISSING: Final = "error: the store has no TaskHarbor tables yet: run 'taskharbor migrate up'\n"


@pytest.fixture
def bare() -> Iterator[str]:
    """Yield an empty database."""
    with database(migrated=False) as url:
        yield url


@pytest.fixture
def url() -> Iterator[str]:
    """Yield a database with the current schema."""
    with database() as url:
        yield url


@pytest.mark.parametrize("name", ["public", "jobs"])
def test_concurrent_migrations_apply_each_migration_once(name: str, bare: str) -> None:
    start = Barrier(STARTERS)

    def up(_: int) -> list[str]:
        start.wait()
        return [each.name for each in migrate.migrate_up(schema_at(bare, schema=name), MIGRATIONS)]

    with ThreadPoolExecutor(STARTERS) as pool:
        applied = [each for names in pool.map(up, range(STARTERS)) for each in names]

    assert sorted(applied) == NAMES  # two starters may apply one each
    assert rows(bare, f'SELECT name FROM "{name}".th_migrations ORDER BY number') == [(each,) for each in NAMES]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_concurrent_migrations_succeed_under_any_default_isolation(isolation: str, bare: str) -> None:
    with psycopg.connect(bare, autocommit=True) as db:
        setting = f"ALTER DATABASE {db.info.dbname} SET default_transaction_isolation = '{isolation}'"
        db.execute(setting.encode())
    held = "SELECT pg_advisory_xact_lock(hashtext('taskharbor'), hashtext('public'))"
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"

    with psycopg.connect(bare) as other, ThreadPoolExecutor(2) as pool:
        other.execute(held)
        applied = [pool.submit(migrate.migrate_up, schema_at(bare), MIGRATIONS) for _ in range(2)]
        wait_until(lambda: len(rows(bare, waiting)) == 2)
        other.rollback()

        assert sorted(each.name for call in applied for each in call.result(LIMIT_SECONDS)) == NAMES


def test_migrating_again_changes_nothing(url: str) -> None:
    before = catalog(url, "public")

    assert migrate.migrate_up(schema_at(url), MIGRATIONS) == []
    assert catalog(url, "public") == before


def test_a_migration_that_fails_leaves_nothing_behind_and_is_named(bare: str) -> None:
    broken = migrate.Migration(number=1, name="0001_broken", sql="CREATE TABLE th_jobs (); SELECT 1 / 0;")

    with pytest.raises(psycopg.errors.DivisionByZero) as caught:
        migrate.migrate_up(schema_at(bare, schema="jobs"), [broken])

    assert caught.value.__notes__ == ["in migration 0001_broken"]
    assert rows(bare, "SELECT to_regnamespace('jobs') IS NULL") == [(True,)]


def test_all_tables_of_a_store_are_in_its_schema(bare: str) -> None:
    migrate.migrate_up(schema_at(bare, schema="jobs"), MIGRATIONS)

    call_everything(bare, schema="jobs")

    found = rows(bare, "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class WHERE relname ~ '^th_'")
    assert found == [("jobs",)]


@pytest.mark.parametrize("name", ["public", "jobs"])
def test_the_search_path_of_a_role_has_no_effect(name: str, bare: str) -> None:
    with psycopg.connect(bare) as db:
        db.execute("CREATE SCHEMA elsewhere")
        db.execute(f"ALTER DATABASE {db.info.dbname} SET search_path = elsewhere".encode())
    migrate.migrate_up(schema_at(bare, schema=name), MIGRATIONS)

    call_everything(bare, schema=name)

    assert rows(bare, "SELECT relname FROM pg_class WHERE relnamespace = 'elsewhere'::regnamespace") == []


def test_two_schemas_of_one_database_do_not_see_each_other(url: str) -> None:
    migrate.migrate_up(schema_at(url, schema="jobs"), MIGRATIONS)
    with subject_on(url, "jobs") as ours, subject_on(url, "public") as theirs:
        job_id = ours.bring(Status.DEAD, idempotency_key="once")
        ours.driver.control.pause(["default"], by="ops")

        assert theirs.everything(job_id) == ({}, [], [])
        assert theirs.queues() == []
        theirs.bring(Status.SUCCEEDED, idempotency_key="once")
        assert set(ours.driver.inspector.get([job_id])) == {job_id}


@pytest.mark.parametrize("name", ["Jobs", "1st", "", "a-b", 'a"b', "pg_jobs", "j" * 64])
def test_an_invalid_schema_name_is_rejected_before_connecting(name: str) -> None:
    with pytest.raises(UsageError, match="a schema's name has 1 to 63 of a-z"):
        schema_at("postgresql://127.0.0.1:1/none", schema=name)
    with pytest.raises(UsageError, match="a schema's name has 1 to 63 of a-z"):
        connect(f"postgresql://127.0.0.1:1/none?schema={name}")


def test_a_schema_of_63_letters_works(bare: str) -> None:
    name = "j" * 63
    migrate.migrate_up(schema_at(bare, schema=name), MIGRATIONS)

    call_everything(bare, schema=name)


def test_a_driver_refuses_a_database_without_our_tables(bare: str) -> None:
    with closing(PostgresDriver(bare)) as driver, pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up'"):
        driver.inspector.now()


def test_a_driver_refuses_tables_that_are_newer_than_itself(url: str) -> None:
    make_newer(url)

    with closing(PostgresDriver(url)) as driver, pytest.raises(SchemaOutOfDate, match=r"99.*update TaskHarbor"):
        driver.inspector.now()


@pytest.mark.parametrize("name", ["public", "jobs"])
@pytest.mark.parametrize("tool", ["psycopg", "psql"])
def test_the_printed_sql_makes_the_same_schema_as_up(
    tool: str, name: str, bare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["migrate", "sql", "--url", f"{bare}?schema={name}"]) == ExitCode.OK
    script = capsys.readouterr().out

    {"psycopg": by_psycopg, "psql": by_psql}[tool](bare, script)

    assert run(cli, ["migrate", "check", "--url", f"{bare}?schema={name}"]) == ExitCode.OK
    with database(migrated=False) as other:
        migrate.migrate_up(schema_at(other, schema=name), MIGRATIONS)
        assert catalog(bare, name) == catalog(other, name) != []


def test_the_printed_sql_run_twice_is_refused_and_changes_nothing(bare: str) -> None:
    script = migrate.pending_sql(schema_at(bare), MIGRATIONS)
    by_psycopg(bare, script)
    before = catalog(bare, "public")

    with pytest.raises(psycopg.errors.UniqueViolation, match="th_migrations"):
        by_psycopg(bare, script)

    assert catalog(bare, "public") == before


@pytest.mark.parametrize("way", ["up", "sql"])
def test_migrating_into_an_existing_schema_needs_no_privilege_to_create_schemas(way: str, bare: str) -> None:
    with role(bare, "GRANT USAGE, CREATE ON SCHEMA public TO {}") as plain:
        if way == "up":
            migrate.migrate_up(schema_at(plain), MIGRATIONS)
        else:
            by_psycopg(plain, migrate.pending_sql(schema_at(plain), MIGRATIONS))

        assert schema_at(plain).version() == len(MIGRATIONS)


def test_migrating_without_the_privilege_reports_that(bare: str) -> None:
    with role(bare) as plain, pytest.raises(StoreUnavailable, match=r"lacks a privilege; grant it.*permission denied"):
        migrate.migrate_up(schema_at(plain, schema="jobs"), MIGRATIONS)


def test_reading_without_the_privilege_reports_that(url: str) -> None:
    with (
        role(url) as plain,
        closing(PostgresDriver(plain)) as driver,
        pytest.raises(StoreUnavailable, match=r"lacks a privilege; grant it.*permission denied"),
    ):
        driver.inspector.queues()


def test_a_role_that_may_only_read_can_read_but_not_insert(url: str) -> None:
    with (
        role(url, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}") as plain,
        subject_on(plain, "public") as subject,
    ):
        assert subject.driver.inspector.queues() == []
        with pytest.raises(StoreUnavailable, match=r"lacks a privilege; grant it.*permission denied"):
            subject.insert()


def test_up_names_what_it_applied_and_the_second_time_says_that_nothing_is_left(
    bare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["migrate", "up", "--url", bare]) == ExitCode.OK
    assert capsys.readouterr() == ("\n".join(NAMES) + "\n", "")

    assert run(cli, ["migrate", "up", "--url", bare]) == ExitCode.OK
    assert capsys.readouterr() == ("", f"schema is up to date: {len(NAMES)}\n")


@pytest.mark.parametrize("verb", ["status", "sql", "check"])
def test_only_up_changes_the_database(verb: str, bare: str) -> None:
    run(cli, ["migrate", verb, "--url", f"{bare}?schema=jobs"])

    assert rows(bare, "SELECT to_regnamespace('jobs') IS NULL") == [(True,)]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_prints_the_same_json_for_a_current_schema(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["migrate", verb, "--url", url, "--json"]) == ExitCode.OK

    shown = json.loads(capsys.readouterr().out)
    assert shown == {"store": "postgres", "schema": len(NAMES), "wanted": len(NAMES), "pending": []}


def test_status_shows_what_is_there_and_what_is_pending(bare: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["migrate", "status", "--url", bare]) == ExitCode.OK

    assert capsys.readouterr().out == f"schema   0\nwanted   {len(NAMES)}\npending  {' '.join(NAMES)}\n"


def test_check_exits_with_9_and_says_how_to_migrate(bare: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["migrate", "check", "--url", bare]) == ExitCode.SCHEMA_OUT_OF_DATE

    assert capsys.readouterr() == ("", MISSING)


@pytest.mark.parametrize("verb", ["up", "sql", "check"])
def test_a_schema_newer_than_the_code_exits_with_9(verb: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_newer(url)

    assert run(cli, ["migrate", verb, "--url", url]) == ExitCode.SCHEMA_OUT_OF_DATE
    assert capsys.readouterr() == ("", IN_USE)


@pytest.mark.parametrize("verb", VERBS)
def test_a_database_that_is_not_there_exits_with_3_and_one_line(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = f"{server().url.rpartition('/')[0]}/nowhere"

    assert run(cli, ["migrate", verb, "--url", nowhere]) == ExitCode.CANNOT_CONNECT
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "database 'nowhere' on 127.0.0.1: this database does not exist" in err


def call_everything(url: str, *, schema: str) -> None:
    """Call all methods of the driver, including those that use functions and triggers."""
    with subject_on(url, schema) as subject, closing(PostgresDriver(url, schema=schema)) as driver:
        all_day(Watched(driver))
        subject.advance(LATEST)
        subject.queues()
        subject.driver.maintenance.prune(older_than=RETENTION, limit=10)
        subject.driver.maintenance.purge(older_than=RETENTION, limit=10)
        with subject.transaction() as insert:
            insert([new_job(priority=-1)])
        subject.settle(subject.take(), Outcome.fail("hopeless"))


@contextmanager
def subject_on(url: str, schema: str) -> Iterator[Subject]:
    clock = ManualClock()
    with closing(PostgresDriver(url, schema=schema, clock=clock)) as driver:

        @contextmanager
        def transaction() -> Iterator[Insert]:
            with psycopg.connect(url) as db:
                yield driver.join(db).insert

        yield Subject(driver=driver, clock=clock, spend=None, transaction=transaction)


@contextmanager
def role(url: str, grant: str = "") -> Iterator[str]:
    """Yield *url* for a role that may connect and has the privileges of *grant*."""
    name = f"plain_{psycopg.conninfo.conninfo_to_dict(url)['dbname']}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {name} LOGIN; {grant.format(name)}".encode())
    try:
        yield url.replace("postgres@", f"{name}@")
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"DROP OWNED BY {name}".encode())
            db.execute(f"DROP ROLE {name}".encode())


def by_psycopg(url: str, script: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(script.encode())


def by_psql(url: str, script: str) -> None:
    beside = binaries() / "psql"
    psql = beside if beside.exists() else shutil.which("psql")
    if psql is None:
        pytest.skip("NOT RUN: there is no psql, neither beside the server nor on the PATH")
    command = [psql, "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--file", "-", url]
    ended = subprocess.run(command, input=script, text=True, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def make_newer(url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute("INSERT INTO th_migrations (number, name) VALUES (99, '0099_later')")


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(query.encode()).fetchall()


def catalog(url: str, schema: str) -> list[tuple[Any, ...]]:
    """Return the definitions of all objects in a schema."""
    with psycopg.connect(url) as db:
        db.execute(f'SET search_path = "{schema}"'.encode())
        return db.execute(_CATALOG, {"schema": schema}).fetchall()


_CATALOG: Final = """
    WITH tables AS (
        SELECT oid, relname, relkind, reloptions, relpartbound
          FROM pg_class
         WHERE relnamespace = %(schema)s::regnamespace
    )
    SELECT 'table', relname, concat_ws(' ', relkind, reloptions, pg_get_expr(relpartbound, oid)) FROM tables
     UNION ALL
    SELECT 'column', concat_ws('.', relname, attnum, attname),
           concat_ws(' ', format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid))
      FROM tables
      JOIN pg_attribute ON attrelid = tables.oid AND attnum > 0
      LEFT JOIN pg_attrdef ON adrelid = tables.oid AND adnum = attnum
     UNION ALL
    SELECT 'index', relname, pg_get_indexdef(oid) FROM tables WHERE relkind IN ('i', 'I')
     UNION ALL
    SELECT 'constraint', concat_ws('.', relname, conname), pg_get_constraintdef(pg_constraint.oid)
      FROM tables
      JOIN pg_constraint ON conrelid = tables.oid
     UNION ALL
    SELECT 'trigger', relname, pg_get_triggerdef(pg_trigger.oid) FROM tables JOIN pg_trigger ON tgrelid = tables.oid
     UNION ALL
    SELECT 'function', proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace
     ORDER BY 1, 2, 3
"""


def test_a_driver_migrates_its_database_and_uses_the_new_schema() -> None:
    with database(version=PREVIOUS) as url, closing(PostgresDriver(url)) as driver:
        driver.inspector.now()
        applied = driver.migrate()
        again = driver.migrate()

        assert (applied, again) == ([NAMES[-1]], [])
        assert driver._connections.schema_version == NEWEST  # noqa: SLF001  no call shows it with every schema


def test_a_driver_that_cannot_read_the_version_leaves_no_waiting_connection() -> None:
    held = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with database() as url, psycopg.connect(url) as other, closing(PostgresDriver(url, deadline=1)) as driver:
        other.execute("LOCK TABLE th_migrations")

        with pytest.raises(StoreUnavailable, match="another transaction held a lock"):
            driver.inspector.now()

        assert rows(url, held) == []
