"""Run several worker processes on one database at the same time."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks._storage.designs import DESIGNS
from benchmarks._storage.load import PAYLOAD, Worker, connect, server_time

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

SPAWN: Final = multiprocessing.get_context("spawn")
TIMEOUT_SECONDS: Final = 600.0  # far more than any of them needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The task of each worker: run *jobs* through whole cycles, or drain the backlog if that is zero."""

    url: str
    design: str
    batch: int
    jobs: int
    payload: bytes
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    started: float
    ended: float
    server: float
    jobs: int
    claims: int
    repeated: int


def together(order: Order, processes: int) -> Report:
    """Run this many processes at the same time, and return their combined report."""
    start, reports = SPAWN.Barrier(processes), SPAWN.Queue()
    workers = [SPAWN.Process(target=work, args=(order, start, reports)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    results = [reports.get(timeout=TIMEOUT_SECONDS) for _ in workers]
    for worker in workers:
        worker.join(TIMEOUT_SECONDS)
    return Report(
        started=min(each.started for each in results),
        ended=max(each.ended for each in results),
        server=sum(each.server for each in results),
        jobs=sum(each.jobs for each in results),
        claims=sum(each.claims for each in results),
        repeated=sum(each.repeated for each in results),
    )


def work(order: Order, start: Barrier, reports: Queue[Report]) -> None:
    with connect(order.url, pinned=order.pinned) as connection:
        worker = Worker(connection, DESIGNS[order.design], order.batch, payload=order.payload or PAYLOAD)
        worker.warm_up()
        start.wait(TIMEOUT_SECONDS)
        started, before = time.time(), server_time(connection)
        worker.cycles(order.jobs)
        worker.drain()
        done = {"jobs": worker.jobs, "claims": worker.claims, "repeated": worker.repeated}
        took = server_time(connection) - before
        reports.put(Report(started=started, ended=time.time(), server=took, **done))
