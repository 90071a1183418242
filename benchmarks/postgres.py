"""The PostgreSQL driver compared with a raw psycopg loop, with a million finished jobs, and under an old snapshot.

The server has fsync on. Compared sides are measured in turn, so that machine noise affects
both, and a ratio is the median over the pairs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks import _postgres_raw as raw
from taskharbor import Client, JobRequest
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import NewJob
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS, PostgresSchema
from taskharbor.drivers.postgres.server import ServerAddress
from taskharbor.testing.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAIRS = 5
BULK_PAIRS = 15
SNAPSHOTS = 9
JOBS = {100: 20_000, 500: 40_000}
FINISHED = 1_000_000
UNDER_SNAPSHOT = 300_000
BULK = 10_000
LEASE = timedelta(seconds=60)
NOW = datetime.now(UTC)
PAYLOAD = b'{"name":"Ada"}'


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder), durable=True) as server:
        return {
            "drained jobs a second": {f"batch {batch}": beside_raw(server, batch) for batch in JOBS},
            f"bulk insert of {BULK:,}": bulk_insert(server),
            f"with {FINISHED:,} finished jobs": with_history(server),
            f"{UNDER_SNAPSHOT:,} jobs under an old snapshot": under_snapshot(server),
        }


def beside_raw(server: PostgresServer, batch: int) -> dict[str, float]:
    with store(server) as (driver, url), closing(raw.connect(url)) as db:
        count = JOBS[batch]
        pairs = [
            (rate(driver, count, lambda: drain(driver, batch)), rate(driver, count, lambda: raw.drain(db, batch)))
            for _ in range(PAIRS)
        ]
    return compared(pairs, "driver", "raw loop")


def compared(pairs: list[tuple[float, float]], one: str, other: str) -> dict[str, float]:
    return {
        one: round(statistics.median(pair[0] for pair in pairs)),
        other: round(statistics.median(pair[1] for pair in pairs)),
        "ratio": round(statistics.median(pair[0] / pair[1] for pair in pairs), 3),
    }


def rate(driver: PostgresDriver, count: int, work: Callable[[], int]) -> float:
    """Insert *count* jobs, drain them with *work*, and return the jobs per second."""
    fill(driver, count)
    start = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - start
    if done != count:
        raise WrongCount(done, count)
    return count / seconds


class WrongCount(Exception):
    """A drain did not process all jobs, so its rate is meaningless."""


def drain(driver: PostgresDriver, batch: int, *, most: int | None = None) -> int:
    done = 0
    while most is None or done < most:
        claims = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=batch, overdue_after=LEASE)
        if not claims:
            return done
        done += len(driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims]))
    return done


def fill(driver: PostgresDriver, count: int) -> None:
    for first in range(0, count, BULK):
        driver.insert([new_job() for _ in range(min(BULK, count - first))])


def new_job() -> NewJob:
    return NewJob(id=new_job_id(), type="greet", queue="default", payload=PAYLOAD, created_at=NOW, max_attempts=3)


def bulk_insert(server: PostgresServer) -> dict[str, object]:
    """Compare a bulk insert with a COPY of prepared rows, and with a COPY that generates ids and JSON itself."""
    with store(server) as (driver, url), closing(raw.connect(url)) as db:
        client = Client(driver)
        return {
            "without keys": compared(
                [bulk_pair(client, db) for _ in range(BULK_PAIRS)], "client", "COPY of ready rows"
            ),
            "with keys": compared(
                [bulk_pair(client, db, keyed=True) for _ in range(BULK_PAIRS)], "client", "COPY of ready rows"
            ),
            "beside a COPY that makes its rows": compared(
                [bulk_pair(client, db, made=True) for _ in range(BULK_PAIRS)], "client", "COPY"
            ),
        }


def bulk_pair(
    client: Client, db: psycopg.Connection[Any], *, keyed: bool = False, made: bool = False
) -> tuple[float, float]:
    requests = [
        JobRequest(type="greet", payload={"name": "Ada"}, idempotency_key=str(new_job_id()) if keyed else None)
        for _ in range(BULK)
    ]
    start = time.perf_counter()
    client.enqueue_many(requests)
    ours = time.perf_counter() - start
    ids = [new_job_id() for _ in range(BULK)]
    keys = [str(each) for each in ids] if keyed else None
    start = time.perf_counter()
    if made:
        raw.copy_made(db, [request.payload for request in requests])
    else:
        raw.copy(db, ids, PAYLOAD, keys=keys)
    return BULK / ours, BULK / (time.perf_counter() - start)


def with_history(server: PostgresServer) -> dict[str, object]:
    """Compare a database full of finished jobs with an empty one, in jobs per second, buffers and WAL bytes."""
    with store(server) as (full, full_url), store(server) as (empty, empty_url):
        while (done := finished(full_url)) < FINISHED:
            fill(full, count := min(100_000, FINISHED - done))
            drain(full, 500, most=count)
        execute(full_url, "VACUUM ANALYZE")
        pairs = [(touched(full, full_url), touched(empty, empty_url)) for _ in range(PAIRS)]
        names = ("jobs a second", "buffers a job", "WAL bytes a job")
        return {
            name: compared([(one[n], other[n]) for one, other in pairs], "full", "empty")
            for n, name in enumerate(names)
        }


def finished(url: str) -> int:
    [(count,)] = execute(url, "SELECT count(*) FROM th_jobs_finished")
    return int(count)


def touched(driver: PostgresDriver, url: str) -> tuple[float, float, float]:
    """Drain in batches of 100, and return the jobs per second, and the buffers and WAL bytes per job."""
    execute(url, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    count = JOBS[100]
    fill(driver, count)
    execute(url, "SELECT pg_stat_statements_reset()")
    start = time.perf_counter()
    drain(driver, 100)
    seconds = time.perf_counter() - start
    [(buffers, wal)] = execute(
        url,
        "SELECT sum(shared_blks_hit + shared_blks_read)::float, sum(wal_bytes)::float"
        "  FROM pg_stat_statements JOIN pg_database ON pg_database.oid = dbid WHERE datname = current_database()"
        "   AND query LIKE '%th_jobs%'",
    )
    return count / seconds, buffers / count, wal / count


def under_snapshot(server: PostgresServer) -> dict[str, float]:
    return compared([last_and_first(server) for _ in range(SNAPSHOTS)], "last tenth", "first tenth")


def last_and_first(server: PostgresServer) -> tuple[float, float]:
    """Return the rates of the last and the first tenth of a drain while another session holds an old snapshot.

    VACUUM can remove nothing then. It runs before the last tenth, as autovacuum would at some time: its statistics,
    that no job is running, must not matter. A CHECKPOINT before each tenth flushes earlier writes, so that they are
    not flushed while it is timed.
    """
    with store(server) as (driver, url):
        fill(driver, UNDER_SNAPSHOT)
        with psycopg.connect(url) as holder:
            holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            holder.execute("SELECT count(*) FROM th_jobs")
            execute(url, "CHECKPOINT")
            first = tenth(driver)
            drain(driver, 500, most=UNDER_SNAPSHOT * 8 // 10)
            execute(url, "VACUUM ANALYZE")
            execute(url, "CHECKPOINT")
            return tenth(driver), first


def tenth(driver: PostgresDriver) -> float:
    start = time.perf_counter()
    count = drain(driver, 500, most=UNDER_SNAPSHOT // 10)
    return count / (time.perf_counter() - start)


@contextmanager
def store(server: PostgresServer) -> Iterator[tuple[PostgresDriver, str]]:
    url = server.database(f"bench_{new_token().hex}")
    migrate.migrate_up(PostgresSchema(ServerAddress(url=url)), MIGRATIONS)
    with closing(PostgresDriver(url, deadline=timedelta(seconds=60))) as driver:
        yield driver, url


def execute(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as db:
        cursor = db.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []
