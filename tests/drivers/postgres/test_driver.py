"""Behavior of the PostgreSQL driver beyond the driver contract."""

from __future__ import annotations

import gc
import multiprocessing
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.rows import dict_row

from taskharbor import Client, JobRequest
from taskharbor.core.errors import IdempotencyConflict, StoreUnavailable, UsageError
from taskharbor.core.ids import new_token
from taskharbor.core.model import Progress
from taskharbor.core.results import Enqueued, Expired, Extended, JobFilter, Skipped
from taskharbor.core.states import Status
from taskharbor.drivers import backlogs, migrate
from taskharbor.drivers.backlogs import position_of
from taskharbor.drivers.postgres import PostgresDriver, scans
from taskharbor.drivers.postgres.insert import MIN_COPY_JOBS
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.races import race
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.postgres import database, emptied, schema_at
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim, Job, NewJob
    from taskharbor.drivers.backlogs import Position

SHORT: Final = timedelta(seconds=1)
NONE: Final = timedelta(0)
FORK: Final = multiprocessing.get_context("fork")


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(url)) as driver:
        yield driver


def reserve(driver: PostgresDriver, *, limit: int = 1, lease: timedelta = LEASE) -> list[Claim]:
    token = new_token()
    return driver.reserve("default", token=token, worker="w", lease=lease, limit=limit, overdue_after=OVERDUE_AFTER)


def insert_some(driver: PostgresDriver, count: int) -> None:
    for _ in range(count):
        driver.insert([new_job()])


def jobs_of(driver: PostgresDriver) -> dict[JobId, Job]:
    return driver.inspector.get([job.id for job in driver.inspector.find(JobFilter(), limit=100_000).jobs])


def test_a_driver_made_before_a_fork_works_on_both_sides_of_it(driver: PostgresDriver) -> None:
    driver.insert([new_job()])
    child = FORK.Process(target=use_and_close, args=(driver, 20))

    child.start()
    insert_some(driver, 20)
    child.join(LIMIT_SECONDS)

    assert child.exitcode == 0
    assert len(jobs_of(driver)) == 41


def use_and_close(driver: PostgresDriver, count: int) -> None:
    """Use the inherited driver from several threads; exit with an error if connections are not closed."""
    unraisable: list[Any] = []
    sys.unraisablehook = unraisable.append
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(insert_some, [driver] * 4, [count // 4] * 4))
    driver.close()
    gc.collect()
    if unraisable:
        sys.exit(f"{unraisable}")


def test_a_child_uses_no_connection_of_its_parent(url: str) -> None:
    with closing(PostgresDriver(url, size=1)) as driver:
        driver.inspector.now()
        backend = backend_of(driver)
        child = FORK.Process(target=use_another_backend, args=(driver, backend))

        child.start()
        child.join(LIMIT_SECONDS)

        assert (child.exitcode, backend_of(driver)) == (0, backend)


def use_another_backend(driver: PostgresDriver, backend: int) -> None:
    sys.exit(backend_of(driver) == backend)


def test_a_child_that_closes_an_unused_driver_does_not_affect_its_parent(url: str) -> None:
    with closing(PostgresDriver(url, size=1)) as driver:
        driver.inspector.now()
        backend = backend_of(driver)
        child = FORK.Process(target=driver.close)

        child.start()
        child.join(LIMIT_SECONDS)

        assert (child.exitcode, backend_of(driver)) == (0, backend)


def backend_of(driver: PostgresDriver) -> int:
    with driver._connections.connection() as db:  # noqa: SLF001  the only way to distinguish connections
        return db.info.backend_pid


def test_a_child_can_close_a_driver_that_was_notifying_during_the_fork(driver: PostgresDriver) -> None:
    with driver._notifier._changed:  # noqa: SLF001  as the notifier's thread holds it briefly
        child = FORK.Process(target=driver.close)
        child.start()
        child.join(LIMIT_SECONDS / 3)

        ended = child.exitcode
        child.kill()
        assert ended == 0


def test_a_driver_opens_no_more_connections_than_its_size(url: str) -> None:
    with closing(PostgresDriver(url, size=3)) as driver, ThreadPoolExecutor(12) as pool:
        list(pool.map(insert_some, [driver] * 12, [10] * 12))

        with psycopg.connect(url) as other:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'taskharbor' AND datname = %s"
            assert other.execute(query, [other.info.dbname]).fetchone() in {(1,), (2,), (3,)}
        assert len(jobs_of(driver)) == 120


def test_a_call_waits_for_a_free_connection_until_the_deadline(url: str) -> None:
    with closing(PostgresDriver(url, size=1, deadline=SHORT)) as driver:
        with driver._connections.connection():  # noqa: SLF001  as a slow statement would hold it
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"are in use; raise its size"):
                driver.inspector.now()
            took = time.monotonic() - start

        assert 1 <= took < 4
        assert len(driver.insert([new_job()])) == 1


class Contended(list[Any]):
    """Reports one item more than it has, as if another thread popped the last one in between."""

    def __len__(self) -> int:
        return super().__len__() + 1


def test_a_call_that_loses_the_last_idle_connection_opens_another(driver: PostgresDriver) -> None:
    driver._connections._idle = Contended()  # noqa: SLF001  the race itself is too rare

    assert len(driver.insert([new_job()])) == 1


def test_a_closed_driver_raises_store_unavailable(url: str) -> None:
    driver = PostgresDriver(url)
    driver.inspector.now()
    driver.close()

    with pytest.raises(StoreUnavailable, match="was closed"):
        driver.insert([new_job()])


def test_a_call_running_while_the_driver_is_closed_succeeds_and_disconnects(url: str) -> None:
    driver = PostgresDriver(url)
    with driver._connections.connection() as db:  # noqa: SLF001  as a slow statement would hold it
        driver.close()
        answer = db.execute("SELECT 1").fetchone()

    assert (answer, db.closed) == ((1,), True)


def test_a_closed_driver_releases_every_file_descriptor(url: str) -> None:
    def descriptors() -> int:
        gc.collect()
        return len([*Path("/proc/self/fd").iterdir()])

    def use() -> None:
        with closing(PostgresDriver(url)) as driver, closing(driver.listen(["default"])):
            driver.insert([new_job()])

    use()
    before = descriptors()
    for _ in range(10):
        use()

    wait_until(lambda: descriptors() <= before)  # the thread of a listener closes its connection soon after


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that requires a password from one of its users."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    rules = folder / "rules.conf"
    rules.write_text("host all app 127.0.0.1/32 scram-sha-256\nhost all postgres 127.0.0.1/32 trust\n")
    with PostgresServer.start(folder, settings={"hba_file": str(rules)}) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'first'")
        yield server


def test_the_password_function_is_called_for_each_new_connection(guarded: PostgresServer) -> None:
    passwords = ["first"]
    asked: list[str] = []

    def password() -> str:
        asked.append(passwords[-1])
        return passwords[-1]

    with closing(PostgresDriver(guarded.url.replace("postgres@", "app@"), password=password)) as driver:
        driver.inspector.now()
        driver.inspector.now()
        before = [*asked]
        with psycopg.connect(guarded.url, autocommit=True) as db:
            db.execute("ALTER ROLE app PASSWORD 'second'")
            passwords.append("second")
            db.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'app'")
        driver.inspector.now()

    with psycopg.connect(guarded.url, autocommit=True) as db:
        db.execute("ALTER ROLE app PASSWORD 'first'")
    assert (before, asked[len(before) :]) == (["first", "first"], ["second"])  # the first connection checks the schema


def test_a_password_in_the_url_is_enough(guarded: PostgresServer) -> None:
    def password() -> str:
        raise AssertionError

    url = guarded.url.replace("postgres@", "app:first@")
    with closing(PostgresDriver(url, password=password)) as driver:
        assert len(driver.insert([new_job()])) == 1


def lock(db: psycopg.Connection, *job_ids: JobId) -> None:
    db.execute("SELECT FROM th_jobs WHERE id = ANY (%s) FOR UPDATE", [[*job_ids]])


def test_a_lease_on_a_locked_row_is_skipped_and_others_are_extended(driver: PostgresDriver, url: str) -> None:
    driver.insert([new_job() for _ in range(3)])
    leases = [claim.lease for claim in reserve(driver, limit=3)]

    with psycopg.connect(url) as other:
        lock(other, leases[1].job_id)
        start = time.monotonic()
        first, second, third = driver.extend(leases, lease=2 * LEASE)
        took = time.monotonic() - start

    assert (type(first), second, type(third)) == (Extended, Skipped(leases[1]), Extended)
    assert took < 4
    assert isinstance(driver.extend(leases, lease=LEASE)[1], Extended)


def test_progress_of_a_locked_row_is_skipped_and_that_of_others_saved(driver: PostgresDriver, url: str) -> None:
    driver.insert([new_job() for _ in range(3)])
    notes = [(claim.lease, Progress(1, 2)) for claim in reserve(driver, limit=3)]

    with psycopg.connect(url) as other:
        lock(other, notes[1][0].job_id)
        start = time.monotonic()
        answers = driver.save_progress(notes)
        took = time.monotonic() - start

    assert answers == [True, False, True]
    assert took < 4
    assert [jobs_of(driver)[lease.job_id].progress for lease, _ in notes] == [Progress(1, 2), None, Progress(1, 2)]


def test_reserve_skips_locked_rows(driver: PostgresDriver, url: str) -> None:
    first, second = new_job(), new_job()
    driver.insert([first, second])

    with psycopg.connect(url) as other:
        lock(other, first.id)
        start = time.monotonic()
        claims = reserve(driver, limit=2)

        assert [claim.job.id for claim in claims] == [second.id]
        assert time.monotonic() - start < 4


def test_expired_leases_on_locked_rows_are_neither_reclaimed_nor_ended(driver: PostgresDriver, url: str) -> None:
    driver.insert([new_job() for _ in range(3)])
    locked, lost, expired = reserve(driver, limit=3, lease=NONE)

    with psycopg.connect(url) as other:
        lock(other, locked.job.id, expired.job.id)
        claims = reserve(driver, limit=3)
        other.rollback()
        lock(other, locked.job.id)
        ended = driver.maintenance.expire(limit=3)

    assert [claim.job.id for claim in claims] == [lost.job.id]
    assert ended == [Expired(expired.job.id, expired.lease.token, Status.FAILED)]


def test_a_job_and_an_order_are_committed_together_or_not_at_all(driver: PostgresDriver, url: str) -> None:
    with psycopg.connect(url) as shop:
        shop.execute("CREATE TEMPORARY TABLE orders (id integer)")
        shop.commit()
        client = Client(driver.join(shop))

        shop.execute("INSERT INTO orders VALUES (1)")
        lost = client.enqueue(JobRequest(type="ship", payload=1))
        shop.rollback()
        shop.execute("INSERT INTO orders VALUES (2)")
        kept = client.enqueue(JobRequest(type="ship", payload=2))
        unseen = driver.inspector.get([kept.id])
        shop.commit()

        assert unseen == {}
        assert driver.inspector.get([lost.id, kept.id]).keys() == {kept.id}
        assert shop.execute("SELECT id FROM orders").fetchall() == [(2,)]


@pytest.mark.parametrize(
    "how",
    [
        {"row_factory": dict_row},
        {"cursor_factory": psycopg.ClientCursor},  # as Django does
        {"prepare_threshold": 0},
        {"autocommit": True},
    ],
    ids=lambda how: next(iter(how)),
)
def test_a_transaction_of_any_kind_of_connection_can_be_joined(
    how: dict[str, Any], driver: PostgresDriver, url: str
) -> None:
    key = {"idempotency_key": "once", "digest": b"1"}
    first, second = new_job(**key), new_job(**key)

    with psycopg.connect(url, **how) as shop:
        joined = driver.join(shop)
        with shop.transaction():
            answers = joined.insert([first, second])

    assert answers == [Enqueued(first.id, existed=False), Enqueued(first.id, existed=True)]
    assert jobs_of(driver).keys() == {first.id}


def test_a_connection_without_a_transaction_cannot_be_joined(driver: PostgresDriver, url: str) -> None:
    with (
        psycopg.connect(url, autocommit=True) as shop,
        pytest.raises(UsageError, match="begin a transaction first"),
    ):
        driver.join(shop).insert([new_job()])

    assert jobs_of(driver) == {}


KINDS: Final[list[dict[str, Any]]] = [
    {},
    {"delay": timedelta(hours=1, microseconds=7), "priority": -7},
    {"scheduled_for": datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC), "delay": timedelta(hours=1)},
    {"payload": bytes(range(256)), "type": "\\N", "queue": "other"},
    {"metadata": {"tag": "wüst\n\t\\N", "empty": ""}},
    {"timeout": timedelta(days=40, microseconds=1)},
]


@pytest.mark.parametrize("kinds", [KINDS[:4], KINDS], ids=["without metadata or timeouts", "of every kind"])
def test_ten_thousand_jobs_at_once_are_stored_as_they_would_be_one_by_one(
    url: str, kinds: list[dict[str, Any]]
) -> None:
    fields = [kinds[n % len(kinds)] for n in range(10_000)]
    many, few = [new_job(**each) for each in fields], [new_job(**each) for each in fields[: len(kinds)]]
    assert len(few) < MIN_COPY_JOBS < len(many)

    with closing(PostgresDriver(url, clock=ManualClock())) as driver:
        answers = driver.insert(many)
        for job in few:
            driver.insert([job])
        stored = driver.inspector.get([job.id for job in many])
        model = [driver.inspector.get([job.id])[job.id] for job in few]

    assert answers == [Enqueued(job.id, existed=False) for job in many]
    wanted = [replace(model[n % len(kinds)], id=job.id) for n, job in enumerate(many)]
    assert [*stored.values()] == wanted


def test_jobs_without_a_delay_are_due_immediately_after_a_copy(driver: PostgresDriver) -> None:
    driver.insert([new_job() for _ in range(MIN_COPY_JOBS)])

    assert len(reserve(driver, limit=MIN_COPY_JOBS)) == MIN_COPY_JOBS


@pytest.mark.parametrize("size", [60, MIN_COPY_JOBS])
def test_batches_with_the_same_keys_in_any_order_store_each_once_and_never_deadlock(size: int) -> None:
    with database() as url:
        with closing(PostgresDriver(url)) as driver:
            for number in range(5):
                assert count_stored_by_rivals(driver, [f"{number}.{key}" for key in range(size)]) == size
            assert len(jobs_of(driver)) == 5 * size
        with psycopg.connect(url) as db:
            query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert db.execute(query).fetchone() == (0,)


def test_a_large_batch_handles_new_existing_and_repeated_keys(driver: PostgresDriver) -> None:
    holder = new_job(idempotency_key="held", digest=b"1")
    driver.insert([holder])
    free = [new_job(idempotency_key=str(number)) for number in range(MIN_COPY_JOBS)]
    twin, repeat, other = new_job(idempotency_key="0"), replace(holder, id=new_job().id), new_job()
    conflict = replace(repeat, id=new_job().id, digest=b"2")

    *answers, refused = driver.insert([*free, twin, repeat, other, conflict])

    assert answers[:MIN_COPY_JOBS] == [Enqueued(job.id, existed=False) for job in free]
    assert answers[MIN_COPY_JOBS:] == [
        Enqueued(free[0].id, existed=True),
        Enqueued(holder.id, existed=True),
        Enqueued(other.id, existed=False),
    ]
    assert isinstance(refused, IdempotencyConflict)
    assert jobs_of(driver).keys() == {job.id for job in (holder, *free, other)}


def count_stored_by_rivals(driver: PostgresDriver, keys: Sequence[str]) -> int:
    """Insert jobs with these keys from several threads, each in its own order; return how many were stored."""

    def insert(seed: int) -> int:
        shuffled = random.Random(seed).sample(keys, len(keys))
        answers = driver.insert([new_job(idempotency_key=key, digest=b"1") for key in shuffled])
        return sum(isinstance(answer, Enqueued) and not answer.existed for answer in answers)

    return sum(race(insert, rivals=6))


@pytest.mark.parametrize("size", [1, MIN_COPY_JOBS])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_batch_waits_for_an_uncommitted_key_and_skips_its_job_only_after_a_commit(
    driver: PostgresDriver, url: str, size: int, is_kept: bool
) -> None:
    held, *others = (new_job(idempotency_key=str(number), digest=b"1") for number in range(size))
    again = replace(held, id=new_job().id)

    with psycopg.connect(url) as shop, ThreadPoolExecutor(1) as pool:
        driver.join(shop).insert([held])
        ours = pool.submit(driver.insert, [again, *others])
        wait_until(lambda: waits_for_a_lock(url))
        (shop.commit if is_kept else shop.rollback)()
        first, *rest = ours.result(LIMIT_SECONDS)

    assert first == Enqueued(held.id if is_kept else again.id, existed=is_kept)
    assert rest == [Enqueued(job.id, existed=False) for job in others]


def test_a_deadlock_with_a_users_transaction_ends_with_each_key_stored_once(driver: PostgresDriver, url: str) -> None:
    first, second = (new_job(idempotency_key=key, digest=b"1") for key in ("a", "b"))
    again = [replace(job, id=new_job().id) for job in (first, second)]

    with psycopg.connect(url) as shop, ThreadPoolExecutor(1) as pool:
        joined = driver.join(shop)
        joined.insert([second])
        theirs = pool.submit(driver.insert, again)  # holds key a, and waits for b
        wait_until(lambda: waits_for_a_lock(url))
        try:
            joined.insert([first])
            shop.commit()
        except psycopg.errors.DeadlockDetected:
            shop.rollback()
        answers = theirs.result(LIMIT_SECONDS)

    assert sorted(answer.id for answer in answers if isinstance(answer, Enqueued)) == sorted(jobs_of(driver))
    assert len(answers) == 2


def waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url) as db:
        return db.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone() is not None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the scan cursors."""
    now = [1_000.0]
    monkeypatch.setattr(scans, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def ids(claims: Sequence[Claim]) -> list[JobId]:
    return [claim.job.id for claim in claims]


def insert_many(driver: PostgresDriver, count: int, **fields: Any) -> list[NewJob]:
    jobs = [new_job(**fields) for _ in range(count)]
    driver.insert(jobs)
    return jobs


def test_a_job_before_the_scan_cursor_is_found_after_a_second(driver: PostgresDriver, clock: list[float]) -> None:
    insert_many(driver, 200, priority=5)
    reserve(driver, limit=scans.MIN_CURSOR_BATCH)
    [urgent] = insert_many(driver, 1, priority=0)

    at_once = reserve(driver, limit=scans.MIN_CURSOR_BATCH)
    clock[0] += backlogs.MIN_RESCAN_SECONDS + 0.01
    later = reserve(driver, limit=scans.MIN_CURSOR_BATCH)

    assert urgent.id not in ids(at_once)
    assert ids(later)[0] == urgent.id


@pytest.mark.parametrize(
    ("usual", "took", "pause"),
    [
        (0.001, 0.002, backlogs.MIN_RESCAN_SECONDS),
        (0.3, 0.3, backlogs.MIN_RESCAN_SECONDS),
        (0.1, 0.2, 5.0),
        (0.001, 5.0, backlogs.MAX_RESCAN_SECONDS),
    ],
    ids=["a quick scan", "as slow as every batch", "past dead entries", "past very many dead entries"],
)
def test_the_slower_a_scan_from_the_head_the_later_the_next_one(
    usual: float, took: float, pause: float, driver: PostgresDriver, clock: list[float]
) -> None:
    insert_many(driver, scans.MIN_CURSOR_BATCH)
    batch = reserve(driver, limit=scans.MIN_CURSOR_BATCH)
    cursors = scans.ScanCursors()

    def scan(seconds: float) -> Position | None:
        start = cursors.start("default", scans.MIN_CURSOR_BATCH)
        clock[0] += seconds
        cursors.note("default", batch, limit=scans.MIN_CURSOR_BATCH, start=start)
        return start.position

    assert [scan(took), scan(usual)] == [None, position_of(batch[-1])]
    clock[0] += backlogs.MIN_RESCAN_SECONDS
    assert scan(took) is None

    clock[0] += pause - 0.01
    assert cursors.start("default", scans.MIN_CURSOR_BATCH).position == position_of(batch[-1])
    clock[0] += 0.02
    assert cursors.start("default", scans.MIN_CURSOR_BATCH).position is None


@pytest.mark.usefixtures("clock")
def test_a_job_before_the_scan_cursor_is_found_by_the_batch_after_a_short_one(driver: PostgresDriver) -> None:
    jobs = insert_many(driver, 60, priority=5)
    reserve(driver, limit=scans.MIN_CURSOR_BATCH)
    [urgent] = insert_many(driver, 1, priority=0)

    before = driver.statements
    batches = [reserve(driver, limit=scans.MIN_CURSOR_BATCH) for _ in range(2)]

    assert [ids(batch) for batch in batches] == [[job.id for job in jobs[50:]], [urgent.id]]
    assert driver.statements - before == 4  # each claims and reclaims; the short one does not scan twice


@pytest.mark.usefixtures("clock")
def test_a_job_before_the_scan_cursor_is_found_if_none_is_after_it(driver: PostgresDriver) -> None:
    insert_many(driver, scans.MIN_CURSOR_BATCH, priority=5)
    reserve(driver, limit=scans.MIN_CURSOR_BATCH)
    [urgent] = insert_many(driver, 1, priority=0)

    assert ids(reserve(driver, limit=scans.MIN_CURSOR_BATCH)) == [urgent.id]


@pytest.mark.usefixtures("clock")
def test_small_batches_start_at_the_head_of_the_queue(driver: PostgresDriver) -> None:
    insert_many(driver, 200, priority=5)
    reserve(driver, limit=scans.MIN_CURSOR_BATCH)
    [urgent] = insert_many(driver, 1, priority=0)

    assert ids(reserve(driver, limit=scans.MIN_CURSOR_BATCH - 1))[0] == urgent.id


@pytest.mark.usefixtures("clock")
def test_consecutive_batches_follow_the_order_of_the_queue(driver: PostgresDriver) -> None:
    jobs = [new_job(priority=n % 3) for n in range(200)]
    random.Random(7).shuffle(jobs)
    driver.insert(jobs)

    batches = [reserve(driver, limit=scans.MIN_CURSOR_BATCH) for _ in range(5)]

    positions = [position_of(claim) for batch in batches for claim in batch]
    assert (len(positions), positions) == (200, sorted(positions))


def test_concurrent_drains_and_inserts_miss_no_job(driver: PostgresDriver) -> None:
    inserted: list[JobId] = []
    is_finished = threading.Event()

    def feed(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(12):
            jobs = [new_job(priority=chance.randint(0, 3)) for _ in range(chance.randint(1, 120))]
            driver.insert(jobs)
            inserted.extend(job.id for job in jobs)

    def drain() -> list[JobId]:
        claimed = []
        while (batch := ids(reserve(driver, limit=scans.MIN_CURSOR_BATCH))) or not is_finished.is_set():
            claimed += batch
        return claimed

    with ThreadPoolExecutor(6) as pool:
        drained = [pool.submit(drain) for _ in range(3)]
        list(pool.map(feed, range(3), timeout=LIMIT_SECONDS))
        is_finished.set()
        claimed = [job_id for each in drained for job_id in each.result(LIMIT_SECONDS)]

    assert sorted(claimed) == sorted(inserted)
