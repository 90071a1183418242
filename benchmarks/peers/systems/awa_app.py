"""awa: 4 workers as on its first page if installed; many workers and large claims if tuned."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import awa
import protocol

QUEUE = "bench"
CONFIG = {"name": QUEUE, "max_workers": 1_024, "claim_batch_size": 512} if protocol.TUNED else (QUEUE, 4)


@dataclass
class Noop:
    n: int
    user: str
    kind: str
    ts: float | None = None


def setup() -> None:
    command = [sys.executable, "-m", "awa", "--database-url", protocol.URL, "migrate"]
    subprocess.run(command, check=True, capture_output=True)
    asyncio.run(finalize())


async def finalize() -> None:
    async with awa.AsyncClient(protocol.URL) as client, await client.transaction() as transaction:
        # The first start of a worker does this; jobs that are enqueued earlier would go to the storage of awa 0.5.
        await transaction.fetch_one("SELECT awa.storage_auto_finalize_if_fresh('awa')")


async def bulk(count: float) -> float:
    async with awa.AsyncClient(protocol.URL) as client:
        start = time.perf_counter()
        for numbers in protocol.chunks(int(count)):
            await client.enqueue_many_copy([Noop(**protocol.payload(n)) for n in numbers], queue=QUEUE)
        return time.perf_counter() - start


async def singly(action: str, arguments: list[float]) -> float:
    async with awa.AsyncClient(protocol.URL, max_connections=protocol.CALLERS) as client:

        async def one(payload: dict[str, Any]) -> None:
            await client.insert(Noop(**payload), queue=QUEUE)

        return await protocol.enqueue_as(action, arguments, one)


async def worker() -> None:
    client = awa.AsyncClient(protocol.URL)

    @client.task(Noop, queue=QUEUE)
    async def noop(job: Any) -> None:
        await protocol.handle(job.args.ts)

    await client.start([CONFIG])
    await asyncio.Event().wait()


if __name__ == "__main__":
    protocol.run(
        {
            "setup": setup,
            "bulk": lambda count: asyncio.run(bulk(count)),
            "worker": lambda: asyncio.run(worker()),
        },
        lambda action, arguments: asyncio.run(singly(action, arguments)),
    )
