"""Celery on Redis: `celery worker` as installed; one child, large prefetch and late acks if tuned."""

from __future__ import annotations

import os

import protocol
from celery import Celery

app = Celery("bench", broker=protocol.URL)
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")

if protocol.TUNED:
    app.conf.update(
        broker_pool_limit=protocol.CALLERS,
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=128,
    )


@app.task(name="noop")
def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
    protocol.handle_sync(ts)


def singly(action: str, arguments: list[float]) -> float:
    return protocol.enqueue_sync_as(action, arguments, lambda payload: noop.delay(**payload))


def worker() -> None:
    options = ["--concurrency", "1", *QUIET] if protocol.TUNED else []
    protocol.become("celery", "-A", "celery_app", "worker", "--hostname", f"{os.getpid()}@%h", *options)


if __name__ == "__main__":
    protocol.run({"setup": lambda: None, "worker": worker}, singly)
