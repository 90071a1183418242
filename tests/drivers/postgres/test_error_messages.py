"""What people read when a PostgreSQL cannot be used: one line, with the cause and the way out, and nothing secret."""

from __future__ import annotations

import traceback
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.core.errors import SchemaOutOfDate, StoreUnavailable, TaskHarborError, UsageError
from taskharbor.drivers import migrate
from taskharbor.drivers.connect import connect
from taskharbor.drivers.migrate import Migration
from taskharbor.drivers.postgres import PostgresDriver, driver, schema
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.conformance.subject import new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.pgbouncer import pooler
from tests.support.postgres import database, emptied, schema_at, server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.drivers.base import Driver

CANARY: Final = "s3cr3t"
SHORT: Final = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TASKHARBOR_URL", "NO_COLOR", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)


def refusal(url: str) -> str:
    """Return what somebody is told who wants to store a job."""
    with pytest.raises(TaskHarborError) as refused, closing(connect(url)) as store:
        store.insert([new_job()])
    return checked(str(refused.value))


def checked(message: str) -> str:
    assert "\n" not in message
    assert CANARY not in message
    assert CANARY[-3:] not in message
    return message


class Terminal:
    """The command line, and what it says."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, verb: str, url: str) -> tuple[ExitCode, str]:
        """Return the exit code, and the line on stderr, or all of stdout where there is none."""
        self._capsys.readouterr()
        ended = run(cli, ["migrate", verb, "--url", url])
        out, err = self._capsys.readouterr()
        assert err.count("\n") == (ended != ExitCode.OK)
        return ExitCode(ended), checked(err.rstrip("\n")) or out


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{CANARY}@[::1/app",
        f"postgresql://app:%{CANARY}@localhost/app",
        f"postgresql://app:a@{CANARY}@localhost/app",
        f"postgresql://app:a/{CANARY}@localhost/app",
        f"postgresql://app:1/{CANARY}@localhost/app",
        f"postgresql://app:{CANARY}@localhost:5432x/app",
        f"postgresql://app:{CANARY}@localhost/app?nonsense=1",
        f"postgresql://app:{CANARY}@localhost/app?connect_timeout=soon",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_with_the_right_form(url: str, terminal: Terminal) -> None:
    with pytest.raises(UsageError) as refused:
        PostgresDriver(url)

    assert "postgresql://user@host:5432/database" in checked(str(refused.value))
    assert CANARY not in "".join(traceback.format_exception(refused.value))
    ended, line = terminal("status", url)
    assert (ended, "postgresql://user@host:5432/database" in line) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("where", ["127.0.0.1:1", "nowhere.invalid:5432"])
def test_a_server_that_is_not_there_is_named_with_what_to_check(where: str, terminal: Terminal) -> None:
    url = f"postgresql://app:{CANARY}@{where}/app"

    message = refusal(url)
    ended, line = terminal("status", url)

    assert f"database 'app' on {where.partition(':')[0]}: nobody answers there; see that the server runs" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server with four places, one of them kept for superusers, which asks one of its users for a password."""
    folder: Path = tmp_path_factory.mktemp("small")
    rules = folder / "rules.conf"
    rules.write_text("host postgres app 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n")
    places = {"max_connections": "4", "superuser_reserved_connections": "1", "max_wal_senders": "0"}
    with PostgresServer.start(folder, settings={"hba_file": str(rules), "autovacuum": "off", **places}) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"CREATE ROLE app LOGIN PASSWORD '{CANARY}'")
            db.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
        yield server


def of_app(server: PostgresServer, password: str = CANARY) -> str:
    return server.url.replace("postgres@", f"app:{password}@")


@pytest.mark.parametrize("password", ["", f"wrong{CANARY}"])
def test_a_wrong_or_missing_password_is_told_as_such(password: str, small: PostgresServer, terminal: Terminal) -> None:
    url = of_app(small, password)

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "it refuses this user or password; correct them" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_user_who_may_not_connect_is_told_where_that_is_decided(small: PostgresServer, terminal: Terminal) -> None:
    url = of_app(small).replace("/postgres", "/template1")

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "this user may not connect; see pg_hba.conf" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_user_that_does_not_exist_is_told_as_such(terminal: Terminal) -> None:
    url = server().url.replace("postgres@", f"nobody:{CANARY}@")

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "this user may not connect" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_an_unknown_database_is_told_as_such(terminal: Terminal) -> None:
    url = server().url.replace("postgres@", f"postgres:{CANARY}@").removesuffix("/postgres") + "/nowhere"

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "database 'nowhere' on 127.0.0.1: this database does not exist; create it, or correct its name" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_user_without_rights_is_told_to_get_them(small: PostgresServer) -> None:
    with psycopg.connect(small.url, autocommit=True) as db:
        db.execute("REVOKE INSERT ON th_jobs_waiting FROM app")

    message = refusal(of_app(small))

    with psycopg.connect(small.url, autocommit=True) as db:
        db.execute("GRANT INSERT ON th_jobs_waiting TO app")
    assert "this user lacks a right; grant it" in message


@contextmanager
def crowded(small: PostgresServer) -> Iterator[None]:
    """Take every place that is there for all."""
    with ExitStack() as crowd:
        for _ in range(3):
            crowd.enter_context(psycopg.connect(of_app(small)))
        yield


def test_a_server_without_a_free_place_is_told_as_such(small: PostgresServer, terminal: Terminal) -> None:
    with crowded(small):
        message = refusal(of_app(small))
        ended, line = terminal("status", of_app(small))

    assert "all its connections are taken; close some, raise max_connections, or give drivers fewer (size)" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_place_that_becomes_free_before_the_deadline_is_waited_for(small: PostgresServer) -> None:
    with closing(PostgresDriver(of_app(small), deadline=SHORT, size=1)) as store:
        store.inspector.now()
        with psycopg.connect(small.url, autocommit=True) as db:
            db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")
        with crowded(small), pytest.raises(StoreUnavailable, match="connections are taken"):
            store.inspector.now()

        assert len(store.insert([new_job()])) == 1


def test_a_database_without_our_tables_is_told_how_to_get_them(terminal: Terminal) -> None:
    with database(migrated=False) as url:
        message = refusal(url)
        status, shown = terminal("status", url)
        check, line = terminal("check", url)

    assert message == f"the store's schema is 0, this code needs {len(MIGRATIONS)}: run 'taskharbor migrate up'"
    assert (status, shown.splitlines()[0]) == (ExitCode.OK, "schema   0")
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


def test_a_schema_that_is_not_there_is_told_how_to_get_it(terminal: Terminal) -> None:
    url = f"{emptied()}?schema=elsewhere"

    message = refusal(url)
    check, line = terminal("check", url)

    assert "run 'taskharbor migrate up'" in message
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


@pytest.fixture
def _newer_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two more: tables that are one version behind are not refused.
    names = ["9998_sooner", "9999_later"]
    new = [Migration(number=n, name=name, sql="SELECT 1;") for n, name in enumerate(names, len(MIGRATIONS) + 1)]
    later = (*MIGRATIONS, *new)
    monkeypatch.setattr(driver, "MIGRATIONS", later)
    monkeypatch.setattr(schema, "MIGRATIONS", later)


@pytest.mark.usefixtures("_newer_code")
def test_a_schema_older_than_the_code_is_told_how_to_bring_it_up_to_date(terminal: Terminal) -> None:
    url = emptied()

    message = refusal(url)
    status, shown = terminal("status", url)
    check, line = terminal("check", url)

    found = len(MIGRATIONS)
    assert message == f"the store's schema is {found}, this code needs {found + 2}: run 'taskharbor migrate up'"
    assert (status, "9999_later" in shown) == (ExitCode.OK, True)
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


def test_a_schema_newer_than_the_code_is_told_to_update_the_code(terminal: Terminal) -> None:
    with database() as url:
        with psycopg.connect(url) as db:
            db.execute("INSERT INTO th_migrations (number, name) VALUES (99, '0099_later')")
        message = refusal(url)
        check, line = terminal("check", url)

    assert message == f"the store's schema is 99, this code needs {len(MIGRATIONS)}: update TaskHarbor"
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


def test_a_schema_that_does_not_fit_is_no_store_that_is_out_of_reach() -> None:
    with database(migrated=False) as url, closing(connect(url)) as store, pytest.raises(SchemaOutOfDate):
        store.inspector.now()


@pytest.mark.parametrize("migrated", [True, False])
def test_a_server_that_only_reads_says_where_to_go(*, migrated: bool, terminal: Terminal) -> None:
    with database(migrated=migrated) as url:
        with psycopg.connect(url, autocommit=True) as db:
            name = db.info.dbname
            db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        status, _ = terminal("status", url)
        message = refusal(url) if migrated else terminal("up", url)[1]

    assert status == ExitCode.OK
    assert "it is read-only here; connect to the primary" in message


def slow_down(url: str) -> None:
    """Let every insert take half a minute."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NEW; END'"
        )
        db.execute("CREATE TRIGGER dawdle BEFORE INSERT ON th_jobs_waiting FOR EACH ROW EXECUTE FUNCTION dawdle()")


def failure(store: Driver) -> str:
    with pytest.raises(StoreUnavailable) as failed:
        store.insert([new_job()])
    return checked(str(failed.value))


def test_a_statement_that_takes_too_long_is_given_up_and_told_as_such() -> None:
    with database() as url:
        slow_down(url)
        with closing(PostgresDriver(url, deadline=SHORT)) as store:
            message = failure(store)

    assert "the statement took longer than the deadline; nothing of it was stored" in message


def test_a_lock_that_is_held_for_too_long_is_told_as_such() -> None:
    url = emptied()
    with closing(PostgresDriver(url, deadline=SHORT)) as store, psycopg.connect(url) as other:
        other.execute("LOCK TABLE th_jobs_waiting")

        message = failure(store)

    assert "another transaction has held a lock for too long" in message


POOLED: Final = "a pooler in transaction mode seems to be in between; say so with ?pooler=transaction, or go around it"


@pytest.mark.parametrize(
    "settings", [{}, {"ignore_startup_parameters": "options"}], ids=["it refuses options", "it drops options"]
)
def test_a_pooler_that_nobody_told_of_is_found_out_before_a_job_is_touched(
    settings: dict[str, Any], terminal: Terminal
) -> None:
    url = emptied()
    with pooler(url, **settings) as pooled:
        message = refusal(pooled)
        status, shown = terminal("status", pooled)
        with closing(connect(f"{pooled}?pooler=transaction")) as store:
            stored = store.insert([new_job()])

    assert POOLED in message
    assert (status, shown.splitlines()[-1]) == (ExitCode.OK, "pending  none")
    assert len(stored) == 1


def test_a_mode_of_poolers_that_needs_no_word_is_refused_with_the_right_one(terminal: Terminal) -> None:
    url = f"{emptied()}?pooler=session"

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "pooler=transaction is for a pooler in transaction mode; leave it out otherwise" in message
    assert (ended, message in line) == (ExitCode.USAGE, True)
