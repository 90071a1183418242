"""Tests of recorded publishers across schema versions, and of retention of jobs with outbox events."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.schema import MIGRATIONS as SQLITE_MIGRATIONS
from taskharbor.drivers.sqlite.schema import SqliteSchema
from taskharbor.outbox import close_unpublished
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import TEN_YEARS, Subject
from tests.support.postgres import database, schema_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.drivers.base import Driver

NOON: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY: Final = timedelta(days=1)
EVENT: Final = """
    INSERT INTO th_outbox
           (job_id, life, type, queue, attempt_count, max_attempts, error, dead_at, next_at, attempts)
    VALUES ({job_id}, 1, 'greet', 'default', 1, 1, 'boom', {at}, {at}, {attempts})
"""


@pytest.fixture
def bare() -> Iterator[str]:
    with database(migrated=False) as url:
        yield url


def subject_on(driver: Driver, clock: ManualClock) -> Subject:
    def transaction() -> Iterator[None]:
        raise NotImplementedError

    return Subject(driver=driver, clock=clock, spend=None, transaction=transaction)  # type: ignore[arg-type]


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_postgres_event_claimed_before_the_migration_records_a_publisher(attempts: int, bare: str) -> None:
    migrate.migrate_up(schema_at(bare), MIGRATIONS[:1])
    with psycopg.connect(bare, autocommit=True) as db:
        db.execute(EVENT.format(job_id="gen_random_uuid()", at="now()", attempts=attempts).encode())

    migrate.migrate_up(schema_at(bare), MIGRATIONS)

    with closing(PostgresDriver(bare)) as driver:
        check(driver, is_seen=attempts > 0)


@pytest.mark.parametrize("attempts", [0, 1])
def test_an_sqlite_event_claimed_before_the_migration_records_a_publisher(attempts: int, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    migrate.migrate_up(SqliteSchema(file), SQLITE_MIGRATIONS[:1])
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute(EVENT.format(job_id="randomblob(16)", at=0, attempts=attempts))

    with closing(SqliteDriver(file)) as driver:
        check(driver, is_seen=attempts > 0)


def check(driver: Driver, *, is_seen: bool) -> None:
    seen_at, now = driver.inspector.publisher_seen_at(), driver.inspector.now()
    assert (seen_at is not None) == is_seen
    assert seen_at is None or timedelta(0) <= now - seen_at < timedelta(minutes=5)
    assert close_unpublished(driver, older_than=timedelta(0), limit=10) == (0 if is_seen else 1)


def test_a_daily_partition_is_dropped_once_its_last_event_is_closed() -> None:
    clock = ManualClock(NOON)
    with database() as url, closing(PostgresDriver(url, clock=clock)) as driver:
        driver.maintenance.roll_up(keep=TEN_YEARS)
        subject = subject_on(driver, clock)
        job_id = subject.bring(Status.DEAD, idempotency_key="once")
        subject.requeue(job_id)
        subject.settle(subject.take(), Outcome.ack())
        other = subject.bring(Status.SUCCEEDED)
        subject.advance(2 * DAY)
        held = driver.inspector.kept_by_events(older_than=DAY, limit=10)
        while driver.maintenance.prune(older_than=DAY, limit=10):
            pass
        kept = set(driver.inspector.get([job_id, other]))

        close_unpublished(driver, older_than=timedelta(0), limit=10)
        while driver.maintenance.prune(older_than=DAY, limit=10):
            pass

        assert held == [job_id]
        assert kept == {job_id}
        assert "th_jobs_finished_20300101" not in partitions(url)
        assert driver.inspector.get([job_id]) == {}
        assert driver.inspector.find_by_key("once") == []


def partitions(url: str) -> set[str]:
    with psycopg.connect(url) as db:
        return {name for (name,) in db.execute("SELECT relname FROM pg_class WHERE relname ~ '^th_jobs_finished_'")}


def test_an_event_that_another_transaction_holds_is_left_alone() -> None:
    with database() as url, closing(PostgresDriver(url, clock=(clock := ManualClock(NOON)))) as driver:
        driver.maintenance.roll_up(keep=TEN_YEARS)
        subject = subject_on(driver, clock)
        locked, free = (subject.bring(Status.DEAD) for _ in range(2))
        with psycopg.connect(url) as db:
            db.execute("SELECT FROM th_outbox WHERE job_id = %s FOR UPDATE", [locked])
            closed = close_unpublished(driver, older_than=timedelta(0), limit=10)

        assert closed == 1
        assert [row.is_done for row in driver.inspector.outbox([locked, free])] == [False, True]
