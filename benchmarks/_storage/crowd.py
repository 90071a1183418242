"""Several worker processes at one database."""

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
PATIENCE: Final = 600.0  # seconds; far more than any of them works


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What each worker is to do: take *jobs* through whole cycles, or drain what is there if that is zero."""

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
    """Let that many processes work at the same time; return what they did in all."""
    start, reports = SPAWN.Barrier(processes), SPAWN.Queue()
    workers = [SPAWN.Process(target=work, args=(order, start, reports)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    told = [reports.get(timeout=PATIENCE) for _ in workers]
    for worker in workers:
        worker.join(PATIENCE)
    return Report(
        started=min(each.started for each in told),
        ended=max(each.ended for each in told),
        server=sum(each.server for each in told),
        jobs=sum(each.jobs for each in told),
        claims=sum(each.claims for each in told),
        repeated=sum(each.repeated for each in told),
    )


def work(order: Order, start: Barrier, reports: Queue[Report]) -> None:
    with connect(order.url, pinned=order.pinned) as connection:
        worker = Worker(connection, DESIGNS[order.design], order.batch, payload=order.payload or PAYLOAD)
        worker.warm_up()
        start.wait(PATIENCE)
        started, before = time.time(), server_time(connection)
        worker.cycles(order.jobs)
        worker.drain()
        done = {"jobs": worker.jobs, "claims": worker.claims, "repeated": worker.repeated}
        took = server_time(connection) - before
        reports.put(Report(started=started, ended=time.time(), server=took, **done))
