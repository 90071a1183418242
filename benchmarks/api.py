"""The server's CPU time for a create compared with an empty endpoint, and the latency of reads with a million jobs.

The server is a separate process on PostgreSQL with fsync on. Compared sides are measured in turn, and
a ratio is the median over the pairs.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.postgres import compared, drain, execute, fill, store
from taskharbor.api_keys import issue_key
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.postgres import PostgresDriver

PAIRS: Final = 5
CREATES: Final = 2_000
READS: Final = 500
CLIENTS: Final = 50
JOBS: Final = 1_000_000
DEAD: Final = 20_000
LEASE: Final = timedelta(seconds=60)
BODY: Final = json.dumps({"type": "email.send", "payload": {"to": "ada@example.com", "n": 7}}).encode()
PATHS: Final = (
    "/v1/jobs",
    "/v1/jobs?status=DEAD&limit=200",
    "/v1/jobs?type=greet&status=SUCCEEDED",
    "/v1/jobs/{id}",
    "/v1/jobs/{id}/why",
    "/v1/dead-letters/groups",
    "/v1/queues",
    "/v1/stats",
    "/v1/stats/timeseries",
)


def figures() -> dict[str, object]:
    return measured(jobs=JOBS, dead=DEAD, pairs=PAIRS, creates=CREATES, reads=READS)


def measured(*, jobs: int, dead: int, pairs: int, creates: int, reads: int) -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer.start(Path(folder), durable=True) as server,
        store(server) as (driver, url),
    ):
        key = issue_key("benchmark", ["jobs:read", "jobs:write"], now=driver.inspector.now())
        driver.control.add_keys([key.key])
        with served(url) as port:
            site = ApiRig(port, key.text)
            cost = [(site.cpu_of("/v1/jobs", creates), site.cpu_of("/empty", creates)) for _ in range(pairs)]
            grow(driver, jobs, dead)
            execute(url, "VACUUM ANALYZE")
            return {
                f"server CPU microseconds, {CLIENTS} clients": compared(cost, "create", "empty endpoint"),
                f"reads over {jobs:,} jobs": read_all(site, driver, url, reads),
            }


def grow(driver: PostgresDriver, jobs: int, dead: int) -> None:
    """Fill the store with dead letters, finished jobs, and a tenth of waiting jobs."""
    boom = Failure(type="ValueError", message="boom", fingerprint="f00d")
    fill(driver, dead)
    while claims := driver.reserve(
        "default", token=new_token(), worker="w", lease=LEASE, limit=500, overdue_after=LEASE
    ):
        driver.settle([Settlement(claim.lease, Outcome.fail("hopeless", failure=boom)) for claim in claims])
    for _ in range(0, jobs - dead - jobs // 10, 100_000):
        fill(driver, min(100_000, jobs))
        drain(driver, 500)
    fill(driver, jobs // 10)
    driver.maintenance.roll_up(keep=timedelta(days=7))


def read_all(site: ApiRig, driver: PostgresDriver, url: str, reads: int) -> dict[str, object]:
    execute(url, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    claims = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE)
    return {path: read_one(site, url, path.replace("{id}", str(claims[0].job.id)), reads) for path in PATHS}


def read_one(site: ApiRig, url: str, path: str, reads: int) -> dict[str, float]:
    """Compare a read with a bare SELECT through the same stack, and return the cost of its statements."""
    site.times(path, 20)  # prepare statements and cache pages
    execute(url, "SELECT pg_stat_statements_reset()")
    ours = percentile(site.times(path, reads))
    [(slowest, buffers)] = execute(url, _STATEMENTS)
    bare = percentile(site.times("/select", reads))
    return {
        "p99 ms": round(1_000 * ours, 2),
        "p99 ms of SELECT": round(1_000 * bare, 2),
        "ratio": round(ours / bare, 2),
        "slowest statement ms": round(slowest, 2),
        "buffers a request": round(buffers / reads, 1),
    }


_STATEMENTS: Final = """
    SELECT coalesce(max(max_exec_time), 0)::float, coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float
      FROM pg_stat_statements
      JOIN pg_database ON pg_database.oid = dbid
     WHERE datname = current_database()
       AND query LIKE '%th_%'
"""


def percentile(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


class ApiRig:
    """Clients of the server on plain sockets, so that the client's own cost does not dominate."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._head = f"Host: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"

    def cpu_of(self, path: str, count: int) -> float:
        """Return the server's CPU microseconds per POST."""
        before = self._cpu()
        asyncio.run(self._run_clients(self._request("POST", path, BODY), count))
        return 1e6 * (self._cpu() - before) / count

    def times(self, path: str, count: int) -> list[float]:
        """Return the latencies of GETs, four at a time."""
        return asyncio.run(self._run_clients(self._request("GET", path), count, clients=4))

    def _cpu(self) -> float:
        return float(asyncio.run(self._once(self._request("GET", "/cpu"))))

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        return f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def _once(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = await _exchange(reader, writer, request)
        writer.close()
        return body

    async def _run_clients(self, request: bytes, count: int, clients: int = CLIENTS) -> list[float]:
        shares = await asyncio.gather(*(self._client(request, count // clients) for _ in range(clients)))
        return [seconds for share in shares for seconds in share]

    async def _client(self, request: bytes, count: int) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            await _exchange(reader, writer, request)
            taken.append(time.perf_counter() - start)
        writer.close()
        return taken


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length")]
    body = await reader.readexactly(int(length))
    if not head.startswith(b"HTTP/1.1 20"):
        raise NoSuccess(head[:40], body[:200])
    return body


class NoSuccess(Exception):
    """A request failed, so its time is meaningless."""


@contextmanager
def served(url: str) -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks._api_server", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield int(line)
        finally:
            process.terminate()
            process.wait(timeout=30)
