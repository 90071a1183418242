"""Query plans: frequent statements use index lookups regardless of statistics, without scans or sorts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor.core.ids import new_token
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from tests.support.postgres import database
from tests.support.query_plans import MANY, Ran, all_day, fill, leave_statistics_alone, vacuum, watched

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE: Final = 100_000
HISTORIES: Final = [
    "never analyzed",
    "vacuumed when empty",
    "vacuumed when all rows were dead but visible to a snapshot",
]

Faults = dict[str, list[str]]


@pytest.fixture(params=HISTORIES)
def empty(request: pytest.FixtureRequest) -> Iterator[str]:
    with database() as url:
        prepare(url, request.param)
        yield url


@pytest.fixture(scope="module", params=HISTORIES)
def full(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """Fill tables with outdated statistics, and return the bad plans of each phase."""
    with database() as url:
        prepare(url, request.param)
        yield faults_in_each_phase(url, SIZE)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_table_is_scanned_while_there_are_few_jobs(empty: str, *, asynchronous: bool) -> None:
    with watched(empty, claims_asynchronously=asynchronous) as watching:
        all_day(watching)
        all_day(watching)

        assert watching.faults() == []


def test_plans_made_on_empty_tables_are_good_on_full_ones(full: Faults) -> None:
    assert full["planned on empty tables"] == []


def test_plans_made_on_full_tables_are_good_without_statistics(full: Faults) -> None:
    assert full["planned on full tables"] == []


def test_plans_made_on_full_tables_are_good_with_statistics(full: Faults) -> None:
    assert full["planned after ANALYZE"] == []


def test_reserve_reads_as_many_pages_after_100_000_finished_jobs() -> None:
    with database() as url:
        leave_statistics_alone(url)
        before = reserved(url)
        fill_with_finished_jobs(url)
        after = reserved(url)

    assert after.buffers <= 1.02 * before.buffers
    assert before.buffers / 100 < 15


def prepare(url: str, history: str) -> None:
    leave_statistics_alone(url)
    if history == HISTORIES[1]:
        vacuum(url)
    if history == HISTORIES[2]:
        fill(url, MANY)
        vacuum_under_an_old_snapshot(url)


def vacuum_under_an_old_snapshot(url: str) -> None:
    """Leave tables that have many pages but no rows according to their statistics."""
    with psycopg.connect(url) as old, psycopg.connect(url, autocommit=True) as db:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT FROM th_queues")
        for table in (
            "th_jobs",
            "th_attempts",
            "th_attempt_logs",
            "th_keys",
            "th_outbox",
            "th_audit",
            "th_dead_tallies",
        ):
            db.execute(f"DELETE FROM {table}".encode())
        vacuum(url)


def faults_in_each_phase(url: str, size: int) -> Faults:
    with watched(url) as early, watched(url) as late, watched(url) as informed:
        all_day(early)
        early.ran.clear()
        fill(url, size)
        for watching in (early, late):
            all_day(watching)
        vacuum(url)
        all_day(informed)
        return {
            "planned on empty tables": early.faults(),
            "planned on full tables": late.faults(),
            "planned after ANALYZE": informed.faults(),
        }


def reserved(url: str) -> Ran:
    """Return the third execution of reserving 100 of 1,000 jobs in a session."""
    with watched(url) as watching:
        watching.driver.insert([new_job() for _ in range(1_000)])
        for _ in range(3):
            watching.run(
                "reserve",
                lambda: watching.driver.reserve(
                    "default", token=new_token(), worker="worker", lease=LEASE, limit=100, overdue_after=OVERDUE_AFTER
                ),
            )
        return watching.ran[-1]


def fill_with_finished_jobs(url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute("DELETE FROM th_jobs")
        db.execute(
            """
            INSERT INTO th_jobs (id, type, queue, priority, status, scheduled_for, created_at, attempt_count,
                                 max_attempts, payload, completed_at)
            SELECT gen_random_uuid(), 'greet', 'default', 0, 'SUCCEEDED', now(), now(), 1, 3, '{}', now()
              FROM generate_series(1, %s)
            """,
            [SIZE],
        )
    vacuum(url)
