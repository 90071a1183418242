"""Prune a day of five million finished jobs while another thread keeps finishing jobs.

A day that is not removed after `MAX_DUTIES` duties raises, and so does a remaining key, attempt or count, so there
are no figures.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import NewJob
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.core.retention import KEEP
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS, PostgresSchema
from taskharbor.drivers.postgres.server import ServerAddress
from taskharbor.janitor import STATS_RETENTION, Janitor
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.postgres import PostgresServer

JOBS: Final = 5_000_000
KEYED: Final = 50
"""One job in this many has an idempotency key. As many have an attempt, and a tenth of those have an event."""
MAX_DUTIES: Final = 1_000
LEASE: Final = timedelta(seconds=30)
QUIET_SECONDS: Final = 5.0

FILL: Final = """
    INSERT INTO {leaf} (id, type, queue, priority, status, scheduled_for, created_at, attempt_count, max_attempts,
                        completed_at, idempotency_key, payload, result)
    SELECT (lpad(to_hex(%(ms)s + n / 58), 12, '0') || '7' || substr(md5(n::text), 1, 3)
            || '8' || substr(md5(n::text), 4, 15))::uuid,
           'email.send', 'mail', 0, CASE n %% 100 WHEN 7 THEN 'CANCELED' ELSE 'SUCCEEDED' END, %(day)s, %(day)s, 1, 3,
           %(day)s + n * interval '17 ms', CASE n %% %(keyed)s WHEN 0 THEN 'key ' || n END,
           convert_to('{{"to": "user-' || n || '@example.org", "template": "welcome"}}', 'UTF8'), 'null'
      FROM generate_series(1, %(jobs)s) AS n
"""
FILL_KEYS: Final = """
    INSERT INTO th_keys (queue, key, job_id, digest)
    SELECT queue, idempotency_key, id, sha256(payload) FROM {leaf} WHERE idempotency_key IS NOT NULL
"""
FILL_ATTEMPTS: Final = """
    INSERT INTO th_attempts (job_id, token, life, attempt, ended_at, event, status, outcome, message)
    SELECT id, gen_random_uuid(), 1, 1, completed_at, 'retry', 'FAILED', 'FAILED', 'timed out'
      FROM {leaf} TABLESAMPLE BERNOULLI (%(percent)s)
"""
FILL_EVENTS: Final = """
    INSERT INTO th_outbox (job_id, life, type, queue, attempt_count, max_attempts, error, dead_at, next_at,
                           published_at)
    SELECT id, 1, type, queue, 3, 3, 'timed out', completed_at, completed_at, completed_at
      FROM {leaf} TABLESAMPLE BERNOULLI (%(percent)s)
"""
FILL_COUNTS: Final = """
    INSERT INTO th_counts (queue, status, count) SELECT queue, status, count(*) FROM {leaf} GROUP BY queue, status
"""


def figures(jobs: int = JOBS) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(Path(folder)) as server:
        migrate.migrate_up(PostgresSchema(ServerAddress(url=server.url)), MIGRATIONS)
        leaf = fill(server.url, jobs)
        with closing(PostgresDriver(server.url)) as driver, Finishing(server.url) as finishing:
            finishing.wait(QUIET_SECONDS)
            before = finishing.slowest()
            duties = prune_day(driver, server.url, leaf)
            meanwhile = finishing.slowest()
        check(server.url)
    return {
        "jobs": jobs,
        "duties": len(duties),
        "seconds of work": round(sum(duties), 1),
        "slowest duty (s)": round(max(duties), 2),
        "slowest settle before (ms)": round(before * 1_000),
        "slowest settle meanwhile (ms)": round(meanwhile * 1_000),
    }


def fill(url: str, jobs: int) -> str:
    """Create a partition past its retention, and fill it with *jobs* jobs on the server."""
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - KEEP - timedelta(days=2)
    leaf = f"th_jobs_finished_{day:%Y%m%d}"
    asked: dict[str, Any] = {"day": day, "ms": round(day.timestamp() * 1_000), "jobs": jobs, "keyed": KEYED}
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT th_make_days(%s::date, 1)", [day])
        db.execute(FILL.format(leaf=leaf).encode(), asked)
        db.execute(FILL_KEYS.format(leaf=leaf).encode())
        db.execute(FILL_ATTEMPTS.format(leaf=leaf).encode(), {"percent": 100 / KEYED})
        db.execute(FILL_EVENTS.format(leaf=leaf).encode(), {"percent": 10 / KEYED})
        db.execute(FILL_COUNTS.format(leaf=leaf).encode())
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")
    return leaf


def prune_day(driver: PostgresDriver, url: str, leaf: str) -> list[float]:
    """Run the prune duty until the day is removed, and return how many seconds each run took."""
    janitor = Janitor(ThreadRuntime(sync_threads=1), driver, lease=LEASE)
    _, prune = janitor._duties["prune"]  # noqa: SLF001  without the minute between two runs
    seconds: list[float] = []
    with psycopg.connect(url, autocommit=True) as db:
        while db.execute("SELECT to_regclass(%s)", [leaf]).fetchone() != (None,):
            start = time.monotonic()
            prune()
            seconds.append(time.monotonic() - start)
            if len(seconds) > MAX_DUTIES:
                raise RuntimeError(f"{leaf} still exists after {MAX_DUTIES} duties")
    return seconds


def check(url: str) -> None:
    with closing(PostgresDriver(url)) as driver:
        driver.maintenance.roll_up(keep=STATS_RETENTION)
    with psycopg.connect(url) as db:
        query = """
            SELECT (SELECT count(*) FROM th_keys), (SELECT count(*) FROM th_attempts), (SELECT count(*) FROM th_outbox),
                   (SELECT count(*) FROM th_pruning),
                   (SELECT coalesce(sum(count), 0) FROM th_counts WHERE queue = 'mail')
        """
        left = db.execute(query).fetchone()
    if left is None or any(left):
        raise RuntimeError(f"rows of the day remain: {left}")


class Finishing:
    """A thread that finishes one job after the other, and measures the slowest settle."""

    def __init__(self, url: str) -> None:
        self._driver = PostgresDriver(url)
        self._slowest = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._driver.close()

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def slowest(self) -> float:
        """Return the seconds of the slowest settle since the last call."""
        slowest, self._slowest = self._slowest, 0.0
        return slowest

    def _run(self) -> None:
        while not self._ended.wait(0.005):
            job = NewJob(
                id=new_job_id(),
                type="greet",
                queue="default",
                payload=b"{}",
                created_at=datetime.now(UTC),
                max_attempts=3,
            )
            self._driver.insert([job])
            claims = self._driver.reserve(
                "default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE
            )
            start = time.monotonic()
            self._driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])
            self._slowest = max(self._slowest, time.monotonic() - start)
