"""A worker on PostgreSQL compared with the raw loop, and its latency from enqueue to start compared with raw NOTIFY."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import _postgres_raw as raw
from benchmarks.postgres import compared, store
from taskharbor import Client, JobRequest
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.service import tuned_interpreter
from taskharbor.testing.postgres import PostgresServer
from taskharbor.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg


PAIRS = 3
JOBS = 50_000
BATCH = 500
STARTS = 200
TIMEOUT = timedelta(seconds=30)


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), durable=True) as server:
        return {
            "jobs a second, async handlers, concurrency 1,000": beside_raw(server, nothing, 1_000, JOBS),
            "jobs a second, async handlers, concurrency 16": beside_raw(server, nothing, 16, JOBS // 10),
            "jobs a second, sync handlers in 64 threads": beside_raw(server, nothing_sync, 64, JOBS),
            "milliseconds from enqueue to start": start_latency(server),
        }


async def nothing(_job: Any) -> None:
    """Do nothing, so that only the overhead is measured."""


def nothing_sync(_job: Any) -> None:
    """Do nothing in a thread."""


def beside_raw(server: PostgresServer, handler: Callable[..., Any], concurrency: int, count: int) -> dict[str, float]:
    with store(server) as (driver, url), closing(raw.connect(url)) as db:
        pairs = [(worked(driver, handler, concurrency, count), looped(driver, db, count)) for _ in range(PAIRS)]
    return compared(pairs, "worker", "raw loop")


def worked(driver: PostgresDriver, handler: Callable[..., Any], concurrency: int, count: int) -> float:
    fill(driver, count)
    worker = Worker(driver, concurrency=concurrency, janitor=False)
    worker.register("greet", handler)
    start = time.perf_counter()
    with tuned_interpreter():  # as in `Worker.run`, which owns its process
        worker.drain()
    return count / (time.perf_counter() - start)


def looped(driver: PostgresDriver, db: psycopg.Connection[Any], count: int) -> float:
    fill(driver, count)
    start = time.perf_counter()
    raw.drain(db, BATCH)
    return count / (time.perf_counter() - start)


def fill(driver: PostgresDriver, count: int) -> None:
    client = Client(driver)
    for _ in range(0, count, 10_000):
        client.enqueue_many(JobRequest(type="greet", timeout=TIMEOUT) for _ in range(min(count, 10_000)))


def start_latency(server: PostgresServer) -> dict[str, dict[str, float]]:
    """Return percentiles from before the enqueue call to the first line of the handler.

    A worker is woken directly for jobs stored by its own driver, and by NOTIFY for other jobs. The bare side is
    INSERT, NOTIFY, LISTEN and claim.
    """
    with store(server) as (driver, url):
        found = {"worker": our_latencies(driver, driver), "bare": raw.latencies(url, STARTS)}
    with store(server) as (driver, url), closing(PostgresDriver(url)) as elsewhere:
        found["worker, enqueued elsewhere"] = our_latencies(driver, elsewhere)
    return {name: percentiles(seconds) for name, seconds in found.items()}


def our_latencies(driver: PostgresDriver, enqueuing: PostgresDriver) -> list[float]:
    started, times = threading.Event(), list[float]()

    def note(_job: Any) -> None:
        times.append(time.perf_counter())
        started.set()

    client, worker = Client(enqueuing), Worker(driver, concurrency=4, janitor=False)
    worker.register("note", note)
    worker.start()
    enqueued = []
    for _ in range(STARTS):
        started.clear()
        enqueued.append(time.perf_counter())
        client.enqueue(JobRequest(type="note"))
        started.wait(10)
    worker.stop()
    return [end - start for start, end in zip(enqueued, times, strict=True)]


def percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(1_000 * cuts[49], 2), "p99": round(1_000 * cuts[98], 2)}
