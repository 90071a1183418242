"""Runs one system once: enqueue rates, drains and start latency."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

import psycopg

from benchmarks.peers import ticks
from benchmarks.peers.catalog import SCRIPTS
from benchmarks.peers.databases import ROWS, Databases, add_finished, add_waiting
from benchmarks.peers.processes import cpu_of_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from benchmarks.peers.catalog import System
    from benchmarks.peers.databases import Rows

START_SECONDS: Final = 40.0
"""How long workers may take until the first job starts."""
LAG_SECONDS: Final = 5.0
"""How far behind a steady rate of enqueues a worker may be."""
ACTION_SECONDS: Final = 300.0
STOP_SECONDS: Final = 5.0
ROW_BYTES: Final = 800
"""What a job needs on the disk: its row, its index entries and the write-ahead log of both."""
_POLL_SECONDS: Final = 0.01
_PAUSE: Final = threading.Event()


class Failed(Exception):
    """A system did not do its work."""


class Stores(Protocol):
    """Stores of one kind, such as databases of a server. Some are made once and then copied."""

    def once(self, name: str, fill: Callable[[str], None], *, template: str = "") -> None: ...
    def copy(self, name: str, *, template: str = "") -> str: ...
    def drop(self, name: str) -> None: ...
    def counting(self, name: str) -> AbstractContextManager[Callable[[str], int]]: ...
    def tidy(self, name: str) -> None: ...
    def cpu(self, name: str) -> float: ...


@dataclass(frozen=True, slots=True)
class Drained:
    """A drain: jobs per second from the first start until the store counts all as finished, and CPU in µs per job.

    After the longest time it may take, it is what has finished by then.
    """

    rate: float
    workers_cpu: float
    server_cpu: float


@dataclass(frozen=True, slots=True)
class Starts:
    """How many jobs had started, and when: pairs of seconds since the first start and a count."""

    trace: list[tuple[float, int]]

    @property
    def rate(self) -> float:
        """Starts per second."""
        seconds, count = self.trace[-1]
        return count / seconds

    @property
    def last_tenth_of_first(self) -> float:
        """The rate of the last tenth of the starts relative to that of the first tenth."""
        count = self.trace[-1][1]
        return self._seconds_until(count / 10) / (self.trace[-1][0] - self._seconds_until(count * 9 / 10))

    def _seconds_until(self, count: float) -> float:
        """Return when so many had started, in proportion between two readings."""
        for (before, fewer), (after, more) in pairwise(self.trace):
            if more >= count and more > fewer:
                return before + (after - before) * (count - fewer) / (more - fewer)
        raise ValueError(f"fewer than {count:.0f} started")


class Trial:
    """One system with one setting on a store of its own."""

    def __init__(self, system: System, setting: str, stores: Stores, folder: Path) -> None:
        self.system = system
        self._stores, self._folder, self._setting = stores, folder, setting
        self._name = f"bench_{system.name}"
        self._used = self._name
        self._ticks = folder / "ticks"
        self._command, extra = system.install()
        self._environ = {
            **os.environ,  # noqa: TID251  a child process needs PATH and the like
            **extra,
            "BENCH_TICKS": str(self._ticks),
            "BENCH_SETTING": setting,
            "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)]),
        }
        self._options: list[str] = []
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._log().unlink(missing_ok=True)

    @contextmanager
    def store(self, *, jobs: int = 0) -> Iterator[None]:
        """Use a new store with the tables of the system and so many jobs, and drop it at the end."""
        template = self._filled(jobs) if jobs else self._empty()
        self._use(self._name, self._stores.copy(self._name, template=template))
        try:
            yield
        finally:
            self._stores.drop(self._name)

    def use_backlog(self, waiting: int) -> None:
        """Use a database with so many waiting jobs, which is kept from one measurement to the next."""
        self._use_kept(f"waiting_{waiting}", waiting, lambda url: add_waiting(url, self._rows, waiting))

    def use_history(self, finished: int) -> None:
        """Use a database with so many finished jobs and one that waits, kept from one measurement to the next."""
        self._use_kept(f"finished_{finished}", finished, lambda url: add_finished(url, self._rows, finished))

    def _use_kept(self, name: str, rows: int, fill: Callable[[str], None]) -> None:
        name, databases = f"{self._name}_{name}", self._databases
        if not databases.has(name) and shutil.disk_usage(self._folder).free < rows * ROW_BYTES:
            raise Failed(f"{rows:,} jobs need {rows * ROW_BYTES / 1e9:.0f} GB on the disk")
        databases.once(name, fill, template=self._filled(1))
        self._use(name, databases.url(name))

    def _use(self, name: str, url: str) -> None:
        self._used = name
        self._environ["BENCH_URL"] = url

    @property
    def _databases(self) -> Databases:
        if not isinstance(self._stores, Databases):
            raise Failed(f"{self.system.name} does not keep its jobs in PostgreSQL")
        return self._stores

    @property
    def _rows(self) -> Rows:
        return ROWS[self.system.name]

    def _empty(self) -> str:
        name = f"{self._name}_empty"
        self._stores.once(name, self._set_up)
        return name

    def _filled(self, jobs: int) -> str:
        name = f"{self._name}_{jobs}"
        self._stores.once(name, lambda url: self._fill(name, url, jobs), template=self._empty())
        return name

    def _set_up(self, url: str) -> None:
        self._environ["BENCH_URL"] = url
        if self.system.ours:
            self._run([sys.executable, "-m", "taskharbor.cli", "migrate", "up", "--url", url])
        else:
            self._run([*self._command, "setup"])

    def _fill(self, name: str, url: str, jobs: int) -> None:
        self._use(name, url)
        self.add(jobs)

    def enqueue_rate(self, action: str, count: int, *arguments: int) -> float:
        """Return how many jobs per second *action* enqueues, by its own clock, without its start."""
        return count / self._act(action, count, *arguments)

    def add(self, count: int) -> None:
        """Enqueue *count* jobs in the store that is used."""
        self._act("bulk", count)
        self._stores.tidy(self._used)

    def drain(
        self,
        count: int,
        *,
        processes: int = 1,
        handlers: str = "async",
        handler_seconds: float = 0.0,
        max_seconds: float,
    ) -> Drained:
        """Run *count* jobs, which are all in the store, for at most *max_seconds*."""
        self._environ |= {"BENCH_HANDLERS": handlers, "BENCH_HANDLER_SECONDS": str(handler_seconds)}
        with self._workers(processes) as workers:
            first = self._wait_for_first(workers)
            before = self._cpu(workers)
            finished = self._wait_until_finished(count, workers, until=first + max_seconds)
            took = time.time() - first
            workers_cpu, server_cpu = (end - start for end, start in zip(self._cpu(workers), before, strict=True))
        return Drained(finished / took, 1e6 * workers_cpu / finished, 1e6 * server_cpu / finished)

    def starts(self, count: int, *, max_seconds: float) -> Starts:
        """Run jobs until *count* have started or *max_seconds* have passed since the first start."""
        with self._workers(1) as workers:
            first = self._wait_for_first(workers)
            trace = [(0.0, 0)]
            while trace[-1][1] < count and trace[-1][0] < max_seconds:
                self._check(workers)
                _PAUSE.wait(_POLL_SECONDS)
                started = ticks.read(self._ticks)[0]
                trace.append((time.time() - first, started))
        return Starts(trace)

    @contextmanager
    def old_snapshot(self) -> Iterator[None]:
        """Keep a transaction open that sees the store as it is now, so that no dead row can be removed."""
        with psycopg.connect(self._environ["BENCH_URL"]) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT txid_current()")
            yield

    def latencies(self, *, rate: int, seconds: int) -> list[float]:
        """Return the seconds from enqueue to start, sorted, at a steady rate with one worker that is idle otherwise."""
        with self._workers(1) as workers:
            self._act("enqueue", 1)  # without a time, so it counts as a start but not as a latency
            self._wait_for_first(workers)
            self._act("paced", rate, seconds)
            self._wait_until_finished(rate * seconds + 1, workers, until=time.time() + LAG_SECONDS)
            found = sorted(ticks.read(self._ticks)[2])
        if len(found) < rate * seconds:
            raise Failed(f"does not keep up with {rate} jobs per second: {len(found)} of {rate * seconds} started")
        return found

    @contextmanager
    def messages(self, environ: dict[str, str], *, bundle: int) -> Iterator[None]:
        """Deliver the jobs by SQS, with an enqueuer that puts *bundle* ids into a message."""
        self._environ |= environ
        self._options = ["--sqs"]
        with self._processes([self._cli("enqueuer", "--bundle", str(bundle))]) as self._helpers:
            yield

    def _cpu(self, workers: list[subprocess.Popen[bytes]]) -> tuple[float, float]:
        """Return the CPU seconds of the workers and of the server until now."""
        return sum(cpu_of_session(worker.pid) for worker in workers), self._stores.cpu(self._used)

    def _wait_for_first(self, workers: list[subprocess.Popen[bytes]]) -> float:
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            _, first, _ = ticks.read(self._ticks)
            if first is not None:
                return first
            self._check(workers)
            _PAUSE.wait(_POLL_SECONDS)
        raise Failed(f"{self.system.name} started no job in {START_SECONDS:.0f} s")

    def _wait_until_finished(self, count: int, workers: list[subprocess.Popen[bytes]], *, until: float) -> int:
        """Return *count* when so many jobs have finished; at the time *until*, how many have."""
        with self._stores.counting(self._used) as ask:

            def finished() -> int:
                return ask(self.system.finished) if self.system.finished else count - ask(self.system.unfinished)

            while time.time() < until:
                # Ask the store only when all have started: counting rows takes time from what is measured.
                if ticks.read(self._ticks)[0] >= count and finished() >= count:
                    return count
                self._check(workers)
                _PAUSE.wait(_POLL_SECONDS)
            found = finished()
        if found <= 0:
            raise Failed(f"{self.system.name} finished no job")
        return found

    def _check(self, workers: list[subprocess.Popen[bytes]]) -> None:
        if any(process.poll() is not None for process in [*workers, *self._helpers]):
            last = self._log().read_text(errors="replace").strip().splitlines()[-3:]
            raise Failed(f"a process of {self.system.name} ended: {' / '.join(last)}")

    @contextmanager
    def _workers(self, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        shutil.rmtree(self._ticks, ignore_errors=True)
        with self._processes([self._worker() for _ in range(count)]) as workers:
            yield workers

    @contextmanager
    def _processes(self, commands: list[list[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
        with self._log().open("ab") as log:
            started = [
                subprocess.Popen(command, env=self._environ, stdout=log, stderr=log, start_new_session=True)
                for command in commands
            ]
        try:
            yield started
        finally:
            for process in started:
                _stop(process)

    def _worker(self) -> list[str]:
        if not self.system.ours:
            return [*self._command, "worker"]
        limits = ["--concurrency", "1000"] if self._setting == "tuned" else []
        return self._cli("worker", *limits, *self._options)

    def _cli(self, command: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "taskharbor.cli", command, self._command[-1], *options]

    def _log(self) -> Path:
        return self._folder / f"{self.system.name}.log"

    def _act(self, action: str, *arguments: float) -> float:
        return float(self._run([*self._command, action, *(str(each) for each in arguments)]).split()[-1])

    def _run(self, command: list[str]) -> str:
        try:
            done = subprocess.run(
                command, env=self._environ, capture_output=True, text=True, timeout=ACTION_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{self.system.name}: {command[-2]} took more than {ACTION_SECONDS:.0f} s") from error
        if done.returncode:
            raise Failed(f"{self.system.name}: {' / '.join(done.stderr.strip().splitlines()[-2:])}")
        return done.stdout


def _stop(worker: subprocess.Popen[bytes]) -> None:
    """End a worker and its children, which are in a session of their own."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(worker.pid, signal.SIGTERM)
        worker.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
