"""DBOS: one queue polled each second as installed; every 50 ms and 100 workflows at a time if tuned."""

from __future__ import annotations

import os
import threading
from typing import Any

import protocol
from dbos import DBOS, DBOSClient

QUEUE = "bench"
LIMITS: dict[str, Any] = {"worker_concurrency": 100, "polling_interval_sec": 0.05} if protocol.TUNED else {}
TARGET: Any = {"queue_name": QUEUE, "workflow_name": "noop", "app_version": "bench"}

if protocol.HANDLERS == "async":

    @DBOS.workflow(name="noop")
    async def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        await protocol.handle(ts)

else:

    @DBOS.workflow(name="noop")
    def noop(n: int, user: str, kind: str, ts: float | None = None) -> None:
        protocol.handle_sync(ts)


def launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": protocol.URL,
            "application_version": "bench",
            "executor_id": str(os.getpid()),  # each process needs one of its own
        }
    )
    DBOS.launch()
    DBOS.register_queue(QUEUE, on_conflict="always_update", **LIMITS)


def setup() -> None:
    launch()
    DBOS.destroy()


def singly(action: str, arguments: list[float]) -> float:
    client = DBOSClient(system_database_url=protocol.URL)
    try:
        return protocol.enqueue_sync_as(action, arguments, lambda payload: client.enqueue(TARGET, **payload))
    finally:
        client.destroy()


def worker() -> None:
    launch()
    threading.Event().wait()


if __name__ == "__main__":
    protocol.run({"setup": setup, "worker": worker}, singly)
