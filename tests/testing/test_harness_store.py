"""Tests that the harness sees commits and rollbacks of the transactions in which jobs are enqueued."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from taskharbor import Context, Fixed, Harbor, RetryPolicy, Status
from taskharbor.core.errors import JobNotFound, UsageError
from tests.support.django_harness import facts_of
from tests.support.django_shop import django_address
from tests.support.postgres import emptied
from tests.support.shops import ASYNC_SHOPS, SHOPS, Regret, by_sqlalchemy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from taskharbor import Task
    from taskharbor.testing import Harness
    from tests.support.shops import AsyncShop, Shop

    T = TypeVar("T")
    Open = Callable[[Callable[..., Awaitable[T]]], T]

ONCE: Final = RetryPolicy(backoff=Fixed(timedelta(milliseconds=1)))


def _ship(order: int) -> int:
    return order


@pytest.fixture
def harbor() -> Harbor:
    """Return a harbor whose own store is unreachable, since no test may use it."""
    return Harbor("postgresql://user@127.0.0.1:1/unreachable")


@pytest.fixture
def ship(harbor: Harbor) -> Task[[int], int, Any]:
    return harbor.task(_ship)


@pytest.fixture
def harness(harbor: Harbor) -> Iterator[Harness]:
    with harbor.testing() as opened:
        yield opened


@pytest.fixture
def lite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture(params=SHOPS)
def open_shop(request: pytest.FixtureRequest, lite_url: str) -> Iterator[Callable[[], Shop]]:
    """Return a function that opens a connection of each kind."""
    url = lite_url if "lite" in request.param.lower() else emptied()
    with ExitStack() as stack:
        yield lambda: stack.enter_context(SHOPS[request.param](url))


@pytest.fixture
def shop(open_shop: Callable[[], Shop]) -> Shop:
    return open_shop()


@pytest.fixture(params=ASYNC_SHOPS)
def in_shop(request: pytest.FixtureRequest) -> Open[Any]:
    """Return a function that runs a coroutine in an open shop."""
    url = emptied()

    async def open_for(work: Callable[[AsyncShop], Awaitable[T]]) -> T:
        async with asyncio.timeout(30), ASYNC_SHOPS[request.param](url) as shop:
            return await work(shop)

    return lambda work: asyncio.run(open_for(work))


@contextmanager
def begun(engine: sqlalchemy.Engine) -> Iterator[sqlalchemy.Connection]:
    """Yield a connection with a transaction that is rolled back, as a test suite would begin it around each test."""
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE parts (id integer)"))
        connection.execute(sqlalchemy.text("INSERT INTO parts VALUES (1)"))  # sqlite3 begins no transaction before it
        yield connection
        connection.rollback()


def orders(harness: Harness) -> list[Any]:
    return [job.data["order"] for job in harness.enqueued()]


def test_a_job_is_run_after_the_commit_and_not_before(
    harness: Harness, ship: Task[[int], int, Any], shop: Shop
) -> None:
    handle = ship.using(connection=shop.connection).enqueue(1)

    assert (harness.enqueued(), harness.drain()) == ([], [])
    with pytest.raises(JobNotFound):
        handle.status()

    shop.commit()

    assert harness.assert_enqueued(ship, 1).id == handle.id
    assert [ran.status for ran in harness.drain()] == [Status.SUCCEEDED]
    assert handle.result() == 1


def test_a_job_is_gone_after_a_rollback(harness: Harness, ship: Task[[int], int, Any], shop: Shop) -> None:
    ship.using(connection=shop.connection).enqueue(1)
    shop.rollback()
    ship.using(connection=shop.connection).enqueue(2)
    shop.commit()

    harness.refute_enqueued(ship, 1)
    assert orders(harness) == [2]


def test_a_savepoint_takes_only_its_own_jobs_along(harness: Harness, ship: Task[[int], int, Any], shop: Shop) -> None:
    joined = ship.using(connection=shop.connection)
    joined.enqueue(1)
    with suppress(Regret), shop.savepoint():
        joined.enqueue(2)
        raise Regret
    with shop.savepoint():
        joined.enqueue(3)
    joined.enqueue(4)
    assert orders(harness) == []

    shop.commit()

    assert orders(harness) == [1, 3, 4]


def test_a_job_of_a_released_savepoint_is_gone_with_the_transaction_around_it(
    harness: Harness, ship: Task[[int], int, Any], shop: Shop
) -> None:
    joined = ship.using(connection=shop.connection)
    joined.enqueue(1)
    with shop.savepoint():
        joined.enqueue(2)
    shop.rollback()

    assert orders(harness) == []


def test_each_of_two_connections_has_its_own_transaction(
    harness: Harness, ship: Task[[int], int, Any], open_shop: Callable[[], Shop]
) -> None:
    one, two = open_shop(), open_shop()
    ship.using(connection=one.connection).enqueue(1)
    ship.using(connection=two.connection).enqueue(2)
    ship.enqueue(3)

    two.commit()
    assert orders(harness) == [2, 3]

    one.rollback()
    ship.using(connection=one.connection).enqueue(4)
    one.commit()
    assert orders(harness) == [2, 3, 4]


def test_many_jobs_are_committed_together(
    harbor: Harbor, harness: Harness, ship: Task[[int], int, Any], shop: Shop
) -> None:
    harbor.enqueue_many((ship.call(n) for n in range(2)), connection=shop.connection)
    shop.rollback()
    harbor.enqueue_many((ship.call(n) for n in range(2, 4)), connection=shop.connection)
    assert orders(harness) == []

    shop.commit()

    assert orders(harness) == [2, 3]


def test_an_idempotency_key_is_held_by_the_transaction_until_it_rolls_back(
    harness: Harness, ship: Task[[int], int, Any], shop: Shop
) -> None:
    joined = ship.using(connection=shop.connection, idempotency_key="once")
    first, second = joined.enqueue(1), joined.enqueue(1)
    shop.rollback()
    with suppress(Regret), shop.savepoint():
        joined.enqueue(1)
        raise Regret
    third = joined.enqueue(1)
    shop.commit()
    fourth = joined.enqueue(1)

    assert (first.existed, second.existed, third.existed, fourth.existed) == (False, True, False, True)
    assert second.id == first.id
    assert [job.id for job in harness.enqueued()] == [third.id] == [fourth.id]


def test_a_delay_counts_from_the_enqueue(harness: Harness, ship: Task[[int], int, Any], shop: Shop) -> None:
    handle = ship.using(connection=shop.connection, delay=timedelta(hours=1)).enqueue(1)
    created_at = harness.clock.now()
    harness.advance(minutes=59)
    shop.commit()
    assert harness.drain() == []

    harness.advance(minutes=1)

    assert len(harness.drain()) == 1
    assert handle.job().created_at == created_at


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_handler_completes_its_job_if_its_transaction_is_committed(
    *, is_committed: bool, harbor: Harbor, harness: Harness, shop: Shop
) -> None:
    @harbor.task(retry=ONCE, max_attempts=1)
    def charge(ctx: Context, order: int) -> int:
        ctx.complete_in(shop.connection, result=order + 1)
        assert handle.status() is Status.PROCESSING
        (shop.commit if is_committed else shop.rollback)()
        return 0

    handle = charge.enqueue(7)
    [ran] = harness.drain()

    if is_committed:
        assert (ran.status, ran.error, handle.result()) == (Status.SUCCEEDED, None, 8)
    else:
        assert ran.status is Status.DEAD
        assert "its transaction was not committed" in str(ran.error)


@pytest.mark.parametrize("kind", SHOPS)
def test_a_commit_counts_though_the_connection_is_closed(
    kind: str, harness: Harness, ship: Task[[int], int, Any], lite_url: str
) -> None:
    url = lite_url if "lite" in kind.lower() else emptied()
    with SHOPS[kind](url) as shop:
        ship.using(connection=shop.connection).enqueue(1)
        shop.commit()
    with suppress(Regret), SHOPS[kind](url) as shop:
        ship.using(connection=shop.connection).enqueue(2)
        raise Regret

    assert orders(harness) == [1]


def test_an_async_transaction_is_committed_rolled_back_and_partly_rolled_back(
    harness: Harness, ship: Task[[int], int, Any], in_shop: Open[Any]
) -> None:
    async def work(shop: AsyncShop) -> None:
        joined = ship.using(connection=shop.connection)
        await joined.aenqueue(1)
        await shop.rollback()
        await joined.aenqueue(2)
        with suppress(Regret):
            async with shop.savepoint():
                await joined.aenqueue(3)
                raise Regret
        async with shop.savepoint():
            await joined.aenqueue(4)
        assert await harness.adrain() == []
        await shop.commit()

    in_shop(work)

    assert orders(harness) == [2, 4]
    assert len(harness.drain()) == 2


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_async_handler_completes_its_job_if_its_transaction_is_committed(
    *, is_committed: bool, harbor: Harbor, harness: Harness, in_shop: Open[Any]
) -> None:
    @harbor.task(retry=ONCE, max_attempts=1)
    async def charge(ctx: Context, order: int) -> int:
        await ctx.acomplete_in(opened[0].connection, result=order + 1)
        await (opened[0].commit if is_committed else opened[0].rollback)()
        return 0

    opened: list[AsyncShop] = []

    async def work(shop: AsyncShop) -> Any:
        opened.append(shop)
        charge.enqueue(7)
        return await harness.adrain()

    [ran] = in_shop(work)

    assert ran.status is (Status.SUCCEEDED if is_committed else Status.DEAD)


@pytest.mark.parametrize("url", ["postgresql", "sqlite"])
@pytest.mark.parametrize("mode", ["create_savepoint", "rollback_only"])
def test_a_session_in_the_transaction_of_a_fixture_commits_for_the_harness(
    url: str, mode: Any, harness: Harness, ship: Task[[int], int, Any], lite_url: str
) -> None:
    engine = sqlalchemy.create_engine(lite_url if url == "sqlite" else by_sqlalchemy(emptied()))
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        connection = stack.enter_context(begun(engine))
        with Session(connection, join_transaction_mode=mode) as session:
            ship.using(connection=session).enqueue(1)
            with suppress(Regret), session.begin_nested():
                ship.using(connection=session).enqueue(2)
                raise Regret
            assert orders(harness) == []
            session.commit()
            assert orders(harness) == [1]
            ship.using(connection=session).enqueue(3)
            session.rollback()

    assert orders(harness) == [1]


def test_another_thread_leaves_a_connection_to_sqlite_alone(harness: Harness, ship: Task[[int], int, Any]) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        connection = stack.enter_context(begun(engine))
        session = stack.enter_context(Session(connection, join_transaction_mode="create_savepoint"))
        ship.using(connection=session).enqueue(1)
        session.commit()
        with ThreadPoolExecutor() as threads:
            seen_there = threads.submit(orders, harness).result(30)

        assert (seen_there, orders(harness)) == ([], [1])


def test_an_async_session_in_the_transaction_of_a_fixture_commits_for_the_harness(
    harness: Harness, ship: Task[[int], int, Any]
) -> None:
    async def work() -> None:
        engine = create_async_engine(by_sqlalchemy(emptied()))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            connection = await stack.enter_async_context(engine.connect())
            await connection.begin()
            session = AsyncSession(connection, join_transaction_mode="create_savepoint")
            await ship.using(connection=await stack.enter_async_context(session)).aenqueue(1)
            assert orders(harness) == []
            await session.commit()
            assert orders(harness) == [1]

    asyncio.run(work())


def test_a_job_in_the_transaction_of_a_fixture_stays_uncommitted_without_a_session(
    harness: Harness, ship: Task[[int], int, Any]
) -> None:
    with psycopg.connect(emptied()) as db, db.transaction(force_rollback=True), db.transaction():
        ship.using(connection=db).enqueue(1)

    with pytest.raises(AssertionError, match="; nothing was enqueued; jobs in transactions that were not committed: 1"):
        harness.assert_enqueued(ship, 1)


def test_a_constraint_that_fails_at_the_commit_takes_the_job_along(
    harness: Harness, ship: Task[[int], int, Any]
) -> None:
    with psycopg.connect(emptied()) as db:
        db.execute("CREATE TEMPORARY TABLE parts (id integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        db.commit()
        db.execute("INSERT INTO parts VALUES (1), (1)")
        ship.using(connection=db).enqueue(1)
        with pytest.raises(psycopg.errors.UniqueViolation):
            db.commit()

    assert orders(harness) == []


def test_a_connection_that_no_store_could_join_is_refused(
    harness: Harness, ship: Task[[int], int, Any], tmp_path: Path
) -> None:
    async def sync_call(url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url) as db:
            ship.using(connection=db).enqueue(1)

    url = emptied()
    with pytest.raises(UsageError, match=r"connection is a builtins\.object: pass a psycopg"):
        ship.using(connection=object()).enqueue(1)
    with psycopg.connect(url, autocommit=True) as db, pytest.raises(UsageError, match="in autocommit mode: begin a"):
        ship.using(connection=db).enqueue(1)
    with (
        closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as lite,
        pytest.raises(UsageError, match="in autocommit mode: begin a"),
    ):
        ship.using(connection=lite).enqueue(1)
    with pytest.raises(UsageError, match="it is async; use await aenqueue"):
        asyncio.run(sync_call(url))
    assert harness.enqueued() == []


def test_a_server_that_cannot_be_asked_is_reported(
    harness: Harness, ship: Task[[int], int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(emptied()) as db:
        ship.using(connection=db).enqueue(1)
    with monkeypatch.context() as patch:
        patch.setattr("taskharbor.testing.commit_marks._STATUS", "SELECT pg_terminate_backend(pg_backend_pid()), %s")
        with pytest.raises(UsageError, match="the harness cannot ask its server whether the transaction was comm"):
            harness.enqueued()

    assert orders(harness) == [1]


def test_an_sqlite_connection_serves_many_harnesses(ship: Task[[int], int, Any], harbor: Harbor) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        for order in range(12):  # SQLite attaches at most ten files
            with harbor.testing() as harness:
                with db:
                    ship.using(connection=db).enqueue(order)
                assert orders(harness) == [order]


@pytest.mark.parametrize("engine", ["postgresql", "sqlite3"])
def test_the_transactions_of_a_django_test_case_do_not_count(engine: str, tmp_path: Path) -> None:
    database = django_address(emptied()) if engine == "postgresql" else {"NAME": str(tmp_path / "shop.db")}

    facts = facts_of({"ENGINE": f"django.db.backends.{engine}"} | database)

    assert set(facts) == {"alone", "in a TestCase", "in the next test"}
    for seen in facts.values():
        assert (seen["commit"], seen["nested"]) == ([[], [1]], [[1], [1, 3, 5]])
        assert seen["outside"].startswith("connection is Django's, outside atomic(): use it inside")
