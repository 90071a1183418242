"""The latency from enqueue to start of a task, on the harbor's own connection and in a joined transaction."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks.postgres import store
from taskharbor import Harbor
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS: Final = 200
TIMEOUT_SECONDS: Final = 30.0  # a start takes milliseconds


def figures() -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer.start(Path(folder), durable=True) as server,
        store(server) as (_, url),
        Harbor(url) as harbor,
        psycopg.connect(url) as db,
    ):
        return {"milliseconds from commit to start": start_latencies(harbor, db)}


def start_latencies(harbor: Harbor, db: psycopg.Connection) -> dict[str, float]:
    started: SimpleQueue[float] = SimpleQueue()

    @harbor.task
    def note() -> None:
        started.put(time.perf_counter())

    def own() -> float:
        began = time.perf_counter()
        note.enqueue()
        return began

    def joined() -> float:
        note.using(connection=db).enqueue()
        began = time.perf_counter()
        db.commit()
        return began

    worker = harbor.worker()
    worker.start()
    try:
        return in_turns({"own connection": own, "joined": joined}, started)
    finally:
        worker.stop()


def in_turns(ways: dict[str, Callable[[], float]], started: SimpleQueue[float]) -> dict[str, float]:
    """Measure in turn, so that machine noise affects all, and return the median of each and their ratio."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 10):
        for name, enqueue in ways.items():
            began = enqueue()
            waited = started.get(timeout=TIMEOUT_SECONDS) - began
            if turn >= 10:  # skip the warm-up
                took[name].append(waited)
    medians = {name: round(statistics.median(each) * 1_000, 2) for name, each in took.items()}
    return medians | {"joined, times own": round(medians["joined"] / medians["own connection"], 2)}
