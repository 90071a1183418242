"""The gauges of a store: what they are read from, and what they show without an answer."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from taskharbor.core.ids import new_token
from taskharbor.core.model import WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.store_metrics import StoreGauges
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import new_job
from tests.support.postgres import database
from tests.support.waiting import wait_until
from tests.support.worker_rig import Outage, meddled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.drivers.base import Driver

NOON: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
DAY: Final = timedelta(days=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def driver(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Driver]:
    if request.param == "memory":
        yield MemoryDriver(clock=clock)
    elif request.param == "sqlite":
        with closing(SqliteDriver(tmp_path / "jobs.db", clock=clock, synchronous="NORMAL")) as made:
            yield made
    else:
        with database() as url, closing(PostgresDriver(url, clock=clock)) as made:
            yield made


def samples(driver: Driver) -> dict[str, float]:
    """Return the gauges, by name and label values."""
    registry = CollectorRegistry()
    StoreGauges(lambda: driver.inspector, registry)
    return {
        " ".join([sample.name.removeprefix("taskharbor_"), *sample.labels.values()]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def fill(driver: Driver, clock: ManualClock) -> None:
    """Store two waiting jobs, one of them in a paused queue, and two dead ones; record two workers."""
    driver.insert([new_job(queue="mail", created_at=NOON) for _ in range(3)])
    claims = driver.reserve("mail", token=new_token(), worker="w", lease=DAY, limit=2, overdue_after=DAY)
    driver.settle([Settlement(claim.lease, Outcome.fail("no")) for claim in claims])
    driver.insert([new_job(queue="reports", created_at=NOON)])
    driver.control.pause(["reports"], by="ops")
    for name in ("silent", "w"):
        record = WorkerRecord(
            id=name, host="h", pid=1, queues=("mail",), types=("greet",), concurrency=1, started_at=NOON
        )
        driver.maintenance.record_worker(record)
        clock.advance(MINUTE if name == "silent" else timedelta(seconds=1))
    driver.maintenance.roll_up(keep=DAY)


def test_the_gauges_are_those_of_the_store(driver: Driver, clock: ManualClock) -> None:
    fill(driver, clock)

    found = samples(driver)

    assert found.pop("store_read_seconds") >= 0
    assert {name: value for name, value in found.items() if value} == {
        "jobs mail PENDING": 1,
        "jobs mail DEAD": 2,
        "jobs reports PENDING": 1,
        "dead_letters mail": 2,
        "queue_oldest_due_seconds mail": 61,
        "queue_oldest_due_seconds reports": 61,
        "queue_paused reports": 1,
        "workers": 1,
        "outbox_pending": 2,
        "store_up": 1,
    }
    assert {f"jobs mail {status}" for status in Status} <= {*found}
    assert (found["dead_letters reports"], found["queue_paused mail"]) == (0, 0)


def test_an_unavailable_store_exports_only_that() -> None:
    outage = Outage()
    outage.begin()

    assert samples(meddled(MemoryDriver(), outage)) == {"store_up": 0}


def test_queues_beyond_the_limit_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.store_metrics.MAX_QUEUES", 2)
    clock = ManualClock(NOON)
    driver = MemoryDriver(clock=clock)
    for number, queue in enumerate("abcd"):
        driver.insert([new_job(queue=queue, created_at=NOON) for _ in range(number + 1)])
        clock.advance(MINUTE)
    driver.control.pause(["c", "d"], by="ops")
    driver.maintenance.roll_up(keep=DAY)

    found = samples(driver)

    assert (found["jobs a PENDING"], found["jobs b PENDING"], found["jobs other PENDING"]) == (1, 2, 7)
    assert (found["queue_oldest_due_seconds other"], found["queue_paused other"]) == (120, 2)


def test_a_scrape_reads_aggregates_only() -> None:
    with database() as url, psycopg.connect(url, autocommit=True) as db:
        with closing(PostgresDriver(url)) as driver:
            driver.insert([new_job(queue=f"queue-{number % 3}") for number in range(3_000)])
            driver.maintenance.roll_up(keep=DAY)
        db.execute("ANALYZE")
        before = rows_read(db)
        with closing(PostgresDriver(url)) as driver:
            found = samples(driver)
        after = rows_read(db)

    assert found["jobs queue-0 PENDING"] == 1_000
    assert after - before < 100


def rows_read(db: psycopg.Connection[Any]) -> int:
    """Return how many rows of jobs and events were read, by sessions that have ended: they report that at their end."""
    others = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    wait_until(lambda: not db.execute(others).fetchall())
    [(count,)] = db.execute(
        "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) FROM pg_stat_user_tables"
        " WHERE relname LIKE 'th_jobs%' OR relname LIKE 'th_outbox%'"
    ).fetchall()
    return int(count)
