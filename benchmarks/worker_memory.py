"""The memory of a worker after each 100,000 of a million jobs."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from benchmarks.postgres import store
from benchmarks.worker import fill
from taskharbor.service import tuned_interpreter
from taskharbor.testing.postgres import PostgresServer
from taskharbor.worker import Worker

ROUNDS: Final = 10
JOBS: Final = 100_000  # in each round
TIMEOUT_SECONDS: Final = 300.0  # for a round
MAX_GROWTH_FACTOR: Final = 1.05
"""Relative to the memory after the second round, when all one-time allocations have been made."""


def figures() -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer.start(Path(folder), durable=True) as server,
        store(server) as (driver, _),
        tuned_interpreter(),
    ):
        worker, done = Worker(driver, concurrency=1_000), Count()
        worker.register("greet", done.handle)
        worker.start()
        sizes = []
        try:
            for number in range(1, ROUNDS + 1):
                fill(driver, JOBS)
                done.wait_for(number * JOBS)
                sizes.append(megabytes())
        finally:
            worker.stop()
        grown = sizes[-1] / sizes[1]
        if grown > MAX_GROWTH_FACTOR:
            raise RuntimeError(f"memory grew {grown:.2f} times: {sizes}")
        return {
            "jobs run by one worker": done.count,
            "megabytes after each tenth": sizes,
            "last of second": round(grown, 3),
        }


class Count:
    """Counts jobs without a lock, because all handlers run on one thread."""

    def __init__(self) -> None:
        self.count = self._goal = 0
        self._is_reached = threading.Event()

    async def handle(self, _job: Any) -> None:
        self.count += 1
        if self.count == self._goal:
            self._is_reached.set()

    def wait_for(self, goal: int) -> None:
        self._goal = goal
        if self.count < goal and not self._is_reached.wait(TIMEOUT_SECONDS):
            raise TimeoutError(f"{self.count:,} of {goal:,} jobs ran")
        self._is_reached.clear()


def megabytes() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576, 1)
