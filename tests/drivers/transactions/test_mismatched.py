"""Tests that connections to another kind of store, or to a database without tables, are refused with a hint."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from taskharbor import Harbor, Worker
from taskharbor.core.errors import SchemaOutOfDate, UsageError
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.unwrap import aunwrap, unwrap
from taskharbor.testing.conformance.subject import new_job
from tests.support.joined_stores import postgres_store, sqlite_store
from tests.support.postgres import database
from tests.support.shops import ASYNC_SHOPS, SHOPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from taskharbor import Context
    from tests.support.joined_stores import Store
    from tests.support.shops import AsyncShop, Shop

LITE = [kind for kind in SHOPS if "lite" in kind.lower()]
OTHERS = [kind for kind in SHOPS if kind not in LITE]


@pytest.fixture
def on_postgres() -> Iterator[Store]:
    with postgres_store() as store:
        yield store


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Store]:
    with sqlite_store(tmp_path) as store:
        yield store


def _ship(order: int) -> None: ...


def refusals(store: Store, shop: Shop) -> list[str]:
    """Return the errors of a harbor and of a driver for a connection."""

    def of_harbor() -> None:
        with Harbor(store.url) as harbor:
            harbor.task(_ship).using(connection=shop.connection).enqueue(1)

    def of_many() -> None:
        with Harbor(store.url) as harbor:
            harbor.enqueue_many([harbor.task(_ship).call(1)], connection=shop.connection)

    return [refusal(call) for call in (of_harbor, of_many, lambda: store.driver.join(unwrap(shop.connection)))]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kind", LITE)
def test_a_connection_to_sqlite_is_refused_on_postgresql(kind: str, on_postgres: Store, on_sqlite: Store) -> None:
    with SHOPS[kind](on_sqlite.url) as shop:
        errors = refusals(on_postgres, shop)

    assert [each.partition(":")[0] for each in errors] == ["connection is a sqlite3.Connection"] * 3
    assert all("this store is PostgreSQL; pass a psycopg (3) Connection" in each for each in errors)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_connection_to_postgresql_is_refused_on_sqlite(kind: str, on_postgres: Store, on_sqlite: Store) -> None:
    with SHOPS[kind](on_postgres.url) as shop:
        errors = refusals(on_sqlite, shop)

    assert [each.partition(":")[0] for each in errors] == ["connection is a psycopg.Connection"] * 3
    assert all("this store is SQLite; pass a sqlite3.Connection to" in each for each in errors)


@pytest.mark.parametrize("kind", ASYNC_SHOPS)
def test_an_async_connection_is_refused_on_sqlite(kind: str, on_postgres: Store, on_sqlite: Store) -> None:
    async def send(shop: AsyncShop) -> None:
        with Harbor(on_sqlite.url) as harbor:
            await harbor.task(_ship).using(connection=shop.connection).aenqueue(1)

    error = refusal(lambda: asyncio.run(with_shop(kind, on_postgres, send)))

    named = "asyncpg" if "asyncpg" in kind else "psycopg.AsyncConnection"
    assert error.startswith(f"connection is a {named}")
    assert ": this store cannot join async connections" in error


async def with_shop(kind: str, store: Store, work: Callable[[AsyncShop], Any]) -> None:
    async with asyncio.timeout(30), ASYNC_SHOPS[kind](store.url) as shop:
        await work(shop)


def test_a_sync_connection_is_refused_where_an_async_one_is_joined(on_postgres: Store) -> None:
    with psycopg.connect(on_postgres.url) as db:
        error = refusal(lambda: on_postgres.driver.ajoin(db))

    assert error.startswith("connection is a psycopg.Connection: this store is PostgreSQL; ")


def test_a_job_is_not_completed_in_a_transaction_of_another_kind_of_store(on_postgres: Store, tmp_path: Path) -> None:
    errors: list[str] = []

    def handle(_payload: object, ctx: Context) -> None:
        with closing(sqlite3.connect(tmp_path / "other.db")) as db:
            errors.append(refusal(lambda: ctx.complete_in(db)))

    on_postgres.driver.insert([new_job(type="greet")])
    worker = Worker(on_postgres.driver)
    worker.register("greet", handle)
    worker.drain()

    assert [each.partition(":")[0] for each in errors] == ["connection is a sqlite3.Connection"]


@pytest.mark.parametrize("verb", ["insert", "settle"])
def test_a_database_without_tables_is_reported_with_the_way_out(verb: str, on_postgres: Store) -> None:
    settlement = Settlement(on_postgres.take().lease, Outcome.ack())
    with (
        database(migrated=False) as url,
        psycopg.connect(url) as db,
        pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up' on the"),
    ):
        getattr(on_postgres.driver.join(db), verb)([new_job() if verb == "insert" else settlement])


def test_a_database_without_tables_is_reported_to_an_async_caller(on_postgres: Store) -> None:
    async def insert(url: str) -> None:
        async with asyncio.timeout(30), await psycopg.AsyncConnection.connect(url) as db:
            with pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up' on the"):
                await on_postgres.driver.ajoin(await aunwrap(db)).insert([new_job()])

    with database(migrated=False) as url:
        asyncio.run(insert(url))


def test_a_schema_that_does_not_exist_is_reported_with_the_way_out(on_postgres: Store) -> None:
    with (
        closing(PostgresDriver(on_postgres.url, schema="elsewhere")) as driver,
        psycopg.connect(on_postgres.url) as db,
        pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up'"),
    ):
        driver.join(db).insert([new_job()])


def test_another_error_of_the_users_transaction_stays_as_it_is(on_postgres: Store) -> None:
    with psycopg.connect(on_postgres.url) as db:
        with pytest.raises(psycopg.errors.UndefinedFunction):
            db.execute("SELECT nothing_like_it()")

        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            on_postgres.driver.join(db).insert([new_job()])


def test_a_file_whose_tables_are_gone_is_reported_with_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with closing(SqliteDriver(file)) as driver:
        driver.close()
        for each in tmp_path.glob("jobs.db*"):
            each.unlink()
        with closing(sqlite3.connect(file)) as db:
            db.execute("CREATE TABLE orders (id integer)")
            with pytest.raises(SchemaOutOfDate, match="run 'taskharbor migrate up'"):
                driver.join(db).insert([new_job()])


def test_a_file_that_is_gone_is_reported_as_such(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    with closing(SqliteDriver(file)) as driver, closing(sqlite3.connect(tmp_path / "other.db")) as db:
        for each in tmp_path.glob("jobs.db*"):
            each.unlink()
        db.execute("CREATE TABLE orders (id integer)")

        assert "it must be open on the driver's own file" in refusal(lambda: driver.join(db))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_connection_that_cannot_send_every_text_is_refused(encoding: str, on_postgres: Store) -> None:
    with psycopg.connect(on_postgres.url, client_encoding=encoding) as db:
        assert f"connection is in client_encoding {encoding}: it could not send every text; connect with" in refusal(
            lambda: on_postgres.driver.join(db).insert([new_job()])
        )


def test_an_async_connection_that_cannot_send_every_text_is_refused(on_postgres: Store) -> None:
    async def insert() -> None:
        async with await psycopg.AsyncConnection.connect(on_postgres.url, client_encoding="LATIN1") as db:
            await on_postgres.driver.ajoin(db).insert([new_job()])

    assert "connection is in client_encoding LATIN1: it could not send" in refusal(lambda: asyncio.run(insert()))
