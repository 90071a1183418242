"""Statements of retention and of the roll-up that take longer than the deadline, with and without a pooler."""

from __future__ import annotations

from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from taskharbor.core.states import Status
from taskharbor.drivers.postgres import PostgresDriver, partitions
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.retention import RETENTION
from tests.drivers.postgres.test_partitions import SHORT, as_subject, is_table, slow_down
from tests.drivers.postgres.test_retention import NOON, TODAY, UNTIL_REMOVED, count, finish, prune, publish, roll_up
from tests.support.pgbouncer import pooler
from tests.support.postgres import database, server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps
    from taskharbor.testing.conformance.subject import Subject


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture(params=["direct", "pooled"])
def slow(request: pytest.FixtureRequest, url: str, clock: ManualClock) -> Iterator[Subject]:
    """Yield a store with a short deadline."""
    with ExitStack() as stack:
        is_pooled = request.param == "pooled"
        if is_pooled:
            url = f"{stack.enter_context(pooler(server().url)).rpartition('/')[0]}/{url.rpartition('/')[2]}"
        driver = PostgresDriver(url, clock=clock, deadline=SHORT, is_pooled=is_pooled)
        yield as_subject(stack.enter_context(closing(driver)), clock)


def test_a_day_whose_removal_takes_longer_than_the_deadline_is_removed(slow: Subject, url: str) -> None:
    roll_up(slow)
    finish(slow, 2)
    slow.bring(Status.SUCCEEDED, idempotency_key="once")
    slow.advance(UNTIL_REMOVED)
    slow_down(url, "th_keys")

    assert prune(slow) == 3

    assert not is_table(url, TODAY)
    assert count(url, "th_keys") == 0


def test_dead_letters_whose_removal_takes_longer_than_the_deadline_are_purged(slow: Subject, url: str) -> None:
    job_id = slow.bring(Status.DEAD)
    publish(slow, job_id)
    slow.advance(UNTIL_REMOVED)
    slow_down(url, "th_attempts")

    assert slow.driver.maintenance.purge(older_than=RETENTION, limit=1) == 1


def test_tallies_whose_roll_up_takes_longer_than_the_deadline_are_counted(slow: Subject, url: str) -> None:
    slow.insert()
    slow_down(url, "th_waiting_tallies")

    roll_up(slow)

    assert [each.counts[Status.PENDING] for each in slow.driver.inspector.queues()] == [1]
    assert count(url, "th_waiting_tallies") == 0


def test_a_roll_up_is_left_to_the_process_that_makes_one(slow: Subject, url: str) -> None:
    slow.insert()
    with psycopg.connect(url) as db:
        db.execute("LOCK TABLE th_living IN SHARE ROW EXCLUSIVE MODE")

        roll_up(slow)

    assert count(url, "th_waiting_tallies") == 1
    roll_up(slow)
    assert count(url, "th_waiting_tallies") == 0


def connections_of(subject: Subject) -> PostgresPool:
    found: PostgresPool = subject.driver._connections  # type: ignore[attr-defined]  # noqa: SLF001  not part of the API
    return found


def test_a_retention_statement_has_the_usual_settings_except_for_its_timeout(slow: Subject) -> None:
    def settings() -> Steps[list[Row]]:
        names = ("statement_timeout", "lock_timeout", "enable_seqscan", "plan_cache_mode")
        shown = ", ".join(f"current_setting('{name}')" for name in names)
        return (yield f"SELECT {shown}", {})

    [found] = partitions.transact(connections_of(slow), settings, timeout=timedelta(minutes=3))

    assert found == ("3min", "1s", "off", "force_generic_plan")


def test_statements_after_a_retention_statement_have_the_usual_deadline(slow: Subject) -> None:
    roll_up(slow)
    finish(slow, 1)
    slow.advance(UNTIL_REMOVED)
    assert prune(slow) == 1

    with connections_of(slow).connection() as db:
        assert db.reply_timeout_seconds == pytest.approx(SHORT.total_seconds() * 1.25)
    [(limit,)] = connections_of(slow).fetch("SELECT current_setting('statement_timeout')")
    assert limit == "2s"
