"""PgQueuer: batches of 10 as installed, of 1,000 and uvloop if tuned."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import asyncpg
import protocol
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver

BATCH = 1_000 if protocol.SETTING == "tuned" else 10


async def setup() -> None:
    connection = await asyncpg.connect(protocol.URL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def bulk(count: float) -> float:
    connection = await asyncpg.connect(protocol.URL)
    queries = Queries(AsyncpgDriver(connection))
    start = time.perf_counter()
    for numbers in protocol.chunks(int(count)):
        payloads: list[Any] = [json.dumps(protocol.payload(n)).encode() for n in numbers]
        await queries.enqueue(["noop"] * len(numbers), payloads, [0] * len(numbers))
    took = time.perf_counter() - start
    await connection.close()
    return took


async def singly(action: str, arguments: list[float]) -> float:
    if action == "callers":  # each needs a connection; one caller is faster on its own
        queries = Queries(AsyncpgPoolDriver(await asyncpg.create_pool(protocol.URL, min_size=32, max_size=32)))
    else:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(protocol.URL)))

    async def one(payload: dict[str, Any]) -> None:
        await queries.enqueue("noop", json.dumps(payload).encode())

    return await protocol.enqueue_as(action, arguments, one)


async def worker() -> None:
    connection = await asyncpg.connect(protocol.URL)
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint("noop")
    async def noop(job: Any) -> None:
        await protocol.handle(json.loads(job.payload)["ts"])

    await queuer.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=5))


def start_worker() -> None:
    if protocol.SETTING == "tuned":
        import uvloop

        uvloop.run(worker())
    else:
        asyncio.run(worker())


if __name__ == "__main__":
    protocol.run(
        {
            "setup": lambda: asyncio.run(setup()),
            "bulk": lambda count: asyncio.run(bulk(count)),
            "worker": start_worker,
        },
        lambda action, arguments: asyncio.run(singly(action, arguments)),
    )
