"""Tests of the SQLite driver beyond the driver contract: durability, joined transactions and query plans."""

from __future__ import annotations

import gc
import multiprocessing
import re
import sqlite3
from contextlib import closing
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Client, JobRequest
from taskharbor.core.errors import StoreUnavailable, UsageError
from taskharbor.core.model import Job
from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite import SqliteDriver, claim, roll_up, search
from taskharbor.drivers.sqlite.inspector import SqliteInspector
from taskharbor.drivers.sqlite.rows import EPOCH
from taskharbor.testing.conformance.subject import new_job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def driver(file: Path) -> Iterator[SqliteDriver]:
    driver = SqliteDriver(file)
    yield driver
    driver.close()


def test_a_job_is_still_there_when_the_file_is_opened_again(file: Path) -> None:
    first = SqliteDriver(file)
    enqueued = Client(first).enqueue(JobRequest(type="greet", payload={"name": "Ada"}))
    first.close()

    with closing(SqliteDriver(file)) as again:
        assert again.inspector.get([enqueued.id])[enqueued.id].data == {"name": "Ada"}


def test_a_job_and_an_order_are_committed_together_or_not_at_all(driver: SqliteDriver, file: Path) -> None:
    with closing(sqlite3.connect(file)) as shop:
        shop.execute("CREATE TABLE orders (id INTEGER)")
        client = Client(driver.join(shop))

        shop.execute("INSERT INTO orders VALUES (1)")
        lost = client.enqueue(JobRequest(type="ship", payload=1))
        shop.rollback()
        shop.execute("INSERT INTO orders VALUES (2)")
        kept = client.enqueue(JobRequest(type="ship", payload=2))
        unseen = driver.inspector.get([kept.id])
        shop.commit()

        assert unseen == {}
        assert set(driver.inspector.get([lost.id, kept.id])) == {kept.id}
        assert shop.execute("SELECT id FROM orders").fetchall() == [(2,)]


def test_a_connection_to_another_file_cannot_be_joined(driver: SqliteDriver, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other, pytest.raises(UsageError, match="own file"):
        driver.join(other)


def test_a_connection_without_a_transaction_cannot_be_joined(driver: SqliteDriver, file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as autocommit:
        joined = driver.join(autocommit)

        with pytest.raises(UsageError, match="begin a transaction first"):
            joined.insert([new_job()])


def test_waiting_for_a_locked_file_ends_at_the_deadline(file: Path) -> None:
    driver = SqliteDriver(file, deadline=timedelta(milliseconds=50))
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(
            StoreUnavailable, match="another process, or a handler's own write transaction, has held the write lock"
        ):
            driver.insert([new_job()])

    assert len(driver.insert([new_job()])) == 1
    driver.close()


def test_a_closed_driver_raises_store_unavailable(file: Path) -> None:
    driver = SqliteDriver(file)
    driver.close()

    with pytest.raises(StoreUnavailable, match="was closed"):
        driver.insert([new_job()])


def insert_some(driver: SqliteDriver, count: int) -> None:
    for _ in range(count):
        driver.insert([new_job()])


def test_a_driver_made_before_a_fork_works_on_both_sides_of_it(driver: SqliteDriver) -> None:
    driver.insert([new_job()])
    child = multiprocessing.get_context("fork").Process(target=insert_some, args=(driver, 20))

    child.start()
    insert_some(driver, 20)
    child.join(30)

    assert child.exitcode == 0
    assert sum(driver.inspector.queues()[0].counts.values()) == 41


def test_a_job_that_was_read_is_as_frozen_as_one_that_was_made(driver: SqliteDriver) -> None:
    new = new_job()
    driver.insert([new])
    job = driver.inspector.get([new.id])[new.id]

    with pytest.raises(FrozenInstanceError):
        job.priority = 1  # type: ignore[misc]

    assert (type(job), repr(job), hash(job)) == (Job, repr(replace(job)), hash(replace(job)))
    assert job == replace(job)


def plan(file: Path, statement: str) -> list[str]:
    params = dict.fromkeys(re.findall(r":(\w+)", statement))
    with closing(sqlite3.connect(file)) as db:
        return [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {statement}", params)]


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("statement", [claim.CLAIM_ANY_TYPE, claim.CLAIM_HANDLED_TYPES], ids=["any", "handled"])
def test_a_claim_reads_the_waiting_index_in_order_without_sorting(statement: str, file: Path) -> None:
    steps = plan(file, statement)

    assert "SEARCH th_jobs USING INDEX th_jobs_waiting (queue=?)" in steps
    assert not [step for step in steps if "TEMP B-TREE" in step or step.startswith("SCAN th_jobs")]


@pytest.mark.usefixtures("driver")
def test_the_next_due_time_is_found_by_index_seeks(file: Path) -> None:
    steps = [step for step in plan(file, SqliteInspector.DUE_IN) if "th_jobs" in step]

    assert steps == [
        "SEARCH th_jobs USING COVERING INDEX th_jobs_waiting (queue=?)",
        "SEARCH th_jobs USING COVERING INDEX th_jobs_waiting (queue=? AND priority>?)",
        "SEARCH th_jobs USING COVERING INDEX th_jobs_waiting (queue=? AND priority=? AND scheduled_for>?)",
    ]


@pytest.mark.usefixtures("driver")
def test_the_next_jobs_are_found_by_index_seeks(file: Path) -> None:
    steps = {
        name: [step for step in plan(file, getattr(search, name)) if "th_jobs" in step or "TEMP" in step]
        for name in ("LANES", "DUE_IN_LANE", "LATER_IN_LANE")
    }

    assert steps == {
        "LANES": [
            "SEARCH th_jobs USING COVERING INDEX th_jobs_waiting (queue=?)",
            "SEARCH th_jobs USING COVERING INDEX th_jobs_waiting (queue=? AND priority>?)",
        ],
        "DUE_IN_LANE": ["SEARCH th_jobs USING INDEX th_jobs_waiting (queue=? AND priority=? AND scheduled_for<?)"],
        "LATER_IN_LANE": ["SEARCH th_jobs USING INDEX th_jobs_waiting (queue=? AND priority=? AND scheduled_for>?)"],
    }


@pytest.mark.usefixtures("driver")
def test_an_expired_lease_is_found_without_scanning_the_history(file: Path) -> None:
    steps = plan(file, claim.RECLAIM_EXPIRED)

    assert "SEARCH th_jobs USING INDEX th_jobs_processing (lease_expires_at<?)" in steps
    assert not [step for step in steps if "TEMP B-TREE" in step or step.startswith("SCAN th_jobs")]


@pytest.mark.usefixtures("driver")
def test_unfinished_jobs_are_counted_without_scanning_waiting_or_ended_ones(file: Path) -> None:
    steps = plan(file, roll_up.COUNTS)

    assert [step for step in steps if "th_jobs" in step] == [
        "SEARCH th_jobs USING INDEX th_jobs_processing (lease_expires_at>?)",
    ]


SCANS: Final = {
    search.SCAN_ALL: "SEARCH th_jobs USING PRIMARY KEY (id>? AND id<?)",
    search.SCAN_DEAD: "SEARCH th_jobs USING INDEX th_jobs_dead_id (id>? AND id<?)",
    search.SCAN_FINGERPRINT: "SEARCH th_jobs USING INDEX th_jobs_dead_fingerprint (fingerprint=? AND id>? AND id<?)",
}


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(("statement", "step"), SCANS.items(), ids=["all", "dead", "fingerprint"])
def test_a_page_is_read_in_index_order_without_sorting(statement: str, step: str, file: Path) -> None:
    steps = plan(file, statement)

    assert step in steps
    assert not [each for each in steps if "TEMP B-TREE" in each or each.startswith("SCAN th_jobs")]


@pytest.mark.usefixtures("driver")
def test_dead_letter_groups_are_read_without_scanning_all_jobs(file: Path) -> None:
    steps = plan(file, search.GROUPS)

    assert not [step for step in steps if step.startswith(("SCAN th_jobs", "SCAN oldest", "SCAN newest"))]


def test_jobs_that_raw_sql_moved_are_counted_too(driver: SqliteDriver, file: Path) -> None:
    driver.insert([new_job() for _ in range(4)])
    first, second, third, _ = [job.id.bytes for job in driver.inspector.find(JobFilter(), limit=4).jobs]
    end = "UPDATE th_jobs SET status = 'CANCELED', completed_at = 1 WHERE id = ?"
    revive = "UPDATE th_jobs SET status = 'PENDING', completed_at = NULL WHERE id = ?"
    with closing(sqlite3.connect(file)) as db, db:
        db.executemany(end, [(first,), (second,), (third,)])
        db.execute(revive, (second,))
        db.execute("DELETE FROM th_jobs WHERE id = ?", (third,))

    before = driver.inspector.queues(), driver.inspector.finished_counts(since=EPOCH)
    driver.maintenance.roll_up(keep=timedelta(days=36_500))
    after = driver.inspector.queues(), driver.inspector.finished_counts(since=EPOCH)
    [queue], [finished] = before

    assert before == after
    assert {status: count for status, count in queue.counts.items() if count} == {
        Status.PENDING: 2,
        Status.CANCELED: 1,
    }
    assert finished.count == 3


def test_a_closed_driver_releases_every_file_descriptor(file: Path) -> None:
    before = _descriptors()

    for _ in range(20):
        driver = SqliteDriver(file)
        driver.insert([new_job()])
        driver.close()

    wait_until(lambda: _descriptors() <= before)  # threads that earlier tests left may close some


def _descriptors() -> int:
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()])
