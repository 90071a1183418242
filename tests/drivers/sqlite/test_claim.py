"""Tests of claims on SQLite: few columns are read, and the job has all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.ids import new_token
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job

if TYPE_CHECKING:
    from pathlib import Path

UNUSUAL: dict[str, Any] = {
    "attempt_count": 2,
    "cancel_requested_at": 5,
    "failed_at": 5,
    "idempotency_key": "k",
    "last_error": "boom",
    "life": 2,
    "metadata": '{"team": "a"}',
    "priority": 7,
    "progress": '{"done": 1, "total": 3, "note": "x"}',
    "releases": 1,
    "result": b"1",
    "sends": 3,
    "sent_at": 5,
    "settled_token": bytes(16),
    "timeout": 5_000_000,
}


@pytest.mark.parametrize("column", UNUSUAL)
def test_a_row_with_any_unusual_value_is_claimed_as_it_is_stored(tmp_path: Path, column: str) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        jobs = [new_job() for _ in range(3)]
        driver.insert(jobs)
        change(tmp_path / "jobs.db", column, jobs[1].id.bytes)
        token = new_token()

        claims = driver.reserve(
            "default", token=token, worker="w", lease=LEASE, limit=3, overdue_after=OVERDUE_AFTER, types={jobs[0].type}
        )

        stored = {claim.job.id: claim for claim in driver.read_back([token])}
        assert len(claims) == len(stored) == 3
        assert claims == sorted(stored.values(), key=lambda each: (each.job.priority, each.job.id))
        assert stored[jobs[1].id].job == driver.inspector.get([jobs[1].id])[jobs[1].id]


def test_claims_of_a_batch_are_in_the_order_of_priority_and_time(tmp_path: Path) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        jobs = [new_job(priority=priority) for priority in (3, -1, 3, 0, -1)]
        driver.insert(jobs)
        claims = driver.reserve(
            "default", token=new_token(), worker="w", lease=LEASE, limit=5, overdue_after=OVERDUE_AFTER
        )

    assert [claim.job.id for claim in claims] == [
        job.id for job in sorted(jobs, key=lambda job: (job.priority, job.id))
    ]


def change(file: Path, column: str, job_id: bytes) -> None:
    """Set one column of a job by SQL, as a store with a long history may have it."""
    with closing(sqlite3.connect(file)) as db, db:
        assert column in UNUSUAL
        db.execute(f"UPDATE th_jobs SET {column} = ? WHERE id = ?", (UNUSUAL[column], job_id))
