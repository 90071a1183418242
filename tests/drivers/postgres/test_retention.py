"""Retention: old days of finished jobs are removed as a whole, with their keys, attempts and events."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import pytest

from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Published, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.retention import DAYS_AHEAD
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.retention import RETENTION
from taskharbor.testing.conformance.subject import TEN_YEARS, TICK, Subject, new_job
from tests.support.postgres import database, schema_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Insert

T = TypeVar("T")

DAY: Final = timedelta(days=1)
NOON: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
TODAY: Final = "th_jobs_finished_20300101"
UNTIL_REMOVED: Final = DAY / 2 + RETENTION  # from noon: the last job of a day ends at midnight
MAX_REMOVED: Final = 1_000
THREADS: Final = 8


@pytest.fixture
def url() -> Iterator[str]:
    with database() as url:
        yield url


@pytest.fixture
def subject(url: str) -> Iterator[Subject]:
    """Yield a store at noon whose partitions exist."""
    clock = ManualClock(NOON)
    with closing(PostgresDriver(url, clock=clock)) as driver:

        @contextmanager
        def transaction() -> Iterator[Insert]:
            with psycopg.connect(url) as db:
                yield driver.join(db).insert

        roll_up(made := Subject(driver=driver, clock=clock, spend=None, transaction=transaction))
        yield made


def test_a_day_is_removed_whole_despite_the_limit(subject: Subject, url: str) -> None:
    job_ids = [*finish(subject, 5), subject.bring(Status.CANCELED)]
    assert ids_in(url, TODAY) == set(job_ids)
    subject.advance(UNTIL_REMOVED)

    assert prune(subject, limit=1) == 6  # the limit applies to jobs removed row by row

    assert TODAY not in leaves(url)
    assert subject.driver.inspector.get(job_ids) == {}


def test_a_day_is_kept_until_the_retention_of_its_last_job_ends(subject: Subject, url: str) -> None:
    subject.advance(DAY / 2 - TICK)
    [job_id] = finish(subject, 1)
    subject.advance(RETENTION)

    assert prune(subject) == 0
    assert ids_in(url, TODAY) == {job_id}
    subject.advance(TICK)
    assert prune(subject) == 1


def test_younger_days_are_not_removed(subject: Subject) -> None:
    finish(subject, 1)
    subject.advance(DAY)
    [younger] = finish(subject, 1)
    subject.advance(UNTIL_REMOVED - DAY)

    assert prune(subject) == 1
    assert set(subject.driver.inspector.get([younger])) == {younger}


def test_empty_days_are_removed(subject: Subject, url: str) -> None:
    subject.advance(UNTIL_REMOVED + DAYS_AHEAD * DAY)

    assert prune(subject) == 0
    assert [each for each in leaves(url) if each.startswith("th_jobs_finished_2030")] == []


def test_keys_and_attempts_are_removed_with_their_day(subject: Subject, url: str) -> None:
    finish(subject, 2)
    subject.bring(Status.SUCCEEDED, idempotency_key="once")
    subject.bring(Status.FAILED)
    subject.settle(subject.take(), Outcome.ack())
    subject.advance(UNTIL_REMOVED)

    assert prune(subject) == 4

    assert TODAY not in leaves(url)
    assert [count(url, table) for table in ("th_keys", "th_attempts")] == [0, 0]
    job = new_job(idempotency_key="once")
    assert subject.driver.insert([job]) == [Enqueued(job.id, existed=False)]


def test_a_job_with_an_unpublished_event_stays_when_its_day_is_removed(subject: Subject, url: str) -> None:
    died = subject.bring(Status.DEAD)
    subject.requeue(died)
    subject.settle(subject.take(), Outcome.ack())
    finish(subject, 3)
    subject.advance(UNTIL_REMOVED)

    assert prune(subject) == 3
    assert TODAY not in leaves(url)
    assert ids_in(url, "th_jobs_finished_default") == {died}
    [kept] = subject.driver.inspector.get([died]).values()
    assert (kept.status, kept.completed_at) == (Status.SUCCEEDED, NOON)

    publish(subject, died)
    assert prune(subject) == 1
    assert subject.everything(died) == ({}, [], [])


def test_dead_letters_stay_until_they_are_purged(subject: Subject, url: str) -> None:
    job_ids = [subject.bring(Status.DEAD) for _ in range(3)]
    for job_id in job_ids:
        publish(subject, job_id)
    subject.advance(UNTIL_REMOVED)

    assert prune(subject) == 0
    assert ids_in(url, "th_jobs_dead") == set(job_ids)
    assert [subject.driver.maintenance.purge(older_than=RETENTION, limit=2) for _ in range(3)] == [2, 1, 0]


def test_the_migration_creates_days_seven_ahead() -> None:
    with database(migrated=False) as url:
        migrate.migrate_up(schema_at(url), MIGRATIONS)

        [(today,)] = rows(url, "SELECT (applied_at AT TIME ZONE 'UTC')::date FROM th_migrations WHERE number = 1")
        assert leaves(url) == [leaf_of(today + n * DAY) for n in range(DAYS_AHEAD + 1)]


def test_each_roll_up_creates_days_seven_ahead(subject: Subject, url: str) -> None:
    subject.advance(3 * DAY)

    roll_up(subject)

    made = [each for each in leaves(url) if each >= TODAY]
    assert made == [leaf_of(NOON + n * DAY) for n in range(DAYS_AHEAD + 1 + 3)]


def test_jobs_without_a_partition_are_stored_and_removed_in_batches(subject: Subject, url: str) -> None:
    subject.advance(10 * DAY)

    job_ids = finish(subject, 5)

    assert ids_in(url, "th_jobs_finished_default") == set(job_ids)
    subject.advance(RETENTION - TICK)
    assert prune(subject, limit=2) == 0
    subject.advance(TICK)
    assert [prune(subject, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_roll_up_after_ten_days_creates_the_coming_days(subject: Subject, url: str) -> None:
    subject.advance(10 * DAY)
    finish(subject, 1)

    roll_up(subject)

    # The tenth day has jobs in the default partition, so no partition can be created for it.
    made = [each for each in leaves(url) if each > leaf_of(NOON + DAYS_AHEAD * DAY)]
    assert made == [leaf_of(NOON + n * DAY) for n in range(11, 10 + DAYS_AHEAD + 1)]
    subject.advance(DAY)
    [job_id] = finish(subject, 1)
    assert ids_in(url, leaf_of(NOON + 11 * DAY)) == {job_id}


def test_a_day_that_is_being_read_is_removed_by_the_next_call(subject: Subject, url: str) -> None:
    job_ids = finish(subject, 2)
    subject.advance(UNTIL_REMOVED)

    with psycopg.connect(url) as reader:
        reader.execute(f"SELECT FROM {TODAY}".encode())
        start = time.monotonic()
        while_read = prune(subject)
        waited = time.monotonic() - start
        assert ids_in(url, TODAY) == set(job_ids)
        [view] = subject.queues()

    assert (while_read, view.counts[Status.SUCCEEDED]) == (0, 2)
    assert waited < 4
    assert prune(subject) == 2
    assert TODAY not in leaves(url)


def test_counts_are_updated_while_a_reader_blocks_the_creation_of_days(subject: Subject, url: str) -> None:
    subject.advance(2 * DAY)
    finish(subject, 2)

    with psycopg.connect(url) as reader:
        reader.execute("SELECT FROM th_jobs_finished")
        [view] = subject.queues()

    assert view.counts[Status.SUCCEEDED] == 2
    assert leaf_of(NOON + (DAYS_AHEAD + 2) * DAY) not in leaves(url)
    roll_up(subject)
    assert leaf_of(NOON + (DAYS_AHEAD + 2) * DAY) in leaves(url)


def test_concurrent_roll_ups_all_find_the_days_created(subject: Subject, url: str) -> None:
    all_at_once(lambda: roll_up(subject))  # connect all threads first
    subject.advance(10 * DAY)

    all_at_once(lambda: roll_up(subject))

    made = [each for each in leaves(url) if each >= leaf_of(NOON + 10 * DAY)]
    assert made == [leaf_of(NOON + n * DAY) for n in range(10, 10 + DAYS_AHEAD + 1)]


def test_pruning_does_not_make_settle_fail(subject: Subject, url: str) -> None:
    for _ in range(DAYS_AHEAD):
        finish(subject, 1)
        subject.advance(DAY)
    subject.advance(RETENTION)
    roll_up(subject)
    batches = [take(subject, 10) for _ in range(15)]

    with ThreadPoolExecutor() as pool:
        pruned = pool.submit(lambda: [prune(subject) for _ in range(10)])
        answers = [answer for batch in batches for answer in subject.driver.settle(batch)]

        assert sum(pruned.result()) == DAYS_AHEAD
    assert {type(answer) for answer in answers} == {Settled}
    assert [each for each in leaves(url) if each < leaf_of(NOON + DAYS_AHEAD * DAY)] == []


def test_concurrent_prunes_count_each_job_once(subject: Subject) -> None:
    finish(subject, 3)
    subject.bring(Status.SUCCEEDED, idempotency_key="once")
    subject.advance(UNTIL_REMOVED)

    all_at_once(subject.driver.inspector.now)  # connect all threads first

    pruned = all_at_once(lambda: prune(subject))

    assert sum(pruned) + prune(subject) == 4
    assert subject.queues() == []


def test_pruned_jobs_leave_the_counts_but_not_the_finished_minutes(subject: Subject) -> None:
    finish(subject, 3)
    subject.bring(Status.SUCCEEDED, idempotency_key="once")
    subject.bring(Status.CANCELED)
    [before] = subject.queues()
    subject.advance(DAY)
    finish(subject, 2)
    subject.advance(UNTIL_REMOVED - DAY)

    prune(subject)

    [after] = subject.queues()
    assert (before.counts[Status.SUCCEEDED], before.counts[Status.CANCELED]) == (4, 1)
    assert (after.counts[Status.SUCCEEDED], after.counts[Status.CANCELED]) == (2, 0)
    ended = [(each.minute, each.status, each.count) for each in subject.finished(since=NOON - DAY)]
    assert ended == [
        (NOON, Status.CANCELED, 1),
        (NOON, Status.SUCCEEDED, 4),
        (NOON + DAY, Status.SUCCEEDED, 2),
    ]


def test_a_prune_without_time_runs_one_step(subject: Subject, url: str) -> None:
    prune(subject, limit=MAX_REMOVED)  # remove the days that the migration created
    finish(subject, 3)
    subject.advance(UNTIL_REMOVED)

    removed = []
    while TODAY in leaves(url):
        removed.append(subject.driver.maintenance.prune(older_than=RETENTION, limit=MAX_REMOVED, within=timedelta(0)))

    assert removed == [0, 0, 3, 0]  # scan, detach, count, drop


def all_at_once(call: Callable[[], T]) -> list[T]:
    start = Barrier(THREADS)

    def at_once(_: int) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(at_once, range(THREADS))]


def finish(subject: Subject, jobs: int) -> list[JobId]:
    settlements = take(subject, jobs)
    subject.driver.settle(settlements)
    return [each.lease.job_id for each in settlements]


def take(subject: Subject, jobs: int) -> list[Settlement]:
    """Insert and reserve jobs, and return settlements that acknowledge them."""
    subject.driver.insert([new_job() for _ in range(jobs)])
    claims = subject.reserve(limit=jobs, lease=TEN_YEARS)
    assert len(claims) == jobs
    return [Settlement(claim.lease, Outcome.ack()) for claim in claims]


def prune(subject: Subject, *, limit: int = MAX_REMOVED) -> int:
    return subject.driver.maintenance.prune(older_than=RETENTION, limit=limit)


def roll_up(subject: Subject) -> None:
    subject.driver.maintenance.roll_up(keep=TEN_YEARS)


def publish(subject: Subject, job_id: JobId) -> None:
    subject.driver.maintenance.settle_outbox([Published(row.event.event_id) for row in subject.outbox(job_id)])


def leaf_of(day: datetime) -> str:
    return f"th_jobs_finished_{day:%Y%m%d}"


def leaves(url: str) -> Sequence[str]:
    """Return the partitions of days, oldest first."""
    found = rows(url, "SELECT relname FROM pg_class WHERE relname ~ '^th_jobs_finished_[0-9]+$' ORDER BY 1")
    return [name for (name,) in found]


def ids_in(url: str, leaf: str) -> set[JobId]:
    return {job_id for (job_id,) in rows(url, f"SELECT id FROM {leaf}")}


def count(url: str, table: str) -> int:
    [(found,)] = rows(url, f"SELECT count(*) FROM {table}")
    return int(found)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(query.encode()).fetchall()
