"""Delivery by polling, by SQS and by SQS with ten jobs in a message, with 1, 2, 4 and 8 worker processes.

Workers and the enqueuer are started by the CLI and log each attempt. The SQS endpoint is a process on this machine,
without the latency of AWS. A turn ends when the store says that all jobs have ended. The CPU seconds of each part,
divided by those that the machine has, say what limits the rate: at 1.0 in all, it is the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks import _sqs
from benchmarks.postgres import store
from benchmarks.worker import fill, nothing
from taskharbor.testing.postgres import PostgresServer
from tests.delivery.test_endpoint import process
from tests.support.transport_subjects import REGION
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.postgres import PostgresDriver

PROCESSES: Final = (1, 2, 4, 8)
JOBS: Final = {"polling": 40_000, "SQS": 5_000, "SQS, ten jobs in a message": 20_000}
BUNDLES: Final = {"SQS": 1, "SQS, ten jobs in a message": 10}
ROUNDS: Final = 3
CONCURRENCY: Final = 100
VISIBILITY: Final = timedelta(minutes=1)
START_SECONDS: Final = 60.0
TURN_SECONDS: Final = 300.0
MAX_CALLS: Final = 0.05
handlers: Final = {"greet": nothing}


def figures() -> dict[str, object]:
    with (
        _sqs.credentials(),
        tempfile.TemporaryDirectory() as folder,
        PostgresServer.start(Path(folder), durable=True) as server,
    ):
        turns = [(mode, count) for _ in range(ROUNDS) for count in PROCESSES for mode in JOBS]
        measured: dict[tuple[str, int], list[dict[str, float]]] = {}
        for mode, count in turns:
            measured.setdefault((mode, count), []).append(turn(server, mode, count))
    found = {mode: {str(count): _median_turn(measured[mode, count]) for count in PROCESSES} for mode in JOBS}
    bundled = found["SQS, ten jobs in a message"]
    if (calls := max(each["calls for each job"] for each in bundled.values())) > MAX_CALLS:
        raise RuntimeError(f"a job takes {calls} calls, more than {MAX_CALLS}")
    return {"by worker processes": found, "jobs in a turn": JOBS, "turns": ROUNDS, "concurrency": CONCURRENCY}


def turn(server: PostgresServer, mode: str, count: int) -> dict[str, float]:
    """Run the jobs of one mode by *count* worker processes, with new stores and endpoints."""
    jobs, bundle = JOBS[mode], BUNDLES.get(mode)
    with ExitStack() as stack:
        driver, url = stack.enter_context(store(server))
        pids = {"PostgreSQL": _server_pid(url)}
        given: list[str] = []
        sqs = ""
        if bundle is not None:
            endpoint, sqs = stack.enter_context(process())
            stack.enter_context(_sqs.transport_to(sqs, visibility=VISIBILITY))
            pids["endpoint"] = endpoint.pid
            given = ["env", f"AWS_ENDPOINT_URL_SQS={sqs}", f"AWS_REGION={REGION}"]
        worker = [*given, *_cli(url, "worker", __name__, "-c", str(CONCURRENCY), *(["--sqs"] if given else []))]
        workers = [stack.enter_context(running(worker)) for _ in range(count)]
        wait_until(lambda: len(driver.inspector.workers()) == count, limit=START_SECONDS)
        enqueuers = []
        if bundle is not None:
            enqueuers = [stack.enter_context(running([*given, *_cli(url, "enqueuer", "--bundle", str(bundle))]))]
            wait_until(lambda: len(driver.inspector.delivery(_sqs.QUEUE)) == 2, limit=START_SECONDS)
        groups = {"workers": workers, "enqueuer": enqueuers, **{name: [pid] for name, pid in pids.items()}}
        before, asked = _cpu_by(groups), {} if bundle is None else _sqs.asked(sqs)
        seconds = _drained(driver, url, jobs)
        after = {} if bundle is None else _asked_at_rest(sqs)
        calls = sum(after.get(name, 0) - asked.get(name, 0) for name in _sqs.OPERATIONS)
        used = {name: (cpu - before[name]) for name, cpu in _cpu_by(groups).items()}
    shares = {f"CPU, {name}": round(cpu / seconds / (os.cpu_count() or 1), 2) for name, cpu in used.items()}
    return {
        "jobs a second": round(jobs / seconds),
        "calls for each job": round(calls / jobs, 3),
        **shares,
        "CPU, in all": round(sum(used.values()) / seconds / (os.cpu_count() or 1), 2),
        "CPU microseconds for each job, workers": round(1e6 * used["workers"] / jobs),
    }


def _cli(url: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "taskharbor.cli", *words, "--url", url]


@contextmanager
def running(command: list[str]) -> Iterator[int]:
    """Run a service, and yield its process id."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        try:
            yield service.pid
        finally:
            service.terminate()
            service.wait(START_SECONDS)


def _drained(driver: PostgresDriver, url: str, jobs: int) -> float:
    """Return the seconds from before the first job is enqueued until the last one has ended."""
    unfinished = "SELECT EXISTS (SELECT FROM th_jobs WHERE status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING'))"
    with closing(psycopg.connect(url, autocommit=True)) as db:
        start = time.perf_counter()
        fill(driver, jobs)
        wait_until(lambda: not _value(db, unfinished), limit=TURN_SECONDS)
        seconds = time.perf_counter() - start
        if (ended := _value(db, "SELECT count(*) FROM th_jobs WHERE status = 'SUCCEEDED'")) != jobs:
            raise RuntimeError(f"{ended} of {jobs} jobs succeeded")
    return seconds


def _value(db: psycopg.Connection[Any], statement: str) -> Any:
    row = db.execute(statement.encode()).fetchone()
    return None if row is None else row[0]


def _asked_at_rest(url: str) -> dict[str, Any]:
    """Return the counts of calls once the last message is deleted."""
    wait_until(lambda: _sqs.depth(url) == 0, limit=START_SECONDS)
    return _sqs.asked(url)


def _server_pid(url: str) -> int:
    """Return the process id of the PostgreSQL server, the parent of every connection."""
    with closing(psycopg.connect(url)) as db:
        return int(_stat(str(db.info.backend_pid))[1])


def _cpu_by(groups: dict[str, list[int]]) -> dict[str, float]:
    """Return the CPU seconds of each group, and of the connections of a PostgreSQL server."""
    return {name: sum(map(_cpu_with_children, pids)) for name, pids in groups.items()}


def _cpu_with_children(pid: int) -> float:
    """Return the CPU seconds of a process, of its ended children, and of those that run."""
    fields: list[str] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended: its parent, which is read last, counts it
            fields += _stat(child)[11:13]
    fields += _stat(str(pid))[11:15]
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def _stat(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _median_turn(turns: list[dict[str, float]]) -> dict[str, float]:
    """Return the turn with the median rate, and the lowest and the highest rate."""
    ordered = sorted(turns, key=lambda each: each["jobs a second"])
    rates = {"least": ordered[0]["jobs a second"], "most": ordered[-1]["jobs a second"]}
    return {**ordered[len(ordered) // 2], **{f"jobs a second, {name}": rate for name, rate in rates.items()}}
