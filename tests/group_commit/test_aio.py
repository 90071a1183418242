"""Coroutines that wait for an idempotency key delay only callers with that key."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Client, Enqueued
from taskharbor.core.errors import StoreUnavailable
from taskharbor.group_commit import key_locks
from tests.support.held_keys import HELD, WAITERS, CountingDriver, held_key, request
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from taskharbor import JobRequest


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[CountingDriver]:
    with closing(CountingDriver(url)) as driver:
        yield driver


@pytest.fixture
def client(driver: CountingDriver) -> Iterator[Client]:
    with closing(Client(driver)) as client:
        yield client


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def timed() -> Any:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await work

    return asyncio.run(timed())


def single(client: Client, number: int) -> Coroutine[Any, Any, Any]:
    return client.aenqueue(request(idempotency_key=HELD, priority=number))


def batch(client: Client, number: int) -> Coroutine[Any, Any, Any]:
    return client.aenqueue_many([request(idempotency_key=f"own {number}"), request(idempotency_key=HELD)])


async def in_the_store(driver: CountingDriver) -> None:
    assert await asyncio.to_thread(driver.is_waiting.wait, LIMIT_SECONDS)


@pytest.mark.parametrize("waiter", [single, batch])
def test_waiters_for_a_held_key_delay_no_other_coroutine(
    client: Client, driver: CountingDriver, url: str, waiter: Any
) -> None:
    async def enqueue_all() -> tuple[list[Any], list[bool]]:
        with held_key(driver, url):
            waiters = [asyncio.create_task(waiter(client, number)) for number in range(WAITERS)]
            await in_the_store(driver)
            others = [
                await client.aenqueue(request(idempotency_key="another")),
                *await client.aenqueue_many([request(idempotency_key="third"), request()]),
                await client.aenqueue(request()),
            ]
            done = [each.done() for each in waiters]
        await asyncio.gather(*waiters)
        return others, done

    others, done = run(enqueue_all())

    assert [each.existed for each in others] == [False] * 4
    assert done == [False] * WAITERS
    assert driver.most_at_once == 1


def test_coroutines_that_waited_for_one_key_share_its_job(client: Client, driver: CountingDriver, url: str) -> None:
    async def enqueue_all() -> Any:
        with held_key(driver, url):
            waiters = [asyncio.create_task(single(client, number)) for number in range(WAITERS)]
            await in_the_store(driver)
        return await asyncio.gather(*waiters)

    answers = run(enqueue_all())

    assert [each.existed for each in answers] == [False] + [True] * (WAITERS - 1)
    assert len({each.id for each in answers}) == 1


def test_a_coroutine_that_waits_too_long_for_its_key_is_not_sent(
    client: Client, driver: CountingDriver, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def enqueue_two() -> Any:
        with held_key(driver, url):
            first = asyncio.create_task(single(client, 0))
            await in_the_store(driver)
            second = asyncio.create_task(single(client, 1))
            await asyncio.sleep(0)
            monkeypatch.setattr(key_locks, "KEY_TIMEOUT_SECONDS", 0.0)
        return await asyncio.gather(first, second, return_exceptions=True)

    first, second = run(enqueue_two())

    assert isinstance(first, Enqueued)
    assert isinstance(second, StoreUnavailable)
    assert "'held' in queue 'default'" in str(second)
    assert driver.inserts == 1


def test_a_coroutine_canceled_while_waiting_for_its_key_is_not_sent(
    client: Client, driver: CountingDriver, url: str
) -> None:
    async def enqueue_three() -> Any:
        with held_key(driver, url):
            first = asyncio.create_task(single(client, 0))
            await in_the_store(driver)
            second, third = (asyncio.create_task(single(client, number)) for number in (1, 2))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
        await first
        return await third

    assert run(enqueue_three()).existed
    assert driver.inserts == 2


def test_closing_a_client_stores_jobs_that_wait_for_a_key(driver: CountingDriver, url: str) -> None:
    client = Client(driver)

    def release_and_close(holder: Any) -> None:
        holder.rollback()
        client.close()

    async def enqueue_and_close() -> list[Any]:
        with held_key(driver, url) as holder:
            waiters = [asyncio.create_task(batch(client, 0))]
            await in_the_store(driver)
            waiters += [asyncio.create_task(each(client, 1)) for each in (single, batch, single)]
            await asyncio.sleep(0)
            await asyncio.to_thread(release_and_close, holder)
        names = {each.name for each in threading.enumerate()}
        assert names.isdisjoint({"taskharbor-keyed-insert", "taskharbor-batch-insert"})
        return await asyncio.gather(*waiters)

    assert len(run(enqueue_and_close())) == 4


def test_if_no_thread_can_be_started_a_keyed_batch_fails_and_frees_its_keys(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[JobRequest] = [request(idempotency_key=HELD), request()]

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            run(client.aenqueue_many(requests))

    assert [each.existed for each in run(client.aenqueue_many(requests))] == [False, False]
