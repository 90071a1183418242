"""Tests that jobs and outcomes join the transaction of an async connection."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg
import psycopg
import pytest

from taskharbor.core.errors import LeaseMismatch, UsageError
from taskharbor.core.ids import new_token
from taskharbor.core.model import Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.unwrap import aunwrap, is_async
from taskharbor.testing.conformance.subject import BOOM, new_job
from tests.support.joined_stores import postgres_store
from tests.support.shops import ASYNC_SHOPS, Regret

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.support.joined_stores import Store
    from tests.support.shops import AsyncShop

    T = TypeVar("T")
    Open = Callable[[Callable[[AsyncShop], Awaitable[T]]], T]

DEADLINE: Final = timedelta(seconds=5)
NO_WAIT: Final = timedelta(0)


@pytest.fixture
def store() -> Iterator[Store]:
    with postgres_store() as made:
        yield made


@pytest.fixture(params=ASYNC_SHOPS)
def in_shop(request: pytest.FixtureRequest, store: Store) -> Open[Any]:
    """Return a function that runs a coroutine in an open shop."""

    async def open_for(work: Callable[[AsyncShop], Awaitable[T]]) -> T:
        async with asyncio.timeout(30), ASYNC_SHOPS[request.param](store.url) as shop:
            return await work(shop)

    return lambda work: asyncio.run(open_for(work))


async def joined(store: Store, shop: AsyncShop, *, notify: bool = True) -> Any:
    return store.driver.ajoin(await aunwrap(shop.connection), notify=notify)


def test_a_job_is_there_with_the_order_once_the_shop_commits_and_not_before(store: Store, in_shop: Open[Any]) -> None:
    job = new_job()

    async def work(shop: AsyncShop) -> Any:
        answers = await (await joined(store, shop)).insert([job])
        await shop.order()
        before = store.has(job), store.orders()
        await shop.commit()
        return answers, before

    answers, before = in_shop(work)

    assert answers == [Enqueued(job.id, existed=False)]
    assert before == (False, 0)
    assert (store.has(job), store.orders()) == (True, 1)


def test_a_duplicate_key_returns_the_first_job(store: Store, in_shop: Open[Any]) -> None:
    first, second = (new_job(idempotency_key="k", digest=b"1") for _ in range(2))

    async def work(shop: AsyncShop) -> Any:
        answers = await (await joined(store, shop)).insert([first, second])
        await shop.commit()
        return answers

    assert in_shop(work) == [Enqueued(first.id, existed=False), Enqueued(first.id, existed=True)]
    assert (store.has(first), store.has(second)) == (True, False)


def test_a_job_is_discarded_if_the_shop_rolls_back(store: Store, in_shop: Open[Any]) -> None:
    job = new_job()

    async def work(shop: AsyncShop) -> None:
        await shop.order()
        await (await joined(store, shop)).insert([job])
        await shop.rollback()

    in_shop(work)

    assert (store.has(job), store.orders()) == (False, 0)


def test_a_savepoint_rolls_back_only_its_own_jobs(store: Store, in_shop: Open[Any]) -> None:
    before, within, after = new_job(), new_job(), new_job()

    async def work(shop: AsyncShop) -> None:
        await (await joined(store, shop)).insert([before])
        with suppress(Regret):
            async with shop.savepoint():
                await (await joined(store, shop)).insert([within])
                raise Regret
        await (await joined(store, shop)).insert([after])
        await shop.commit()

    in_shop(work)

    assert [store.has(job) for job in (before, within, after)] == [True, False, True]


def test_a_listener_is_notified_when_the_shop_commits_and_not_before(store: Store, in_shop: Open[Any]) -> None:
    with closing(store.driver.listen(["default"])) as listener:

        async def work(shop: AsyncShop) -> bool:
            await (await joined(store, shop)).insert([new_job()])
            before = listener.wait(NO_WAIT)
            await shop.commit()
            return bool(before)

        assert (in_shop(work), bool(listener.wait(DEADLINE))) == (False, True)


def test_a_joined_transaction_without_notify_does_not_notify(store: Store, in_shop: Open[Any]) -> None:
    job = new_job()
    with closing(store.driver.listen(["default"])) as listener:

        async def work(shop: AsyncShop) -> None:
            await (await joined(store, shop, notify=False)).insert([job])
            await shop.commit()

        in_shop(work)

        assert store.has(job)
        assert not listener.wait(timedelta(milliseconds=100))


def test_an_outcome_is_recorded_with_the_order_once_the_shop_commits(store: Store, in_shop: Open[Any]) -> None:
    claim = store.take()

    async def work(shop: AsyncShop) -> Any:
        await shop.order()
        answers = await (await joined(store, shop)).settle([Settlement(claim.lease, Outcome.ack(b"1"))])
        before = store.status(claim), store.orders()
        await shop.commit()
        return answers, before

    answers, before = in_shop(work)

    assert answers == [Settled(claim.job.id, Status.SUCCEEDED)]
    assert before == (Status.PROCESSING, 0)
    assert (store.status(claim), store.orders()) == (Status.SUCCEEDED, 1)


def test_an_outcome_is_discarded_if_the_shop_rolls_back(store: Store, in_shop: Open[Any]) -> None:
    claim = store.take()
    settlement = Settlement(claim.lease, Outcome.fail("hopeless", failure=BOOM))

    async def work(shop: AsyncShop) -> None:
        await (await joined(store, shop)).settle([settlement])
        await shop.rollback()

    in_shop(work)

    assert store.status(claim) is Status.PROCESSING
    assert store.driver.settle([settlement]) == [Settled(claim.job.id, Status.DEAD)]


def test_a_wrong_token_settles_nothing_and_the_transaction_continues(store: Store, in_shop: Open[Any]) -> None:
    claim = store.take()
    stolen = Lease(claim.job.id, new_token(), claim.lease.expires_at)

    async def work(shop: AsyncShop) -> Any:
        answers = await (await joined(store, shop)).settle([Settlement(stolen, Outcome.ack())])
        await shop.order()
        await shop.commit()
        return answers

    [answer] = in_shop(work)

    assert isinstance(answer, LeaseMismatch)
    assert (store.status(claim), store.orders()) == (Status.PROCESSING, 1)


def test_an_async_connection_is_recognized(in_shop: Open[Any]) -> None:
    async def work(shop: AsyncShop) -> bool:
        return is_async(shop.connection)

    assert in_shop(work)


def test_a_connection_without_a_transaction_cannot_be_joined(store: Store) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(store.url, autocommit=True) as db:
            await store.driver.ajoin(db).insert([new_job()])

    with pytest.raises(UsageError, match="in autocommit mode: begin a transaction first"):
        asyncio.run(work())


def test_an_asyncpg_connection_without_a_transaction_cannot_be_joined(store: Store) -> None:
    async def work() -> None:
        db = await asyncpg.connect(store.url)
        try:
            await store.driver.ajoin(db).insert([new_job()])
        finally:
            await db.close()

    with pytest.raises(UsageError, match="in autocommit mode: begin a transaction first"):
        asyncio.run(work())
