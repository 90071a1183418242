"""arq on Redis: 10 jobs at a time as installed; 100, polling each 50 ms, no results and uvloop if tuned."""

from __future__ import annotations

import asyncio
from typing import Any

import protocol
from arq import create_pool
from arq.connections import RedisSettings

REDIS = RedisSettings.from_dsn(protocol.URL)


async def noop(ctx: Any, n: int, user: str, kind: str, ts: float | None = None) -> None:
    await protocol.handle(ts)


class WorkerSettings:
    functions = (noop,)
    redis_settings = REDIS
    if protocol.TUNED:
        max_jobs = 100
        poll_delay = 0.05
        keep_result = 0


if protocol.TUNED:
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def singly(action: str, arguments: list[float]) -> float:
    pool = await create_pool(REDIS)

    async def one(payload: dict[str, Any]) -> None:
        await pool.enqueue_job("noop", **payload)

    return await protocol.enqueue_as(action, arguments, one)


if __name__ == "__main__":
    protocol.run(
        {"setup": lambda: None, "worker": lambda: protocol.become("arq", "arq_app.WorkerSettings")},
        lambda action, arguments: asyncio.run(singly(action, arguments)),
    )
