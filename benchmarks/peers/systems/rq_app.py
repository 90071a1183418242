"""RQ on Redis: a process for each job as installed; jobs in the worker's own process if tuned."""

from __future__ import annotations

import time
from typing import Any

import protocol
from redis import Redis
from rq import Queue

NAME = "bench"
TASK = "rq_app.noop"

if protocol.HANDLERS == "async":

    async def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


def queue() -> Queue:
    return Queue(NAME, connection=Redis.from_url(protocol.URL))


def bulk(count: float) -> float:
    target = queue()
    start = time.perf_counter()
    for numbers in protocol.chunks(int(count)):
        target.enqueue_many([Queue.prepare_data(TASK, kwargs=protocol.payload(n)) for n in numbers])
    return time.perf_counter() - start


def singly(action: str, arguments: list[float]) -> float:
    target = queue()

    def one(payload: dict[str, Any]) -> None:
        target.enqueue(TASK, kwargs=payload)

    return protocol.enqueue_sync_as(action, arguments, one)


def worker() -> None:
    options = ["--worker-class", "rq.worker.SimpleWorker", "--quiet"] if protocol.TUNED else []
    protocol.become("rq.cli", "worker", "--url", protocol.URL, *options, NAME)


if __name__ == "__main__":
    protocol.run({"setup": lambda: None, "bulk": bulk, "worker": worker}, singly)
