"""Removal of a day of finished jobs in short steps, by any process."""

from __future__ import annotations

from contextlib import closing, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor.core.ids import new_job_id
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.drivers.postgres import PostgresDriver, partitions
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.retention import RETENTION
from taskharbor.testing.conformance.subject import Subject
from tests.drivers.postgres.test_retention import (
    NOON,
    TODAY,
    UNTIL_REMOVED,
    count,
    finish,
    ids_in,
    leaves,
    prune,
    roll_up,
    rows,
)
from tests.support.postgres import database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


SHORT: Final = timedelta(seconds=2)
SLOW_DELETE_SECONDS: Final = 2.7
"""Longer than the reply timeout of a client with the deadline SHORT."""
NO_TIME: Final = timedelta(0)
MAX_STEPS: Final = 20
"""More than a day of eight jobs takes in steps of two."""


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def subject(url: str, clock: ManualClock) -> Iterator[Subject]:
    with closing(PostgresDriver(url, clock=clock)) as driver:
        roll_up(made := as_subject(driver, clock))
        prune(made)  # remove the days that the migration created
        yield made


def as_subject(driver: PostgresDriver, clock: ManualClock) -> Subject:
    return Subject(driver=driver, clock=clock, spend=None, transaction=lambda: nullcontext(driver.insert))


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "SCAN_BATCH", 2)


def busy_day(subject: Subject) -> int:
    """Finish eight jobs, two with a key and two with a failed attempt, and advance past their retention."""
    for number in range(2):
        finish(subject, 2)
        subject.bring(Status.SUCCEEDED, idempotency_key=f"key {number}")
        subject.bring(Status.FAILED)
        subject.settle(subject.take(), Outcome.ack())
    subject.advance(UNTIL_REMOVED)
    return 8


def orphans(url: str) -> int:
    """Return the number of keys and attempts whose job does not exist."""
    query = """
        SELECT job_id FROM th_keys WHERE job_id NOT IN (SELECT id FROM th_jobs)
        UNION ALL
        SELECT job_id FROM th_attempts WHERE job_id NOT IN (SELECT id FROM th_jobs)
    """
    return len(rows(url, query))


def is_table(url: str, name: str) -> bool:
    [(found,)] = rows(url, f"SELECT to_regclass('{name}') IS NOT NULL")
    return bool(found)


def prune_a_step(subject: Subject) -> int:
    return subject.driver.maintenance.prune(older_than=RETENTION, limit=1_000, within=NO_TIME)


def prune_until(subject: Subject, is_true: Callable[[], bool]) -> None:
    for _ in range(MAX_STEPS):
        if is_true():
            return
        prune_a_step(subject)
    pytest.fail("the condition never became true")


def is_detached(url: str) -> bool:
    return TODAY not in attached(url) and is_table(url, TODAY)


def attached(url: str) -> set[str]:
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'th_jobs_finished'::regclass"
    return {name for (name,) in rows(url, query)}


@pytest.mark.usefixtures("_small_steps")
def test_a_day_is_removed_in_bounded_calls_by_different_processes(
    subject: Subject, url: str, clock: ManualClock
) -> None:
    jobs, removed = busy_day(subject), []

    for _ in range(MAX_STEPS):
        with closing(PostgresDriver(url, clock=clock)) as driver:
            removed.append(prune_a_step(as_subject(driver, clock)))
        assert orphans(url) == 0  # a key and its job are removed together
        if not is_table(url, TODAY):
            break

    assert sum(removed) == jobs
    assert len(removed) <= jobs / 2 + 1 + jobs / 2 + 1  # two scans in steps of two jobs, the detaching, and the drop
    assert [count(url, table) for table in ("th_keys", "th_attempts", "th_pruning")] == [0, 0, 0]
    assert not any(sum(queue.counts.values()) for queue in subject.queues())


@pytest.mark.usefixtures("_small_steps")
def test_each_call_removes_no_more_jobs_row_by_row_than_its_limit(subject: Subject, url: str) -> None:
    busy_day(subject)

    removed = [subject.driver.maintenance.prune(older_than=RETENTION, limit=1) for _ in range(4)]

    assert removed == [1, 1, 1, 1]
    assert (count(url, "th_keys"), count(url, "th_attempts")) == (0, 0)
    assert prune(subject, limit=1) == 4  # with the whole day


def slow_down(url: str, table: str) -> None:
    with psycopg.connect(url) as db:
        db.execute(
            f"""
            CREATE FUNCTION slow_down() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_sleep({SLOW_DELETE_SECONDS});
                RETURN OLD;
            END
            $$;
            CREATE TRIGGER slow BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION slow_down();
            """.encode()
        )


@pytest.mark.usefixtures("_small_steps")
def test_a_job_that_enters_a_day_behind_the_scan_leaves_no_key_behind(
    subject: Subject, url: str, clock: ManualClock
) -> None:
    late = new_job_id()  # created first and finished last: it is behind the position of the scan
    busy_day(subject)
    prune_until(subject, lambda: count(url, "th_keys") == 0)
    clock.advance(-UNTIL_REMOVED)
    subject.insert(id=late, idempotency_key="late")
    subject.settle(subject.take(), Outcome.ack())
    clock.advance(UNTIL_REMOVED)
    assert late in ids_in(url, TODAY)

    prune_until(subject, lambda: not is_table(url, TODAY))

    assert subject.driver.inspector.get([late]) == {}
    assert (orphans(url), count(url, "th_keys")) == (0, 0)
    assert not any(sum(queue.counts.values()) for queue in subject.queues())


def test_a_detached_day_is_emptied_and_dropped_while_others_read_finished_jobs(subject: Subject, url: str) -> None:
    finish(subject, 3)
    subject.advance(UNTIL_REMOVED)
    prune_until(subject, lambda: is_detached(url))

    with psycopg.connect(url) as reader:
        reader.execute("SELECT FROM th_jobs_finished")

        assert prune(subject) == 3
        assert not is_table(url, TODAY)


def test_a_day_that_another_process_prunes_is_skipped(subject: Subject, url: str) -> None:
    finish(subject, 3)
    subject.advance(timedelta(days=1))
    finish(subject, 2)
    subject.advance(UNTIL_REMOVED)
    prune_a_step(subject)
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM th_pruning WHERE leaf = %s FOR UPDATE", [TODAY])

        assert prune(subject) == 2

    assert prune(subject) == 3


def test_a_day_that_was_detached_manually_is_skipped(subject: Subject, url: str) -> None:
    job_ids = finish(subject, 3)
    subject.advance(timedelta(days=1))
    finish(subject, 2)
    subject.advance(UNTIL_REMOVED)
    prune_a_step(subject)
    with psycopg.connect(url) as db:
        db.execute(f"ALTER TABLE th_jobs_finished DETACH PARTITION {TODAY}".encode())

    assert prune(subject) == 2
    assert ids_in(url, TODAY) == set(job_ids)


def test_a_detached_day_that_was_dropped_manually_does_not_block_other_days(subject: Subject, url: str) -> None:
    finish(subject, 3)
    subject.advance(UNTIL_REMOVED)
    prune_until(subject, lambda: is_detached(url))
    with psycopg.connect(url) as db:
        db.execute(f"DROP TABLE {TODAY}".encode())
    roll_up(subject)
    finish(subject, 2)
    subject.advance(UNTIL_REMOVED + timedelta(days=1))

    assert prune(subject) == 2


def test_if_many_jobs_of_a_day_must_stay_others_are_removed_individually(subject: Subject, url: str) -> None:
    finish(subject, 3)
    with psycopg.connect(url) as db:
        db.execute(MANY_WITH_EVENTS.encode())
    subject.advance(UNTIL_REMOVED)

    assert [prune(subject, limit=2) for _ in range(3)] == [2, 1, 0]
    assert len(ids_in(url, TODAY)) == 1_001

    with psycopg.connect(url) as db:
        db.execute("UPDATE th_outbox SET published_at = now()")
    assert sum(prune(subject) for _ in range(3)) == 1_001
    assert TODAY not in leaves(url)
    assert count(url, "th_outbox") == 0


MANY_WITH_EVENTS: Final = """
    INSERT INTO th_jobs (id, type, queue, priority, status, scheduled_for, created_at, max_attempts, completed_at,
                         payload)
    SELECT gen_random_uuid(), 'greet', 'default', 0, 'SUCCEEDED', '2030-01-01', '2030-01-01', 1, '2030-01-01', ''
      FROM generate_series(1, 1001);
    INSERT INTO th_outbox (job_id, life, type, queue, attempt_count, max_attempts, error, dead_at, next_at)
    SELECT job.id, 1, 'greet', 'default', 1, 1, 'boom', '2030-01-01', '2030-01-01'
      FROM th_jobs_finished AS job
     WHERE job.type = 'greet'
       AND job.payload = '';
"""
