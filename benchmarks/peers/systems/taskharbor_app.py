"""TaskHarbor as a user has it: a typed task, and a worker started by the command line with its log."""

from __future__ import annotations

import asyncio
import time

import protocol

from taskharbor import Harbor

harbor = Harbor(protocol.URL)

if protocol.HANDLERS == "async":

    @harbor.task
    async def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    @harbor.task
    def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


def connect() -> None:
    """Open the store before the clock starts, as the scripts of the other systems do."""
    harbor.enqueue_many([])


def bulk(count: float) -> float:
    connect()
    start = time.perf_counter()
    for numbers in protocol.chunks(int(count)):
        harbor.enqueue_many(noop.call(n, f"u{n}", "email") for n in numbers)
    return time.perf_counter() - start


def enqueue(count: float) -> float:
    connect()
    start = time.perf_counter()
    for n in range(int(count)):
        noop.enqueue(n, f"u{n}", "email")
    return time.perf_counter() - start


def singly(action: str, arguments: list[float]) -> float:
    async def one(payload: dict[str, object]) -> None:
        await noop.aenqueue(**payload)

    connect()
    return asyncio.run(protocol.enqueue_as(action, arguments, one))


if __name__ == "__main__":
    protocol.run({"bulk": bulk, "enqueue": enqueue}, singly)
