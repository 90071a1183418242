"""Enqueue one job at a time from many threads, many coroutines and one caller, compared with raw inserts.

The raw side has one psycopg connection per thread. Each row is one prepared, autocommitted INSERT
with the same columns in the same table. The server has fsync on. Sides are measured in turn, so that
machine noise affects all of them, and a ratio is the median over the rounds. ``statements`` is the
number of statements per job.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from benchmarks import _postgres_raw as raw
from benchmarks.postgres import store
from taskharbor import Client, JobRequest
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from taskharbor.drivers.postgres import PostgresDriver

ROUNDS: Final = 25  # many short rounds, because disk speed varies more from second to second than the sides differ
CALLERS: Final = 32
EACH: Final = 40
LONE: Final = 200
PAYLOAD: Final = {"name": "Ada"}
INSERT: Final = """
    INSERT INTO th_jobs_waiting (id, type, queue, priority, payload, scheduled_for, timeout, created_at, max_attempts,
                                 metadata, idempotency_key)
    VALUES (%s, %s, %s, %s, %s, statement_timestamp(), %s, %s, %s, '{}', %s)
"""


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), durable=True) as server:
        return {f"{CALLERS} callers": many(server), "one caller": one(server)}


def many(server: PostgresServer) -> dict[str, object]:
    with store(server) as (driver, url), ExitStack() as open_ones, ThreadPoolExecutor(CALLERS) as pool:
        connections = [open_ones.enter_context(raw.connect(url)) for _ in range(CALLERS)]
        client = Client(driver)
        open_ones.callback(client.close)
        sides: dict[str, Callable[[], None]] = {
            "threads": lambda: together(pool, CALLERS * [partial(enqueue, client, EACH)]),
            "coroutines": lambda: asyncio.run(coroutines(client)),
            "raw": lambda: together(pool, [partial(insert, db, EACH) for db in connections]),
        }
        return compared(sides, CALLERS * EACH, driver)


def one(server: PostgresServer) -> dict[str, object]:
    with store(server) as (driver, url), raw.connect(url) as db:
        client = Client(driver)
        return compared({"client": lambda: enqueue(client, LONE), "raw": lambda: insert(db, LONE)}, LONE, driver)


def compared(sides: dict[str, Callable[[], None]], count: int, driver: PostgresDriver) -> dict[str, object]:
    for work in sides.values():
        work()  # a warm-up that connects and prepares statements
    statements = dict.fromkeys(sides, 0)
    rounds = []
    for _ in range(ROUNDS):
        rates = {}
        for name, work in sides.items():
            before, start = driver.statements, time.perf_counter()
            work()
            rates[name] = count / (time.perf_counter() - start)
            statements[name] += driver.statements - before
        rounds.append(rates)
    ours = [name for name in sides if name != "raw"]
    return {
        "jobs a second": {name: round(statistics.median(rates[name] for rates in rounds)) for name in sides},
        "ratio to raw": {
            name: round(statistics.median(rates[name] / rates["raw"] for rates in rounds), 3) for name in ours
        },
        "statements a job": {name: round(statements[name] / ROUNDS / count, 3) for name in ours},
    }


def together(pool: ThreadPoolExecutor, works: Sequence[Callable[[], None]]) -> None:
    start = Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        start.wait()
        work()

    list(pool.map(run, works))


def enqueue(client: Client, count: int) -> None:
    for _ in range(count):
        client.enqueue(JobRequest(type="greet", payload=PAYLOAD))


async def coroutines(client: Client) -> None:
    async def enqueue_each() -> None:
        for _ in range(EACH):
            await client.aenqueue(JobRequest(type="greet", payload=PAYLOAD))

    await asyncio.gather(*(enqueue_each() for _ in range(CALLERS)))


def insert(db: psycopg.Connection[Any], count: int) -> None:
    for _ in range(count):
        row = [uuid4(), "greet", "default", 0, json.dumps(PAYLOAD).encode(), None, datetime.now(UTC), 25, None]
        db.execute(INSERT, row)


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
