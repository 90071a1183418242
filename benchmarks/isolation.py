"""Isolated attempts: their rate beside a bare `multiprocessing.Pool`, CPU work on two cores, and what many leave.

The ratios are of pairs that run one after the other, and the middle one of several counts: the machine may be busy.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import _isolated_app as app
from taskharbor.core.hooks import AttemptFailed, JobsSucceeded
from taskharbor.core.ids import new_token
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres.schema import MIGRATIONS, PostgresSchema
from taskharbor.drivers.postgres.server import ServerAddress
from taskharbor.testing.postgres import PostgresServer
from taskharbor.worker.execution import Execution
from taskharbor.worker.isolation.child import IsolatedCall
from taskharbor.worker.isolation.pool import ChildPool
from taskharbor.worker.isolation.zygote import ChildApp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.worker import Worker

PROCESSES: Final = 2
PAIRS: Final = 5
CALLS: Final = 4_000
STORED_JOBS: Final = 6_000
WARM_UP_JOBS: Final = 300
TIMEOUTS: Final = 1_000
JOBS: Final = 10_000
CHILD_MAX_JOBS: Final = 1_000
COMPUTED: Final = 300
MAX_GROWTH_FACTOR: Final = 1.1
MAX_SECONDS: Final = 2.0
NO_LEASE_END: Final = 1e12
LIMIT: Final = timedelta(minutes=10)
NAME: Final = "benchmarks._isolated_app:harbor"
_PAUSE: Final = threading.Event()


def figures() -> dict[str, object]:
    logging.disable()  # a thousand timeouts have a thousand tracebacks
    return {
        "calls": calls(),
        "CPU work": cpu_work(),
        "many timeouts": many_timeouts(),
        "many jobs": many_jobs(),
        "kills": kills(),
        "kills of a supervisor": supervisor_kills(),
    }


def calls() -> dict[str, object]:
    """Compare isolated no-ops with those of a pool of two processes, one after the other in each pair.

    Other work on the machine takes cores away, and not from both alike. So the CPU time is compared, too.
    """
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder)) as server:
        url = server.database("isolation")
        migrate.migrate_up(PostgresSchema(ServerAddress(url=url)), MIGRATIONS)
        of_stores: dict[str, Callable[[], Rate]] = {
            "isolated jobs of a SQLite store": lambda: stored_rate(None),
            "isolated jobs of a PostgreSQL store": lambda: stored_rate(url),
        }
        measured = {"one isolated call after the other": child_rate, **of_stores}
        rounds = [(pool_rate(), {name: rate() for name, rate in measured.items()}) for _ in range(PAIRS)]
    pool = {"per second": round(median(pool.per_second for pool, _ in rounds)), "CPU microseconds": _cpu(rounds)}
    return {"multiprocessing.Pool.apply": pool, **{name: compared(rounds, name) for name in measured}}


@dataclass(frozen=True, slots=True)
class Rate:
    """Calls or jobs per second, and the CPU time of each in this process and its children, in microseconds."""

    per_second: float
    cpu: float


Rounds = Sequence[tuple[Rate, Mapping[str, Rate]]]


def compared(rounds: Rounds, name: str) -> dict[str, float]:
    return {
        "per second": round(median(each[name].per_second for _, each in rounds)),
        "CPU microseconds": round(median(each[name].cpu for _, each in rounds)),
        "rate of Pool.apply": round(median(each[name].per_second / pool.per_second for pool, each in rounds), 2),
        "rate of Pool.apply by CPU time": round(median(pool.cpu / each[name].cpu for pool, each in rounds), 2),
    }


def _cpu(rounds: Rounds) -> int:
    return round(median(pool.cpu for pool, _ in rounds))


def pool_rate() -> Rate:
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        return rate_of(lambda: pool.apply(nothing))


def nothing() -> None:
    """Do nothing, in a process of the pool."""


def child_rate() -> Rate:
    with stored() as folder:
        app.noop.enqueue()
        [claim] = app.harbor.driver.reserve(
            "default", token=new_token(), worker="w", lease=LIMIT, limit=1, overdue_after=LIMIT
        )
        pool = ChildPool(max_jobs=10 * CALLS)
        pool.start(ChildApp(app=NAME, url=f"sqlite:///{folder}/jobs.db", codec="json", types=["noop"]))
        try:
            return rate_of(lambda: run_one(pool, Execution(claim, ends_at=NO_LEASE_END, times_out_at=None)))
        finally:
            pool.close()


def run_one(pool: ChildPool, execution: Execution) -> None:
    child = pool.acquire()
    child.run(IsolatedCall(execution, 0, None, lambda *_: None), lambda _: None)
    pool.release(child)


def rate_of(call: Callable[[], Any]) -> Rate:
    """Return how often *call* is done in a second by one thread for each process."""

    def repeat(count: int) -> None:
        for _ in range(count):
            call()

    threads = [threading.Thread(target=repeat, args=(CALLS // PROCESSES,)) for _ in range(PROCESSES)]
    repeat(20)
    start, cpu = time.perf_counter(), tree_cpu_seconds()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    return Rate(CALLS / seconds, (tree_cpu_seconds() - cpu) / CALLS * 1e6)


def stored_rate(url: str | None) -> Rate:
    """Return the rate of a worker with its defaults, after its children have started: as that of the pool."""
    with stored(url):
        app.harbor.enqueue_many([app.noop.call() for _ in range(WARM_UP_JOBS + STORED_JOBS)])
        ended = Ended()
        running = worker(concurrency=PROCESSES, hooks=[ended])
        running.start()
        ended.wait_for(WARM_UP_JOBS)
        start, cpu, before = time.perf_counter(), tree_cpu_seconds(), ended.count
        ended.wait_for(WARM_UP_JOBS + STORED_JOBS)
        seconds, cpu = time.perf_counter() - start, tree_cpu_seconds() - cpu
        jobs = ended.count - before
        running.stop()
        return Rate(jobs / seconds, cpu / jobs * 1e6)


def tree_cpu_seconds() -> float:
    """Return the CPU time of this process and of all that it has started, but not of a server of PostgreSQL."""
    ticks = 0
    for pid in {os.getpid(), *descendants(os.getpid())}:
        with suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            # utime, stime, and those of children that have ended
            ticks += 0 if name == "postgres" else sum(map(int, rest.split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_work() -> dict[str, object]:
    """Compare CPU work in threads of one process with the same work in two child processes.

    Other work on the machine takes cores away. So the CPU time that was used is compared, too: it says how long the
    same work takes on two cores that are idle otherwise.
    """
    load = os.getloadavg()[0]
    pairs = [(computed(app.compute), computed(app.compute_isolated)) for _ in range(PAIRS)]
    _, idle_cpu = computed(app.compute_isolated, count=0)
    return {
        "in threads, jobs per second": round(median(COMPUTED / threads for (threads, _), _ in pairs)),
        "isolated, jobs per second": round(median(COMPUTED / isolated for _, (isolated, _) in pairs)),
        "isolated of threads": round(median(threads / isolated for (threads, _), (isolated, _) in pairs), 2),
        "isolated of threads on idle cores, by CPU time": round(
            median(PROCESSES * threads / (isolated - idle_cpu) for (_, threads), (_, isolated) in pairs), 2
        ),
        "cores": os.cpu_count(),
        "load of the machine before": round(load, 1),
    }


def computed(task: Any, count: int = COMPUTED) -> tuple[float, float]:
    """Return how long the jobs took, and the CPU time that they and their processes used, both in seconds."""
    with stored():
        app.harbor.enqueue_many([task.call(str(number)) for number in range(count)])
        before = cpu_seconds()
        seconds = drained(worker(concurrency=PROCESSES))
        return seconds, cpu_seconds() - before


def cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def many_timeouts() -> dict[str, object]:
    """Let a thousand attempts time out, and compare what the worker uses after each quarter."""
    seen: list[list[float]] = []
    with stored():
        ended = Ended()
        running = worker(concurrency=8, hooks=[ended])
        running.start()
        for quarter in range(1, 5):
            app.harbor.enqueue_many([app.loop.using(timeout=0.05, max_attempts=1).call() for _ in range(TIMEOUTS // 4)])
            ended.wait_for(quarter * TIMEOUTS // 4)
            wait_until(lambda: len(descendants(os.getpid())) == 1)  # the zygote: each child was killed
            seen.append(used())
        running.stop()
    names = ("threads", "processes", "descriptors", "megabytes")
    if seen[-1][3] > seen[0][3] * MAX_GROWTH_FACTOR or any(seen[-1][at] > seen[0][at] for at in (0, 2)):
        raise RuntimeError(f"{names} grew: {seen}")
    return {"timeouts": TIMEOUTS, **{name: [each[at] for each in seen] for at, name in enumerate(names)}}


def many_jobs() -> dict[str, object]:
    """Run ten thousand jobs, and compare memory after each quarter; count the children."""
    sizes: list[float] = []
    with stored():
        ended = Ended()
        running = worker(concurrency=4, child_max_jobs=CHILD_MAX_JOBS, hooks=[ended])
        running.start()
        for quarter in range(1, 5):
            app.harbor.enqueue_many([app.noop.call() for _ in range(JOBS // 4)])
            ended.wait_for(quarter * JOBS // 4)
            sizes.append(used()[3])
        started = running.isolation.children.started
        running.stop()
    if sizes[-1] > sizes[0] * MAX_GROWTH_FACTOR:
        raise RuntimeError(f"memory grew: {sizes}")
    if started < JOBS / CHILD_MAX_JOBS:
        raise RuntimeError(f"{started} children have run {JOBS} jobs")
    return {"jobs": JOBS, "child_max_jobs": CHILD_MAX_JOBS, "children": started, "megabytes": sizes}


def kills() -> dict[str, object]:
    """Kill a worker, and a child, and measure how long their processes live on, and until a replacement runs."""
    with stored() as folder:
        app.stay.enqueue()
        command = [sys.executable, "-m", "taskharbor.cli", "worker", "benchmarks/_isolated_app.py"]
        environ = {**os.environ, "TASKHARBOR_URL": f"sqlite:///{folder}/jobs.db"}  # noqa: TID251  for a child
        process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
        wait_until(lambda: len(descendants(process.pid)) >= 3)  # a zygote, a child and its copy
        living = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        after_worker = wait_until(lambda: not any(map(is_running, living)))
    with stored():
        running = worker(concurrency=1)
        running.start()
        app.noop.enqueue().result()
        [zygote] = descendants(os.getpid(), depth=1)
        [child] = descendants(zygote, depth=1)
        os.kill(child, signal.SIGKILL)
        start = time.monotonic()
        app.noop.enqueue().result()
        after_child = time.monotonic() - start
        running.stop()
    if max(after_worker, after_child) > MAX_SECONDS:
        raise RuntimeError(f"worker: {after_worker:.2f} s, child: {after_child:.2f} s")
    return {
        "processes": len(living),
        "seconds until all ended with their worker": round(after_worker, 2),
        "seconds until a job ran after its child was killed": round(after_child, 2),
    }


def supervisor_kills() -> dict[str, object]:
    """Kill a worker process of a supervisor, then the supervisor, and measure what follows."""
    with stored() as folder:
        command = [sys.executable, "-m", "taskharbor.cli", "worker", "benchmarks/_isolated_app.py", "--processes", "2"]
        environ = {**os.environ, "TASKHARBOR_URL": f"sqlite:///{folder}/jobs.db"}  # noqa: TID251  for a child
        supervisor = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
        app.noop.enqueue().result(LIMIT)
        wait_until(lambda: are_started(supervisor.pid))
        first = min(descendants(supervisor.pid, depth=1))
        os.kill(first, signal.SIGKILL)
        replaced = wait_until(lambda: len(descendants(supervisor.pid, depth=1) - {first}) == 2)
        wait_until(lambda: are_started(supervisor.pid))
        living = descendants(supervisor.pid)
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        ended = wait_until(lambda: not any(map(is_running, living)))
    if max(replaced, ended) > MAX_SECONDS:
        raise RuntimeError(f"replaced: {replaced:.2f} s, ended: {ended:.2f} s")
    return {
        "seconds until another process was started for one that was killed": round(replaced, 2),
        "processes": len(living),
        "seconds until all ended with their supervisor": round(ended, 2),
    }


def are_started(supervisor: int) -> bool:
    """Return whether both processes of a supervisor have loaded the app: each has started a zygote then."""
    workers = descendants(supervisor, depth=1)
    return len(workers) == PROCESSES and all(descendants(worker, depth=1) for worker in workers)


@contextmanager
def stored(url: str | None = None) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        app.harbor.use_store(url or f"sqlite:///{folder}/jobs.db")
        try:
            yield folder
        finally:
            app.harbor.close()


def worker(**options: Any) -> Worker:
    return app.harbor.worker(poll=timedelta(milliseconds=50), **options)


def drained(running: Worker) -> float:
    """Run until no job is left, and return how long that took without the start of the worker."""
    running.isolation.start(app.harbor.codec)
    start = time.perf_counter()
    running.drain(LIMIT)
    return time.perf_counter() - start


class Ended:
    """A hook that counts the attempts that have ended."""

    count = 0

    def wait_for(self, goal: int) -> None:
        wait_until(lambda: self.count >= goal)

    def __call__(self, event: object) -> None:
        if isinstance(event, AttemptFailed):
            self.count += 1
        elif isinstance(event, JobsSucceeded):
            self.count += len(event.jobs)


def used() -> list[float]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return [
        threading.active_count(),
        len(descendants(os.getpid())),
        sum(is_counted(entry) for entry in Path("/proc/self/fd").iterdir()),
        round(pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576, 1),
    ]


def is_counted(descriptor: Path) -> bool:
    """Return whether a descriptor is none of the store, whose pool has as many connections as calls overlap."""
    try:
        return "jobs.db" not in str(descriptor.readlink())
    except OSError:
        return False


def descendants(root: int, *, depth: int = 10) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, level = set[int](), {root}
    for _ in range(depth):
        level = {pid for pid, parent in parents.items() if parent in level} - found
        found |= level
    return found


def is_running(pid: int) -> bool:
    """Return whether a process runs. One that has ended and waits for process 1 to reap it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(is_true: Callable[[], bool]) -> float:
    start = time.monotonic()
    while not is_true():
        if time.monotonic() > start + LIMIT.total_seconds():
            raise TimeoutError
        _PAUSE.wait(0.01)
    return time.monotonic() - start
