"""Full cycles (insert, reserve, ack) on the SQLite driver, beside a hand-written loop of the same statements.

Both sides work in turns on files of their own, so that the noise of the machine falls
on both; a ratio is the median over the pairs.
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

from taskharbor.core.answers import Settlement
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import NewJob
from taskharbor.core.outcome import Outcome
from taskharbor.drivers.sqlite import SqliteDriver

if TYPE_CHECKING:
    from collections.abc import Callable

PAIRS = 5
HISTORY = 1_000_000
LEASE = timedelta(seconds=30)
NOW = datetime.now(UTC)
JOBS = {1: 400, 10: 3_000, 100: 10_000, 1_000: 20_000}

INSERT = """
    INSERT INTO th_jobs (
        id, type, queue, priority, payload, status, scheduled_for, created_at, attempt_count, max_attempts
    )
    VALUES (?, 'greet', 'default', 0, ?, 'PENDING', ?, ?, 0, 3)
"""
RESERVE = """
    UPDATE th_jobs
       SET status = 'PROCESSING', lease_token = ?, lease_expires_at = ?, worker_id = 'w', processing_started_at = ?,
           attempt_count = attempt_count + 1, dispatch_at = NULL, resends = 0
     WHERE id IN (
        SELECT id FROM th_jobs
         WHERE queue = 'default' AND status IN ('PENDING', 'ENQUEUED', 'FAILED') AND scheduled_for <= ?
           AND attempt_count < max_attempts
         ORDER BY priority, scheduled_for, id LIMIT ?
     )
    RETURNING *
"""
ACK = """
    UPDATE th_jobs
       SET status = 'SUCCEEDED', settled_token = lease_token, lease_token = NULL, lease_expires_at = NULL,
           completed_at = ?, result = NULL
     WHERE id = ? AND status = 'PROCESSING' AND lease_token = ? AND lease_expires_at > ?
"""


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
    """Take jobs through their whole life with the driver; return jobs a second."""
    jobs = [new_job() for _ in range(JOBS[batch])]
    start = time.perf_counter()
    for first in range(0, len(jobs), batch):
        driver.insert(jobs[first : first + batch])
        claims = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=batch, patience=LEASE)
        driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])
    return len(jobs) / (time.perf_counter() - start)


def new_job() -> NewJob:
    return NewJob(
        id=new_job_id(), type="greet", queue="default", payload=b'{"name": "Ada"}', created_at=NOW, max_attempts=3
    )


def open_raw(file: Path, synchronous: str) -> sqlite3.Connection:
    SqliteDriver(file).close()  # for its tables
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    return db


def by_hand(db: sqlite3.Connection, batch: int) -> float:
    """Do the same with nothing but sqlite3."""
    ids = [new_job_id().bytes for _ in range(JOBS[batch])]
    start = time.perf_counter()
    for first in range(0, len(ids), batch):
        token, now = uuid4().bytes, time.time_ns() // 1_000
        db.execute("BEGIN IMMEDIATE")
        part = ids[first : first + batch]
        db.executemany(INSERT, [(each, b'{"name": "Ada"}', now, now) for each in part])
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        rows = db.execute(RESERVE, (token, now + 30_000_000, now, now, batch)).fetchall()
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        for row in rows:
            db.execute(ACK, (now, row[0], token, now))
        db.execute("COMMIT")
    return len(ids) / (time.perf_counter() - start)


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
