"""Correct uses of tasks, which both type checkers must accept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from taskharbor import (
    Call,
    Context,
    Exponential,
    Fixed,
    Handle,
    Harbor,
    JobRequest,
    Retry,
    RetryPolicy,
    Snooze,
    Status,
)

harbor = Harbor("memory://")


@dataclass
class Order:
    number: int


@harbor.task
def greet(number: int, *, lang: str = "en") -> str:
    return lang * number


@harbor.task
async def later(order: Order) -> list[int]:
    return [order.number]


@harbor.task
def with_context(ctx: Context, number: int) -> float:
    ctx.progress(number, 10, "half")
    return 0.5


@harbor.task
async def with_context_later(ctx: Context, number: int) -> None:
    ctx.raise_if_cancelled()


@harbor.task(queue="mail", max_attempts=5, timeout=30, aliases=("old",), retry=RetryPolicy(backoff=Fixed(timedelta(1))))
def optioned(number: int) -> bytes:
    return b"" * number


DURATIONS = (Retry(after=30), Retry(after=timedelta(1)), Snooze(0.5), Fixed(1), Exponential(base=1, cap=timedelta(1)))
REQUEST = JobRequest(type="greet", delay=0.5, timeout=timedelta(1))
WORKER = harbor.worker(lease=60, heartbeat=timedelta(1), grace=0.5)
harbor.include("shop.mail", "shop.images")


@harbor.task(type="reports.render")
async def optioned_later(ctx: Context, doc: int) -> str:
    return str(doc)


@harbor.schedule("0 2 * * *", tz="Europe/Paris", missed="once", overlap="skip")
@harbor.task
def nightly() -> None: ...


@harbor.schedule("0 3 * * *", name="early", window=timedelta(hours=6), jitter=30)
@harbor.schedule("0 4 * * *", name="late")
@harbor.task(queue="reports")
async def report(ctx: Context, days: int = 1) -> int:
    return days


@harbor.task
def mixed(first: int, /, *rest: float, self: str = "", **more: bool) -> None: ...


@harbor.task
def found(number: int) -> Order | None:
    return Order(number) if number else None


class Mails:
    @harbor.task
    @staticmethod
    def send(to: str) -> None: ...


@harbor.lifespan
def resources() -> Iterator[dict[str, int]]:
    yield {"answer": 42}


async def main() -> None:
    assert_type(greet(1, lang="fr"), str)
    assert_type(await later(Order(1)), list[int])
    assert_type(greet.enqueue(1), Handle[str])
    assert_type(greet.enqueue(1, lang="fr").result(5), str)
    assert_type(await later.aenqueue(Order(1)), Handle[list[int]])
    assert_type(later.enqueue(Order(1)).result(), list[int])
    assert_type(await with_context.enqueue(3).aresult(), float)
    assert_type(with_context_later.enqueue(3), Handle[None])
    assert_type(optioned.enqueue(1).result(), bytes)
    assert_type(await (await optioned_later.aenqueue(7)).aresult(timedelta(seconds=5)), str)
    assert_type(greet.using(delay=300, priority=5, idempotency_key="a").enqueue(7), Handle[str])
    assert_type(await greet.using(queue="mail").aenqueue(7, lang="fr"), Handle[str])
    assert_type(greet.call(1), Call[str])
    assert_type(harbor.enqueue_many(greet.call(n) for n in range(3)), list[Handle[str]])
    assert_type(await harbor.aenqueue_many([later.call(Order(1))]), list[Handle[list[int]]])
    assert_type(greet.enqueue(1).status(), Status)
    assert_type(greet.enqueue(1).cancel(), bool)
    nightly.enqueue()
    report.enqueue()
    assert_type(await report.using(connection=None).aenqueue(days=7), Handle[int])
    mixed.enqueue(1, 0.5, 1.5, self="me", loud=True)
    assert_type(found.enqueue(1).result(), Order | None)
    Mails.send.enqueue("ada@example.com")
    with harbor.testing() as harness:
        harness.assert_enqueued(greet, 1, lang="fr")
        harness.refute_enqueued(with_context, 3)
        harness.refute_enqueued(greet)
        assert_type(harness.drain()[0].status, Status)
