"""taskiq on Redis streams: `taskiq worker` as installed; one process, 1,000 tasks at a time, no log if tuned."""

from __future__ import annotations

import asyncio
from typing import Any

import protocol
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=protocol.URL, queue_name="bench", consumer_group_name="bench")

if protocol.HANDLERS == "async":

    @broker.task(task_name="noop")
    async def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    @broker.task(task_name="noop")
    def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


async def setup() -> None:
    await broker.startup()
    await broker.shutdown()


async def singly(action: str, arguments: list[float]) -> float:
    async def one(payload: dict[str, Any]) -> None:
        await noop.kiq(**payload)

    await broker.startup()
    try:
        return await protocol.enqueue_as(action, arguments, one)
    finally:
        await broker.shutdown()


def worker() -> None:
    options = ["--workers", "1", "--max-async-tasks", "1000", "--log-level", "WARNING"] if protocol.TUNED else []
    protocol.become("taskiq", "worker", "taskiq_app:broker", *options)


if __name__ == "__main__":
    protocol.run(
        {"setup": lambda: asyncio.run(setup()), "worker": worker},
        lambda action, arguments: asyncio.run(singly(action, arguments)),
    )
