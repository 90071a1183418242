"""Unusual connections to a SQLite file, and errors, in the transactions that callers share with the driver."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.model import Claim

LARGE = 500_000
"""Bytes that do not fit into the free pages of a shop."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def driver(file: Path) -> Iterator[SqliteDriver]:
    with closing(SqliteDriver(file)) as driver:
        yield driver


@pytest.fixture
def shop(driver: SqliteDriver, file: Path) -> Iterator[sqlite3.Connection]:  # noqa: ARG001  it makes the file
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        db.commit()
        yield db


def fill(shop: sqlite3.Connection) -> None:
    """Leave room for little more."""
    [pages] = shop.execute("PRAGMA page_count").fetchone()
    shop.execute(f"PRAGMA max_page_count = {pages + 20}")


def take(driver: SqliteDriver, count: int) -> list[Claim]:
    driver.insert([new_job() for _ in range(count)])
    return driver.reserve(
        "default", token=new_token(), worker="w", lease=LEASE, limit=count, overdue_after=OVERDUE_AFTER
    )


@pytest.mark.parametrize("begins", [True, False], ids=["in a transaction", "begins one"])
def test_an_insert_that_fails_leaves_no_key_if_its_caller_commits(
    driver: SqliteDriver, shop: sqlite3.Connection, *, begins: bool
) -> None:
    large, small = (new_job(idempotency_key="k", digest=b"1", payload=b"1" * size) for size in (LARGE, 1))
    fill(shop)
    if begins:
        shop.execute("INSERT INTO orders VALUES (1)")

    with pytest.raises(sqlite3.OperationalError, match="full"):
        driver.join(shop).insert([large])
    shop.commit()

    assert driver.insert([small]) == [Enqueued(small.id, existed=False)]
    assert shop.execute("SELECT count(*) FROM orders").fetchone() == (int(begins),)


def test_a_settle_that_fails_leaves_no_outcome_if_its_caller_commits(
    driver: SqliteDriver, shop: sqlite3.Connection
) -> None:
    first, second = take(driver, 2)
    small, large = Outcome.ack(b"1"), Outcome.ack(b"1" * LARGE)
    fill(shop)
    shop.execute("INSERT INTO orders VALUES (1)")

    with pytest.raises(sqlite3.OperationalError, match="full"):
        driver.join(shop).settle([Settlement(first.lease, small), Settlement(second.lease, large)])
    shop.commit()

    assert {job.status for job in driver.inspector.get([first.job.id, second.job.id]).values()} == {Status.PROCESSING}


def test_a_job_is_stored_for_each_row_of_a_statement_that_still_runs(
    driver: SqliteDriver, shop: sqlite3.Connection
) -> None:
    joined, jobs = driver.join(shop), [new_job(), new_job()]

    for number, _ in enumerate(shop.execute("INSERT INTO orders VALUES (1), (2) RETURNING id")):
        joined.insert([jobs[number]])
    shop.commit()

    assert {*driver.inspector.get([job.id for job in jobs])} == {job.id for job in jobs}


@pytest.mark.parametrize("factory", [bytes, lambda text: text.decode().upper()])
def test_the_text_factory_of_a_connection_does_not_matter_and_is_kept(
    driver: SqliteDriver, shop: sqlite3.Connection, factory: Any
) -> None:
    [claim] = take(driver, 1)
    job, retry = new_job(idempotency_key="k", digest=b"1"), Outcome.retry(after=timedelta(1))
    shop.text_factory = factory

    joined = driver.join(shop)
    codec = joined.remember("codec", "json")
    inserted = [*joined.insert([job]), *joined.insert([new_job(idempotency_key="k", digest=b"1")])]
    settled = joined.settle([Settlement(claim.lease, retry)])
    shop.commit()

    assert codec == "json"
    assert inserted == [Enqueued(job.id, existed=False), Enqueued(job.id, existed=True)]
    assert settled == [Settled(claim.job.id, Status.FAILED)]
    assert shop.text_factory is factory
