"""SAQ on PostgreSQL or Redis: 10 jobs at a time as installed; 100 and uvloop if tuned."""

from __future__ import annotations

import asyncio
from typing import Any

import protocol
from saq import Queue

queue = Queue.from_url(protocol.URL, name="bench")

if protocol.HANDLERS == "async":

    async def noop(ctx: Any, *, n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    def noop(ctx: Any, *, n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


settings = {"queue": queue, "functions": [noop], "concurrency": 100 if protocol.TUNED else 10}

if protocol.TUNED:
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def setup() -> None:
    await queue.connect()
    await queue.disconnect()


async def singly(action: str, arguments: list[float]) -> float:
    async def one(payload: dict[str, Any]) -> None:
        await queue.enqueue("noop", **payload)

    await queue.connect()
    try:
        return await protocol.enqueue_as(action, arguments, one)
    finally:
        await queue.disconnect()


if __name__ == "__main__":
    protocol.run(
        {"setup": lambda: asyncio.run(setup()), "worker": lambda: protocol.become("saq", "saq_app.settings")},
        lambda action, arguments: asyncio.run(singly(action, arguments)),
    )
