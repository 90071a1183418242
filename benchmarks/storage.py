"""Compare four designs for storing jobs in PostgreSQL on the same work.

Every design has the same columns, constraints, transition trigger and other tables, and uses
hand-written statements, so that the figures measure storage and not a driver. Within a round the
designs are measured in turn, so that machine noise affects all of them. A figure is the median
over the rounds, and "times one table" is the median of the ratios per round. fsync is off.

python -m benchmarks.storage [SCALE [PART OF A PHASE'S NAME]]     a scale of 0.05 takes little time
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from psycopg import IsolationLevel

from benchmarks._storage.bench import RATE, Bench, rates
from benchmarks._storage.contention import Order, together
from benchmarks._storage.load import PAYLOAD, PINS, Worker, connect
from benchmarks._storage.measure import Meter, leftovers
from benchmarks._storage.sql import BACKLOG
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks._storage.bench import Figures
    from benchmarks._storage.designs import Design

ROUNDS: Final = 5
CYCLES: Final = {1: 800, 10: 5_000, 100: 20_000, 500: 40_000}  # jobs of each process, by the size of a batch
HEAVY_BYTES: Final = 100_000
VOLUMES: Final = {"heavy jobs": 1_000, "backlog": 100_000, "finished jobs": 1_000_000, "jobs under a snapshot": 300_000}
DRAINS: Final = ((500, 1), (500, 2), (10, 8))  # the size of a batch, and how many processes
GENERIC_AFTER: Final = 6  # executions, after which PostgreSQL may keep a generic plan
SERVER: Final = {"shared_buffers": "1GB", "max_wal_size": "8GB"}


def figures(scale: float = 1.0, only: str = "") -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), settings=SERVER) as server:
        bench = Bench(server=server, scale=scale, rounds=ROUNDS if scale >= 1 else 3)
        return {
            "conditions": {
                "PostgreSQL": server.version,
                "fsync": "off",
                "rounds": bench.rounds,
                "plans": PINS,
                **SERVER,
            },
            "volumes": {name: bench.size(full) for name, full in VOLUMES.items()},
            **{name: phase(bench) for name, phase in PHASES.items() if only in name},
        }


def cycles(bench: Bench) -> dict[str, object]:
    return {
        f"batch {batch}, processes {processes}": bench.in_turns(
            partial(work, batch=batch, jobs=bench.size(jobs, batch), processes=processes)
        )
        for batch, jobs in CYCLES.items()
        for processes in (1, 2)
    }


def unpinned_cycles(bench: Bench) -> dict[str, object]:
    return {
        f"batch {batch}": bench.in_turns(
            partial(work, batch=batch, jobs=bench.size(CYCLES[batch], batch), pinned=False)
        )
        for batch in (1, 100)
    }


def drains_after_planning(bench: Bench) -> dict[str, object]:
    return {
        f"batch 100, {how}": bench.in_turns(
            partial(work_after_planning, backlog=bench.size(VOLUMES["backlog"]), pinned=pinned), anew=True
        )
        for how, pinned in (("plans pinned", True), ("plans left to the planner", False))
    }


def heavy_cycles(bench: Bench) -> dict[str, object]:
    measure = partial(work, batch=10, jobs=bench.size(VOLUMES["heavy jobs"], 10), payload=os.urandom(HEAVY_BYTES))
    return {"batch 10": bench.in_turns(measure)}


def drains(bench: Bench) -> dict[str, object]:
    return {
        f"batch {batch}, processes {processes}": bench.in_turns(
            partial(work, batch=batch, processes=processes), backlog=bench.size(VOLUMES["backlog"]), anew=True
        )
        for batch, processes in DRAINS
    }


def drains_with_history(bench: Bench) -> dict[str, object]:
    finished = bench.size(VOLUMES["finished jobs"])
    measure = partial(work_and_forget, finished=finished)
    return {"batch 500": bench.in_turns(measure, backlog=bench.size(VOLUMES["backlog"]), history=finished, anew=True)}


def drains_under_snapshot(bench: Bench) -> dict[str, object]:
    jobs = bench.size(VOLUMES["jobs under a snapshot"], 5_000)
    return {
        f"batch 500, {how}": bench.in_turns(
            partial(work_under_snapshot, jobs=jobs, resumes=resumes), backlog=jobs, anew=True
        )
        for how, resumes in (("always from the head", False), ("with a cursor", True))
    }


def work(
    design: Design,
    url: str,
    *,
    batch: int,
    jobs: int = 0,
    processes: int = 1,
    pinned: bool = True,
    payload: bytes = b"",
) -> Figures:
    """Run processes that insert, claim and ack *jobs* each, or drain the backlog if *jobs* is zero."""
    order = Order(url=url, design=design.name, batch=batch, jobs=jobs, pinned=pinned, payload=payload)
    with connect(url, pinned=False) as connection:
        meter = Meter(connection)
        report = together(order, processes)
        costs = meter.read().per_job(report.jobs)
        return rates(report) | costs | ({} if jobs else leftovers(connection, design))


def work_after_planning(design: Design, url: str, *, backlog: int, pinned: bool) -> Figures:
    """Claim a few batches of a backlog inserted after the plans were made for empty tables."""
    with connect(url, pinned=pinned) as connection:
        worker = Worker(connection, design, 100)
        for _ in range(GENERIC_AFTER):
            worker.warm_up()
        connection.execute(BACKLOG, {"count": backlog, "payload": PAYLOAD})
        start = time.monotonic()
        for _ in range(10):
            worker.turn()
        return {RATE: round(worker.jobs / (time.monotonic() - start))}


def work_and_forget(design: Design, url: str, *, finished: int) -> Figures:
    drained = work(design, url, batch=500)
    with connect(url) as connection:
        start = time.monotonic()
        for table in design.hot:
            connection.execute(f"VACUUM {table}", prepare=False)
        vacuumed, meter = time.monotonic(), Meter(connection)
        for statement in design.forget:
            while connection.execute(statement).rowcount > 0:  # -1 for a DROP
                pass
        forgotten = time.monotonic()
        return drained | {
            "seconds to vacuum": round(vacuumed - start, 3),
            "seconds to forget": round(forgotten - vacuumed, 3),
            "WAL bytes to forget a job": round(meter.read().wal / finished),
        }


def work_under_snapshot(design: Design, url: str, *, jobs: int, resumes: bool) -> Figures:
    with connect(url) as connection, connect(url) as old:
        old.isolation_level = IsolationLevel.REPEATABLE_READ
        with old.transaction():
            old.execute("SELECT count(*) FROM th_queues")
            worker = Worker(connection, design, 500, resumes=resumes)
            worker.warm_up()
            found = tenths(worker, jobs)
        return {"first tenth": found[0], "last tenth": found[-1], "last tenth of first": round(found[-1] / found[0], 2)}


def tenths(worker: Worker, jobs: int) -> list[float]:
    """Drain *jobs*, and return the rate of each tenth."""
    found: list[float] = []
    for tenth in range(1, 11):
        start, before = time.perf_counter(), worker.jobs
        while worker.jobs < jobs * tenth // 10:
            if not worker.turn():
                raise RuntimeError(f"{worker.design.name}: {worker.jobs} jobs were found, not {jobs}")
        found.append(round((worker.jobs - before) / (time.perf_counter() - start)))
    return found


PHASES: Final[Mapping[str, Callable[[Bench], Mapping[str, object]]]] = MappingProxyType(
    {
        "insert, claim, ack": cycles,
        "insert, claim, ack, plans left to the planner": unpinned_cycles,
        f"insert, claim, ack, payloads of {HEAVY_BYTES:,} bytes": heavy_cycles,
        "drain": drains,
        "drain of a backlog that came after the plans were made": drains_after_planning,
        "drain beside finished jobs, then vacuum, then forget those": drains_with_history,
        "drain under an old snapshot": drains_under_snapshot,
    }
)

if __name__ == "__main__":
    arguments = dict(zip(("scale", "only"), sys.argv[1:], strict=False))
    print(json.dumps(figures(float(arguments.get("scale", 1)), arguments.get("only", "")), indent=2))
