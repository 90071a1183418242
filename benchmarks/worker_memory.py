"""The memory of a worker after each 100,000 of a million jobs: a typed task, run by the command line with its log."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.peers import ticks
from benchmarks.peers.catalog import SCRIPTS
from benchmarks.postgres import store
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS: Final = 10
JOBS: Final = 100_000  # in each round
TIMEOUT_SECONDS: Final = 300.0  # for a round
MAX_GROWTH_FACTOR: Final = 1.05
"""Relative to the memory after the second round, when all one-time allocations have been made."""
APP: Final = str(SCRIPTS / "taskharbor_app.py")
_POLL_SECONDS: Final = 0.05
_PAUSE: Final = threading.Event()


def figures() -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer.start(Path(folder) / "pg", durable=True) as server,
        store(server) as (_, url),
    ):
        environ = {
            **os.environ,  # noqa: TID251  a child process needs PATH and the like
            "BENCH_URL": url,
            ticks.FOLDER_VARIABLE: f"{folder}/ticks",
            "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)]),
        }
        log = Path(folder) / "log"
        with running_worker(environ, log) as worker:
            sizes = [after_jobs(worker, environ, number * JOBS) for number in range(1, ROUNDS + 1)]
        lines = sum(1 for _ in log.open("rb"))
    if lines < ROUNDS * JOBS:
        raise RuntimeError(f"the log has {lines:,} lines for {ROUNDS * JOBS:,} jobs")
    grown = sizes[-1] / sizes[1]
    if grown > MAX_GROWTH_FACTOR:
        raise RuntimeError(f"memory grew {grown:.2f} times: {sizes}")
    return {
        "jobs run by one worker": ROUNDS * JOBS,
        "lines in its log": lines,
        "megabytes after each tenth": sizes,
        "last of second": round(grown, 3),
    }


@contextmanager
def running_worker(environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stderr:
        worker = subprocess.Popen(
            [sys.executable, "-m", "taskharbor.cli", "worker", APP], env=environ, stdout=stderr, stderr=stderr
        )
    try:
        yield worker
        worker.terminate()
        worker.wait(TIMEOUT_SECONDS)
    finally:
        worker.kill()
        worker.wait()


def after_jobs(worker: subprocess.Popen[bytes], environ: dict[str, str], goal: int) -> float:
    """Enqueue the jobs of a round, wait until *goal* have started in all, and return the worker's megabytes."""
    subprocess.run([sys.executable, APP, "bulk", str(JOBS)], env=environ, check=True, stdout=subprocess.DEVNULL)
    ends = time.monotonic() + TIMEOUT_SECONDS
    while (started := ticks.read(Path(environ[ticks.FOLDER_VARIABLE]))[0]) < goal:
        if time.monotonic() > ends or worker.poll() is not None:
            raise RuntimeError(f"{started:,} of {goal:,} jobs started")
        _PAUSE.wait(_POLL_SECONDS)
    pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576, 1)
