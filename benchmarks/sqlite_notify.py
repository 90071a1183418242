"""The latency of notifications between two processes on a SQLite file, and the cost of listening and notifying."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from taskharbor.core.ids import new_job_id
from taskharbor.core.model import NewJob
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.notify import DATA_VERSION_POLL, ChangeWatch, SqliteListener, SqliteNotifier

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

ROUNDS = 1_000
POLLED_ROUNDS = 100
CALLS = 5_000
IDLE = timedelta(seconds=20)
DEADLINE = timedelta(seconds=30)
SPAWN = multiprocessing.get_context("spawn")


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.db"
        with closing(SqliteDriver(file)) as driver:
            return {
                "milliseconds between two processes": latencies(driver, file),
                "microseconds": costs(file),
                "seconds of CPU in an hour of waiting": {
                    f"a check every {look.total_seconds() * 1_000:g} ms": cpu_per_hour(file, look)
                    for look in (DATA_VERSION_POLL, timedelta(milliseconds=10), timedelta(milliseconds=1))
                },
            }


def latencies(driver: SqliteDriver, file: Path) -> dict[str, object]:
    notifier = SqliteNotifier(file)
    with closing(sqlite3.connect(file)) as db:
        joined = driver.join(db)

        def commit() -> int:
            joined.insert([new_job()])
            db.commit()
            return time.monotonic_ns()

        return {
            "from the notify until wait returns": wake_latency(
                file, lambda: begun(lambda: notifier.notify([new_job()], now=0)), ROUNDS
            ),
            "from the call of insert, with its commit": wake_latency(
                file, lambda: begun(lambda: driver.insert([new_job()])), ROUNDS
            ),
            "from a commit that cannot notify": wake_latency(file, commit, POLLED_ROUNDS, pause=DATA_VERSION_POLL),
        }


def begun(call: Callable[[], object]) -> int:
    """Make the call and return when it began."""
    start = time.monotonic_ns()
    call()
    return start


def wake_latency(
    file: Path, act: Callable[[], int], rounds: int, *, pause: timedelta = timedelta(milliseconds=2)
) -> dict[str, float]:
    """Return how long another process needs to wake up after the time that *act* returns, in milliseconds."""
    here, there = SPAWN.Pipe()
    other = SPAWN.Process(target=listen, args=(file, there, rounds))
    other.start()
    here.recv()
    took = [one_round(here, act, pause) for _ in range(rounds)]
    other.join(DEADLINE.total_seconds())
    return {"p50": round(statistics.median(took), 3), "p99": round(statistics.quantiles(took, n=100)[98], 3)}


def one_round(here: Connection, act: Callable[[], int], pause: timedelta) -> float:
    here.poll(0.002 + random.random() * pause.total_seconds())  # give the other process time to wait again
    start = act()
    if not here.poll(DEADLINE.total_seconds()):
        raise TimeoutError("the other process did not wake up")
    woke: int = here.recv()
    return (woke - start) / 1e6


def listen(file: Path, there: Connection, rounds: int) -> None:
    with closing(SqliteListener(file, ["default"])) as listener:
        there.send(None)
        for _ in range(rounds):
            listener.wait(DEADLINE)
            there.send(time.monotonic_ns())  # one clock for all processes of the machine


def costs(file: Path) -> dict[str, float]:
    notifier, jobs = SqliteNotifier(file), [new_job()]
    with closing(ChangeWatch(file, every=DATA_VERSION_POLL)) as watch:
        taken = {"a notify without listeners": microseconds(lambda: notifier.notify(jobs, now=0))}
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(closing(SqliteListener(file, ["default"])))
            taken["a notify for four listeners"] = microseconds(lambda: notifier.notify(jobs, now=0))
        return taken | {"a check of the file": microseconds(watch.check)}


def microseconds(call: Callable[[], object]) -> float:
    return round(min(timed(call) for _ in range(5)) / CALLS * 1e6, 1)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - start


def cpu_per_hour(file: Path, look: timedelta) -> float:
    with closing(SqliteListener(file, ["default"], poll=look)) as listener:
        start = time.process_time()
        listener.wait(IDLE)
        return round((time.process_time() - start) * (timedelta(hours=1) / IDLE), 1)


def new_job() -> NewJob:
    return NewJob(
        id=new_job_id(),
        type="greet",
        queue="default",
        payload=b"{}",
        created_at=datetime.now(UTC),
        max_attempts=3,
    )
