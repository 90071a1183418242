"""Chancy: a process pool as installed; the executor for the kind of handler and eager polling if tuned."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import protocol
from chancy import Chancy, Queue, job

app = Chancy(protocol.URL, max_connection_pool_size=protocol.CALLERS if protocol.TUNED else 10)

if protocol.HANDLERS == "async":

    @job()
    async def noop(*, n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    @job()
    def noop(*, n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


def queue() -> Queue:
    if not protocol.TUNED:
        return Queue("default")
    executor, concurrency = (
        (Chancy.Executor.Async, 500) if protocol.HANDLERS == "async" else (Chancy.Executor.Threaded, 20)
    )
    return Queue("default", executor=executor, concurrency=concurrency, polling_interval=1, eager_polling=True)


async def setup() -> None:
    async with app:
        await app.migrate()


async def bulk(count: float) -> float:
    async with app:
        start = time.perf_counter()
        for numbers in protocol.chunks(int(count)):
            jobs = [noop.job.with_kwargs(**protocol.payload(n)) for n in numbers]
            async for _ in app.push_many(jobs, batch_size=len(jobs)):
                pass
        return time.perf_counter() - start


async def singly(action: str, arguments: list[float]) -> float:
    async def one(payload: dict[str, Any]) -> None:
        await app.push(noop.job.with_kwargs(**payload))

    async with app:
        return await protocol.enqueue_as(action, arguments, one)


async def declare() -> None:
    async with app:
        await app.declare(queue(), upsert=True)


def worker() -> None:
    asyncio.run(declare())
    protocol.become("chancy.cli.cli", "--app", "chancy_app.app", "worker", "start")


if __name__ == "__main__":
    import chancy_app as this  # so that jobs name this module, not `__main__`

    protocol.run(
        {
            "setup": lambda: asyncio.run(this.setup()),
            "bulk": lambda count: asyncio.run(this.bulk(count)),
            "worker": this.worker,
        },
        lambda action, arguments: asyncio.run(this.singly(action, arguments)),
    )
