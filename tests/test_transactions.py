"""Jobs that are enqueued and completed in the user's own transactions."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskharbor import Context, Harbor, JobFailed, Status
from taskharbor.core.errors import LeaseLost, UsageError
from tests.support.postgres import emptied
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor import Task

LONG_POLL = timedelta(seconds=60)


class Shop:
    """A harbor on PostgreSQL, a user table in the same database, and a task."""

    def __init__(self) -> None:
        self.url = emptied()
        self.harbor = Harbor(self.url)
        self.ship: Task[[int], None, Any] = self.harbor.task(_ship)
        with psycopg.connect(self.url) as db:
            db.execute("CREATE TABLE orders (id integer)")

    @property
    def for_sqlalchemy(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    def orders(self) -> list[int]:
        with psycopg.connect(self.url) as db:
            return [row[0] for row in db.execute("SELECT id FROM orders ORDER BY id")]

    def shipped(self) -> int:
        with psycopg.connect(self.url) as db:
            row = db.execute("SELECT count(*) FROM th_jobs WHERE type = '_ship'").fetchone()
        assert row is not None
        return int(row[0])


def _ship(order: int) -> None: ...


def enqueue_and_fail(task: Task[[int], Any, Any], connection: Any) -> None:
    task.using(connection=connection).enqueue(2)
    raise LookupError("an error after the enqueue")


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    with made.harbor:
        yield made
        with psycopg.connect(made.url) as db:
            db.execute("DROP TABLE orders")


def test_a_job_exists_after_the_session_commits_and_not_after_a_rollback(shop: Shop) -> None:
    engine = create_engine(shop.for_sqlalchemy)
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES (1)"))
        handle = shop.ship.using(connection=session).enqueue(1)
        assert shop.shipped() == 0
    with pytest.raises(LookupError), Session(engine) as session, session.begin():
        enqueue_and_fail(shop.ship, session)
    engine.dispose()

    assert handle.status() is Status.PENDING
    assert (shop.orders(), shop.shipped()) == ([1], 1)


def test_enqueue_many_joins_one_transaction(shop: Shop) -> None:
    with psycopg.connect(shop.url) as db:
        handles = shop.harbor.enqueue_many((shop.ship.call(n) for n in range(3)), connection=db)
        assert shop.shipped() == 0

    assert [handle.status() for handle in handles] == [Status.PENDING] * 3


def test_an_async_session_is_joined_by_aenqueue(shop: Shop) -> None:
    async def main() -> None:
        engine = create_async_engine(shop.for_sqlalchemy)
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text("INSERT INTO orders VALUES (1)"))
            await shop.ship.using(connection=session).aenqueue(1)
            assert shop.shipped() == 0
            with pytest.raises(UsageError, match="it is async; use await aenqueue"):
                shop.ship.using(connection=session).enqueue(1)
        async with AsyncSession(engine) as session, session.begin():
            await shop.ship.using(connection=session).aenqueue(2)
            await session.rollback()
        await engine.dispose()

    asyncio.run(main())

    assert (shop.orders(), shop.shipped()) == ([1], 1)


def test_a_commit_wakes_a_worker_at_once(shop: Shop) -> None:
    worker = shop.harbor.worker(poll=LONG_POLL)
    worker.start()
    try:
        wait_until(lambda: shop.ship.enqueue(0).result(20) is None)  # the worker listens after this
        with psycopg.connect(shop.url) as db:
            handle = shop.ship.using(connection=db).enqueue(1)

        assert handle.result(20) is None
    finally:
        worker.stop()


def test_effects_and_completion_commit_together(shop: Shop) -> None:
    @shop.harbor.task
    def charge(ctx: Context, order: int) -> int:
        with psycopg.connect(shop.url) as db:
            db.execute("INSERT INTO orders VALUES (%s)", [order])
            ctx.complete_in(db, result=order + 1)
            assert handle.status() is Status.PROCESSING
        return 0

    handle = charge.enqueue(7)
    shop.harbor.worker().drain()

    assert handle.result() == 8
    assert shop.orders() == [7]
    assert handle.job().attempt_count == 1


def test_a_rolled_back_completion_fails_the_attempt(shop: Shop) -> None:
    @shop.harbor.task(max_attempts=1)
    def charge(ctx: Context, order: int) -> None:
        with psycopg.connect(shop.url) as db:
            db.execute("INSERT INTO orders VALUES (%s)", [order])
            ctx.complete_in(db)
            db.rollback()

    handle = charge.enqueue(7)
    shop.harbor.worker().drain()

    assert shop.orders() == []
    with pytest.raises(JobFailed, match="its transaction was not committed"):
        handle.result()


def test_a_committed_completion_counts_even_after_the_timeout(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    @shop.harbor.task(max_attempts=1, timeout=0.05)
    def charge(ctx: Context, order: int) -> int:
        wait_until(lambda: ctx.is_cancelled)
        with psycopg.connect(shop.url) as db:
            db.execute("INSERT INTO orders VALUES (%s)", [order])
            ctx.complete_in(db, result=order + 1)
        return 0

    handle = charge.enqueue(7)
    shop.harbor.worker().drain()

    assert "still running at its timeout" in caplog.text
    assert (handle.result(), shop.orders()) == (8, [7])


def test_an_error_after_the_commit_changes_nothing(shop: Shop) -> None:
    @shop.harbor.task(max_attempts=1)
    def charge(ctx: Context, order: int) -> None:
        with psycopg.connect(shop.url) as db:
            ctx.complete_in(db)
        raise LookupError(order)

    handle = charge.enqueue(7)
    shop.harbor.worker().drain()

    assert handle.status() is Status.SUCCEEDED


def test_a_job_that_is_completed_twice_keeps_the_first_result(shop: Shop) -> None:
    @shop.harbor.task(max_attempts=1)
    def charge(ctx: Context) -> int:
        with psycopg.connect(shop.url) as db:
            ctx.complete_in(db, result=1)
            ctx.complete_in(db, result=2)
        return 3

    handle = charge.enqueue()
    shop.harbor.worker().drain()

    assert handle.result() == 1


def test_a_completion_with_an_invalid_result_rolls_back_and_is_not_retried(shop: Shop) -> None:
    @shop.harbor.task
    def charge(ctx: Context, order: int) -> int:
        with psycopg.connect(shop.url) as db:
            db.execute("INSERT INTO orders VALUES (%s)", [order])
            ctx.complete_in(db, result="eight")
        return 0

    handle = charge.enqueue(7)
    shop.harbor.worker().drain()

    with pytest.raises(JobFailed, match=r"is DEAD: .*result is not what the task returns: must be int, not str"):
        handle.result()
    assert handle.job().attempt_count == 1
    assert shop.orders() == []


def test_a_completion_without_the_lease_fails_and_rolls_back(shop: Shop) -> None:
    errors = []

    @shop.harbor.task
    def charge(ctx: Context, order: int) -> None:
        with psycopg.connect(shop.url) as other:
            other.execute("UPDATE th_jobs SET lease_expires_at = statement_timestamp() - interval '1 s'")
        try:
            with psycopg.connect(shop.url) as db:
                db.execute("INSERT INTO orders VALUES (%s)", [order])
                ctx.complete_in(db)
        except LeaseLost as error:
            errors.append(error)
            raise

    charge.enqueue(7)
    worker = shop.harbor.worker(janitor=False)
    worker.start()
    try:
        wait_until(lambda: bool(errors))
    finally:
        worker.stop(timedelta(0))

    assert shop.orders() == []


def test_an_async_handler_completes_in_its_own_transaction(shop: Shop) -> None:
    @shop.harbor.task
    async def charge(ctx: Context, order: int) -> int:
        async with await psycopg.AsyncConnection.connect(shop.url) as db:
            await db.execute("INSERT INTO orders VALUES (%s)", [order])
            await ctx.acomplete_in(db, result=order + 1)
        return 0

    handle = charge.enqueue(7)
    shop.harbor.worker().drain()

    assert handle.result() == 8
    assert shop.orders() == [7]


def test_sqlite_enqueues_and_completes_in_a_joined_transaction(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with Harbor(f"sqlite:///{file}") as harbor, closing(sqlite3.connect(file)) as orders:

        @harbor.task
        def charge(ctx: Context, order: int) -> int:
            with closing(sqlite3.connect(file)) as db, db:
                db.execute("INSERT INTO orders VALUES (?)", [order])
                ctx.complete_in(db, result=order + 1)
            return 0

        orders.execute("CREATE TABLE orders (id INTEGER)")
        with orders:
            handle = charge.using(connection=orders).enqueue(7)
        with pytest.raises(LookupError), orders:
            enqueue_and_fail(charge, orders)
        harbor.worker().drain()

        assert handle.result() == 8
        assert orders.execute("SELECT id FROM orders").fetchall() == [(7,)]


def test_a_connection_that_cannot_be_joined_is_refused(shop: Shop) -> None:
    with pytest.raises(UsageError, match="connection"):
        shop.ship.using(connection=object()).enqueue(7)
    with Harbor("memory://") as other, closing(sqlite3.connect(":memory:")) as db:
        task = other.task(_ship)
        with pytest.raises(UsageError, match="this store cannot join it; sqlite and postgresql can"):
            task.using(connection=db).enqueue(7)
