"""Error messages when a PostgreSQL database cannot be used: one line with the cause and the fix, and no secrets."""

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
    """Return the error message of an insert."""
    with pytest.raises(TaskHarborError) as refused, closing(connect(url)) as store:
        store.insert([new_job()])
    return checked(str(refused.value))


def checked(message: str) -> str:
    assert "\n" not in message
    assert CANARY not in message
    assert CANARY[-3:] not in message
    return message


class Terminal:
    """Runs commands and captures their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, verb: str, url: str) -> tuple[ExitCode, str]:
        """Return the exit code, and the line on stderr, or all of stdout if there is none."""
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
def test_an_invalid_url_is_rejected_with_the_correct_form(url: str, terminal: Terminal) -> None:
    with pytest.raises(UsageError) as refused:
        PostgresDriver(url)

    assert "postgresql://user@host:5432/database" in checked(str(refused.value))
    assert CANARY not in "".join(traceback.format_exception(refused.value))
    ended, line = terminal("status", url)
    assert (ended, "postgresql://user@host:5432/database" in line) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("where", "hint"),
    [
        ("127.0.0.1:1", "connection refused; check host and port"),
        ("nowhere.invalid:5432", "host not found; check its name"),
    ],
)
def test_an_unreachable_server_is_reported_with_what_to_check(where: str, hint: str, terminal: Terminal) -> None:
    url = f"postgresql://app:{CANARY}@{where}/app"

    message = refusal(url)
    ended, line = terminal("status", url)

    assert f"database 'app' on {where.partition(':')[0]}: {hint}" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server with four connections, one reserved for superusers, which requires a password from one user."""
    folder: Path = tmp_path_factory.mktemp("small")
    rules = folder / "rules.conf"
    rules.write_text("host postgres app 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n")
    limits = {"max_connections": "4", "superuser_reserved_connections": "1", "max_wal_senders": "0"}
    with PostgresServer.start(folder, settings={"hba_file": str(rules), "autovacuum": "off", **limits}) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"CREATE ROLE app LOGIN PASSWORD '{CANARY}'")
            db.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
        yield server


def of_app(server: PostgresServer, password: str = CANARY) -> str:
    return server.url.replace("postgres@", f"app:{password}@")


@pytest.mark.parametrize("password", ["", f"wrong{CANARY}"])
def test_a_wrong_or_missing_password_is_reported(password: str, small: PostgresServer, terminal: Terminal) -> None:
    url = of_app(small, password)

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "wrong user or password; in a URL, write special characters as %XX" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_user_who_may_not_connect_is_referred_to_pg_hba_conf(small: PostgresServer, terminal: Terminal) -> None:
    url = of_app(small).replace("/postgres", "/template1")

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "this user does not exist or may not connect; check its name and pg_hba.conf" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_user_that_does_not_exist_is_reported(terminal: Terminal) -> None:
    url = server().url.replace("postgres@", f"absent:{CANARY}@")

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "this user does not exist or may not connect" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_an_unknown_database_is_reported(terminal: Terminal) -> None:
    url = server().url.replace("postgres@", f"postgres:{CANARY}@").removesuffix("/postgres") + "/nowhere"

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "database 'nowhere' on 127.0.0.1: this database does not exist; create it, or correct its name" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_user_without_privileges_is_advised_to_grant_them(small: PostgresServer) -> None:
    with psycopg.connect(small.url, autocommit=True) as db:
        db.execute("REVOKE INSERT ON th_jobs FROM app")

    message = refusal(of_app(small))

    with psycopg.connect(small.url, autocommit=True) as db:
        db.execute("GRANT INSERT ON th_jobs TO app")
    assert "this user lacks a privilege; grant it" in message


@contextmanager
def connections_used_up(small: PostgresServer) -> Iterator[None]:
    """Use every connection that is not reserved."""
    with ExitStack() as connections:
        for _ in range(3):
            connections.enter_context(psycopg.connect(of_app(small)))
        yield


def test_a_server_without_free_connections_is_reported(small: PostgresServer, terminal: Terminal) -> None:
    with connections_used_up(small):
        message = refusal(of_app(small))
        ended, line = terminal("status", of_app(small))

    assert "all connections that are allowed are in use; close some, raise max_connections, or" in message
    assert (ended, message in line) == (ExitCode.CANNOT_CONNECT, True)


def test_a_user_at_its_own_limit_of_connections_is_reported_as_such(small: PostgresServer) -> None:
    with psycopg.connect(small.url, autocommit=True) as db:
        db.execute("ALTER ROLE app CONNECTION LIMIT 0")

    try:
        message = refusal(of_app(small))
    finally:
        with psycopg.connect(small.url, autocommit=True) as db:
            db.execute("ALTER ROLE app CONNECTION LIMIT -1")

    assert "connections of the server" not in message
    assert "or the CONNECTION LIMIT of this user" in message
    assert 'too many connections for role "app"' in message


def test_a_call_recovers_when_the_server_has_a_free_connection_again(small: PostgresServer) -> None:
    with closing(PostgresDriver(of_app(small), deadline=SHORT, size=1)) as store:
        store.inspector.now()
        with psycopg.connect(small.url, autocommit=True) as db:
            db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")
        with connections_used_up(small), pytest.raises(StoreUnavailable, match="that are allowed are in use"):
            store.inspector.now()

        assert len(store.insert([new_job()])) == 1


def test_a_database_without_tables_advises_migrate_up(terminal: Terminal) -> None:
    with database(migrated=False) as url:
        message = refusal(url)
        status, shown = terminal("status", url)
        check, line = terminal("check", url)

    assert message == "the store has no TaskHarbor tables yet: run 'taskharbor migrate up'"
    assert (status, shown.splitlines()[0]) == (ExitCode.OK, "schema   0")
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


def test_a_missing_schema_advises_migrate_up(terminal: Terminal) -> None:
    url = f"{emptied()}?schema=elsewhere"

    message = refusal(url)
    check, line = terminal("check", url)

    assert "run 'taskharbor migrate up'" in message
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


@pytest.fixture
def _newer_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two more, because tables that are one version behind are accepted.
    names = ["9998_sooner", "9999_later"]
    new = [Migration(number=n, name=name, sql="SELECT 1;") for n, name in enumerate(names, len(MIGRATIONS) + 1)]
    later = (*MIGRATIONS, *new)
    monkeypatch.setattr(driver, "MIGRATIONS", later)
    monkeypatch.setattr(schema, "MIGRATIONS", later)


@pytest.mark.usefixtures("_newer_code")
def test_a_schema_older_than_the_code_advises_migrate_up(terminal: Terminal) -> None:
    url = emptied()

    message = refusal(url)
    status, shown = terminal("status", url)
    check, line = terminal("check", url)

    found = len(MIGRATIONS)
    assert message == f"the store's schema is {found}, this code needs {found + 2}: run 'taskharbor migrate up'"
    assert (status, "9999_later" in shown) == (ExitCode.OK, True)
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


def test_a_schema_newer_than_the_code_advises_an_update(terminal: Terminal) -> None:
    with database() as url:
        with psycopg.connect(url) as db:
            db.execute("INSERT INTO th_migrations (number, name) VALUES (99, '0099_later')")
        message = refusal(url)
        check, line = terminal("check", url)

    assert message == f"the store's schema is 99, this code needs {len(MIGRATIONS)}: update TaskHarbor"
    assert (check, message in line) == (ExitCode.SCHEMA_OUT_OF_DATE, True)


def test_a_wrong_schema_version_raises_schema_out_of_date() -> None:
    with database(migrated=False) as url, closing(connect(url)) as store, pytest.raises(SchemaOutOfDate):
        store.inspector.now()


@pytest.mark.parametrize("migrated", [True, False])
def test_a_read_only_server_advises_connecting_to_the_primary(*, migrated: bool, terminal: Terminal) -> None:
    with database(migrated=migrated) as url:
        with psycopg.connect(url, autocommit=True) as db:
            name = db.info.dbname
            db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        status, _ = terminal("status", url)
        message = refusal(url) if migrated else terminal("up", url)[1]

    assert status == ExitCode.OK
    assert "the server is read-only; connect to the primary" in message


def slow_down(url: str) -> None:
    """Make every insert take 30 s."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE FUNCTION delay() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(30); RETURN NEW; END'"
        )
        db.execute("CREATE TRIGGER delay BEFORE INSERT ON th_jobs_waiting FOR EACH ROW EXECUTE FUNCTION delay()")


def failure(store: Driver) -> str:
    with pytest.raises(StoreUnavailable) as failed:
        store.insert([new_job()])
    return checked(str(failed.value))


def test_a_statement_that_exceeds_the_deadline_is_reported() -> None:
    with database() as url:
        slow_down(url)
        with closing(PostgresDriver(url, deadline=SHORT)) as store:
            message = failure(store)

    assert "the statement took longer than the deadline; it stored nothing" in message


def test_a_lock_held_for_too_long_is_reported() -> None:
    url = emptied()
    with closing(PostgresDriver(url, deadline=SHORT)) as store, psycopg.connect(url) as other:
        other.execute("LOCK TABLE th_jobs_waiting")

        message = failure(store)

    assert "another transaction held a lock for too long" in message


POOLED: Final = (
    "there seems to be a pooler in transaction mode; add ?pooler=transaction to the URL, or connect directly"
)


@pytest.mark.parametrize(
    "settings", [{}, {"ignore_startup_parameters": "options"}], ids=["it refuses options", "it drops options"]
)
def test_an_undeclared_pooler_is_detected_before_any_job_is_changed(
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


def test_an_unknown_pooler_mode_is_rejected_with_the_valid_one(terminal: Terminal) -> None:
    url = f"{emptied()}?pooler=session"

    message = refusal(url)
    ended, line = terminal("status", url)

    assert "pooler=transaction is for a pooler in transaction mode; leave it out otherwise" in message
    assert (ended, message in line) == (ExitCode.USAGE, True)
