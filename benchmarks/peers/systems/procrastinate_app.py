"""Procrastinate: one job at a time as installed, 20 if tuned."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import procrastinate
import protocol

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=protocol.URL, min_size=4, max_size=32))
CONCURRENCY = 20 if protocol.SETTING == "tuned" else 1

if protocol.HANDLERS == "async":

    @app.task(name="noop")
    async def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    @app.task(name="noop")
    def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def bulk(count: float) -> float:
    async with app.open_async():
        start = time.perf_counter()
        for numbers in protocol.chunks(int(count)):
            await noop.batch_defer_async(*[protocol.payload(n) for n in numbers])
        return time.perf_counter() - start


async def singly(action: str, arguments: list[float]) -> float:
    async def one(payload: dict[str, Any]) -> None:
        await noop.defer_async(**payload)

    async with app.open_async():
        return await protocol.enqueue_as(action, arguments, one)


async def worker() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


if __name__ == "__main__":
    protocol.run(
        {
            "setup": lambda: asyncio.run(setup()),
            "bulk": lambda count: asyncio.run(bulk(count)),
            "worker": lambda: asyncio.run(worker()),
        },
        lambda action, arguments: asyncio.run(singly(action, arguments)),
    )
