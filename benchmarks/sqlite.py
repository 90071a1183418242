"""Full cycles (insert, reserve, ack) on the SQLite driver, compared with a raw sqlite3 loop of the same statements.

Both sides are measured in turn on separate files, so that machine noise affects both, and a
ratio is the median over the pairs.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import NewJob
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.claim import CLAIM_ANY_TYPE
from taskharbor.drivers.sqlite.insert import INSERT_JOB
from taskharbor.drivers.sqlite.settle import record_acks

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS = 11
HISTORY = 1_000_000
LEASE = timedelta(seconds=30)
NOW = datetime.now(UTC)
PAYLOAD = b'{"name": "Ada"}'
JOBS = {1: 400, 10: 3_000, 100: 10_000, 1_000: 20_000}


def figures() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        compared = {
            f"batch {batch}, synchronous {synchronous}": compare(Path(folder), batch, synchronous)
            for synchronous in ("NORMAL", "FULL")
            for batch in JOBS
        }
        return {"jobs a second": compared, f"with {HISTORY:,} finished jobs": with_history(Path(folder))}


def compare(folder: Path, batch: int, synchronous: Any) -> dict[str, float]:
    driver = SqliteDriver(folder / f"ours-{uuid4()}.db", synchronous=synchronous)
    raw = open_raw(folder / f"raw-{uuid4()}.db", synchronous)
    try:
        return paired(lambda: ours(driver, batch), lambda: by_hand(raw, batch), ("driver", "by hand"))
    finally:
        driver.close()
        raw.close()


def paired(one: Callable[[], float], other: Callable[[], float], names: tuple[str, str]) -> dict[str, float]:
    pairs = [(one(), other()) for _ in range(PAIRS)]
    return {
        names[0]: round(statistics.median(pair[0] for pair in pairs)),
        names[1]: round(statistics.median(pair[1] for pair in pairs)),
        "ratio": round(statistics.median(pair[0] / pair[1] for pair in pairs), 3),
    }


def ours(driver: SqliteDriver, batch: int) -> float:
    """Run full cycles with the driver, and return the jobs per second without the time to create them."""
    took = 0.0
    for _ in range(JOBS[batch] // batch):
        jobs = [new_job() for _ in range(batch)]
        start = time.perf_counter()
        driver.insert(jobs)
        claims = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=batch, overdue_after=LEASE)
        driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])
        took += time.perf_counter() - start
    return JOBS[batch] / took


def new_job() -> NewJob:
    return NewJob(id=new_job_id(), type="greet", queue="default", payload=PAYLOAD, created_at=NOW, max_attempts=3)


def open_raw(file: Path, synchronous: str) -> sqlite3.Connection:
    SqliteDriver(file).close()  # for its tables
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA temp_store = MEMORY")
    return db


def by_hand(db: sqlite3.Connection, batch: int) -> float:
    """Run full cycles with only sqlite3 and the driver's statements."""
    took = 0.0
    for _ in range(JOBS[batch] // batch):
        ids = [new_job_id().bytes for _ in range(batch)]
        start = time.perf_counter()
        token, now = uuid4().bytes, time.time_ns() // 1_000
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            INSERT_JOB, [(each, "greet", "default", 0, PAYLOAD, now, None, now, 3, None, "{}") for each in ids]
        )
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        taker = {"token": token, "ends": now + 30_000_000, "worker": "w", "now": now}
        asked = {"queue": "default", "due": now, "overdue": now - 30_000_000, "limit": batch}
        rows = db.execute(CLAIM_ANY_TYPE, taker | asked).fetchall()
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        record_acks(db, [(row[2], token, None) for row in rows], now)  # columns of CLAIMED
        db.execute("COMMIT")
        took += time.perf_counter() - start
    return JOBS[batch] / took


def with_history(folder: Path) -> dict[str, float]:
    """Compare a file full of finished jobs with an empty one, at batch 100."""
    full = SqliteDriver(folder / "full.db", synchronous="NORMAL")
    empty = SqliteDriver(folder / "empty.db", synchronous="NORMAL")
    fill(folder / "full.db")
    try:
        return paired(lambda: ours(full, 100), lambda: ours(empty, 100), ("full file", "empty file"))
    finally:
        full.close()
        empty.close()


def fill(file: Path) -> None:
    with closing(open_raw(file, "NORMAL")) as db:
        for _ in range(HISTORY // JOBS[1_000]):
            by_hand(db, 1_000)
