"""Log lines of attempts on a schema that has no table for them yet, and after its migration."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.attempt_logs import log_of
from tests.support.driver_calls import queue_of, reserve
from tests.support.postgres import PREVIOUS, database

if TYPE_CHECKING:
    from taskharbor.core.model import Claim


def finished(driver: PostgresDriver, **fields: Any) -> Claim:
    """Run a job."""
    queue_of(driver, **fields)
    [claim] = reserve(driver, limit=1)
    driver.settle([Settlement(claim.lease, Outcome.ack())])
    return claim


def test_a_process_from_before_the_migration_removes_lines_with_their_jobs() -> None:
    clock = ManualClock()
    with database(version=PREVIOUS) as url, closing(PostgresDriver(url, clock=clock)) as early:
        claim = finished(early)
        with pytest.raises(SchemaOutOfDate, match="taskharbor migrate up"):
            early.attempt_logs.save([log_of(claim, "early")], keep=1)
        with pytest.raises(SchemaOutOfDate, match="taskharbor migrate up"):
            early.attempt_logs.read([claim.job.id])

        with closing(PostgresDriver(url, clock=clock)) as late:
            late.migrate()
            assert late.attempt_logs.save([log_of(claim, "late")], keep=1) == [True]
        clock.advance(timedelta(days=3))
        while early.maintenance.prune(older_than=timedelta(days=1), limit=10):
            pass

        with psycopg.connect(url) as db:
            assert db.execute("SELECT count(*) FROM th_attempt_logs").fetchone() == (0,)


def test_lines_are_removed_with_the_day_of_their_jobs() -> None:
    clock = ManualClock()
    with database() as url, closing(PostgresDriver(url, clock=clock)) as driver:
        driver.maintenance.roll_up(keep=timedelta(days=1))  # makes the days
        logs = [log_of(finished(driver, idempotency_key=key), "mine") for key in (None, "key")]
        assert driver.attempt_logs.save(logs, keep=1) == [True, True]
        with psycopg.connect(url) as db:
            leaves = db.execute("SELECT DISTINCT tableoid::regclass::text FROM th_jobs_finished").fetchall()
        clock.advance(timedelta(days=3))
        while driver.maintenance.prune(older_than=timedelta(days=1), limit=10):
            pass

        assert leaves == [(f"th_jobs_finished_{clock.now() - timedelta(days=3):%Y%m%d}",)]
        with psycopg.connect(url) as db:
            assert db.execute("SELECT count(*) FROM th_attempt_logs").fetchone() == (0,)
