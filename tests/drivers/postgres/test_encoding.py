"""Databases and clients in other encodings than UTF8."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor import Client, JobRequest
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.core.errors import UsageError
from taskharbor.drivers import migrate
from taskharbor.drivers.connect import connect, schema_for
from taskharbor.drivers.postgres.schema import MIGRATIONS
from tests.support.pgbouncer import pooler
from tests.support.postgres import database, emptied, schema_at, server

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS: Final = {"greeting": "grüße", "price": "5 €", "place": "東京"}


@contextmanager
def encoded(encoding: str) -> Iterator[str]:
    """Yield the URL of an empty database in *encoding*."""
    name = f"in_{encoding.lower()}"
    with psycopg.connect(server().url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0".encode())
    try:
        yield f"{server().url.rpartition('/')[0]}/{name}"
    finally:
        server().drop(name)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_migrate_rejects_a_database_that_is_not_in_utf8(encoding: str) -> None:
    with encoded(encoding) as url:
        with pytest.raises(UsageError) as refused:
            migrate.migrate_up(schema_at(url), MIGRATIONS)
        version = schema_at(url).version()

    assert str(refused.value).startswith(
        f"database is encoded in {encoding}: the encoding must be UTF8; create another"
    )
    assert "CREATE DATABASE name ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0" in str(refused.value)
    assert version == 0


def test_the_command_line_rejects_a_wrong_encoding_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with encoded("SQL_ASCII") as url:
        ended = run(cli, ["migrate", "up", "--url", url])

    _, error = capsys.readouterr()
    assert (ended, error.count("\n")) == (ExitCode.USAGE, 1)
    assert "database is encoded in SQL_ASCII" in error


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_the_printed_script_rejects_a_wrong_encoding(encoding: str) -> None:
    with encoded(encoding) as url:
        script = migrate.pending_sql(schema_at(url), MIGRATIONS)
        with (
            psycopg.connect(url, autocommit=True) as db,
            pytest.raises(psycopg.errors.RaiseException, match=f"database is encoded in {encoding}"),
        ):
            db.execute(script.encode())
        version = schema_at(url).version()

    assert version == 0


def test_a_database_created_as_the_message_says_is_accepted() -> None:
    with encoded("UTF8") as url:
        migrate.migrate_up(schema_at(url), MIGRATIONS)

        assert stored_texts(url) == TEXTS


def stored_texts(url: str) -> object:
    """Store texts that no single-byte encoding can represent; return what is read back."""
    with closing(connect(url)) as driver:
        job_id = Client(driver).enqueue(JobRequest(type="greet", metadata=TEXTS)).id
        return driver.inspector.get([job_id])[job_id].metadata


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii", "euc_jp"])
def test_the_encoding_of_the_environment_changes_nothing(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = emptied()
    monkeypatch.setenv("PGCLIENTENCODING", encoding)

    assert stored_texts(url) == TEXTS


def test_the_encoding_of_the_url_changes_nothing() -> None:
    assert stored_texts(f"{emptied()}?client_encoding=latin1") == TEXTS


def test_the_encoding_of_the_database_changes_nothing() -> None:
    with database() as url:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"ALTER DATABASE {db.info.dbname} SET client_encoding = 'latin1'".encode())

        assert stored_texts(url) == TEXTS


def test_behind_a_pooler_the_encoding_of_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pooler(emptied()) as pooled:
        monkeypatch.setenv("PGCLIENTENCODING", "latin1")

        assert stored_texts(f"{pooled}?pooler=transaction") == TEXTS


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
def test_migrations_do_not_depend_on_the_encoding_of_the_environment(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    with database(migrated=False) as url:
        found = schema_for(url)
        assert found is not None
        migrate.migrate_up(*found)

        assert stored_texts(url) == TEXTS
