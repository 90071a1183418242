"""Conditions in the SQL of partitions that only a raw write or an older schema can test."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import psycopg
import pytest

from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Unpublished
from taskharbor.core.states import Status
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import Subject
from tests.drivers.postgres.test_retention import (
    DAY,
    NOON,
    TODAY,
    UNTIL_REMOVED,
    finish,
    ids_in,
    leaf_of,
    leaves,
    prune,
    roll_up,
    rows,
)
from tests.support.postgres import database

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def url() -> Iterator[str]:
    """Yield a separate database, because the test changes its tables."""
    with database() as url:
        yield url


@pytest.fixture
def day(url: str) -> Iterator[Subject]:
    """Yield a store at noon whose partitions exist."""
    with closing(PostgresDriver(url, clock=(clock := ManualClock(NOON)))) as driver:
        yield with_leaves(driver, clock)


def with_leaves(driver: PostgresDriver, clock: ManualClock) -> Subject:
    roll_up(made := Subject(driver=driver, clock=clock, spend=None, transaction=lambda: nullcontext(driver.insert)))
    prune(made)  # remove the days that the migration created
    return made


def test_a_table_of_another_schema_is_no_detached_day(day: Subject, url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute("CREATE SCHEMA other; CREATE TABLE other.th_jobs_finished_20000101 ()")
        db.execute("INSERT INTO th_pruning (leaf, is_detached) VALUES ('th_jobs_finished_20000101', true)")
    finish(day, 2)
    day.advance(UNTIL_REMOVED)

    assert prune(day) == 2


def test_later_jobs_in_the_default_partition_do_not_block_creating_earlier_days(day: Subject, url: str) -> None:
    day.advance(30 * DAY)
    [later] = finish(day, 1)
    assert ids_in(url, "th_jobs_finished_default") == {later}

    day.advance(-15 * DAY)
    roll_up(day)

    assert leaf_of(NOON + 15 * DAY) in leaves(url)


def test_a_job_whose_event_was_given_up_stays_in_its_day_when_that_is_detached(day: Subject, url: str) -> None:
    job_id = day.bring(Status.DEAD)
    given_up = [Unpublished(row.event.event_id, "no", None) for row in day.outbox(job_id)]
    assert day.driver.maintenance.settle_outbox(given_up) == [True]
    day.requeue(job_id)
    day.settle(day.take(), Outcome.ack())

    assert rows(url, f"SELECT th_detach_day('{TODAY}')") == [(True,)]

    assert ids_in(url, TODAY) == {job_id}
    assert ids_in(url, "th_jobs_finished_default") == set()


def test_events_of_other_jobs_do_not_keep_a_day_from_being_detached(day: Subject, url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute(
            """
            INSERT INTO th_outbox (job_id, life, type, queue, attempt_count, max_attempts, error, dead_at, next_at)
            SELECT gen_random_uuid(), 1, 'greet', 'default', 1, 1, 'boom', now(), now() FROM generate_series(1, 1001)
            """
        )
    finish(day, 3)
    day.advance(UNTIL_REMOVED)

    assert prune(day, limit=1) == 3
