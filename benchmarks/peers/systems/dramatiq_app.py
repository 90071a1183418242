"""Dramatiq on Redis: `dramatiq` as installed; one process that takes 500 messages ahead if tuned."""

from __future__ import annotations

import os

import dramatiq
import protocol
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware.asyncio import AsyncIO

broker = RedisBroker(url=protocol.URL)
dramatiq.set_broker(broker)

if protocol.HANDLERS == "async":
    broker.add_middleware(AsyncIO())

    @dramatiq.actor
    async def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    @dramatiq.actor
    def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


def singly(action: str, arguments: list[float]) -> float:
    return protocol.enqueue_sync_as(action, arguments, lambda payload: noop.send(**payload))


def worker() -> None:
    if protocol.TUNED:
        os.environ["dramatiq_queue_prefetch"] = "500"  # noqa: SIM112  Dramatiq's own name
    protocol.become("dramatiq", "dramatiq_app", *(["--processes", "1"] if protocol.TUNED else []))


if __name__ == "__main__":
    protocol.run({"setup": lambda: None, "worker": worker}, singly)
