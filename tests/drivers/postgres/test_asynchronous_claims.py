"""Claims that do not wait for the disk, on a server that is killed before they are written.

The WAL writer is stopped, so that nothing but a commit that waits for the disk writes WAL: whether a claim survives
does not depend on the time.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.core.errors import JobNotInflight, LeaseMismatch
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.connect import connect
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.pgbouncer import pooler
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import Claim
    from taskharbor.drivers.base import Driver

NONE: Final = timedelta(0)
# No other process of the server may write WAL at a time of its own.
QUIET: Final = {"autovacuum": "off", "bgwriter_lru_maxpages": "0", "checkpoint_timeout": "1h"}
ASYNCHRONOUS: Final = "?claims=asynchronous"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer.start(tmp_path_factory.mktemp("server"), durable=True, settings=QUIET) as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> str:
    with closing(PostgresDriver(server.url)) as driver:
        driver.migrate()
    with psycopg.connect(server.url) as db:
        db.execute("TRUNCATE th_jobs, th_attempts")
    return server.url


def test_a_claim_undone_by_a_crash_leaves_its_job_waiting_and_its_holder_fenced(
    server: PostgresServer, url: str
) -> None:
    with closing(connect(url + ASYNCHRONOUS)) as driver:
        driver.insert([new_job() for _ in range(3)])
        with crashing(server, url):
            before = written(url)
            [undone] = reserve(driver)
            assert written(url) == before
        [again, second, third] = reserve(driver, limit=9)

        assert [undone.job.attempt_count, again.job.attempt_count] == [1, 1]
        assert again.job.id == undone.job.id
        assert driver.inspector.attempts([undone.job.id]) == []
        [refused] = driver.settle([Settlement(undone.lease, Outcome.ack())])
        assert isinstance(refused, LeaseMismatch)
        assert driver.read_back([undone.lease.token]) == []
        claims = [again, second, third]
        answers = driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])
        assert answers == [Settled(claim.job.id, Status.SUCCEEDED) for claim in claims]


def test_a_holder_of_an_undone_claim_is_refused_before_the_job_is_claimed_again(
    server: PostgresServer, url: str
) -> None:
    with closing(connect(url + ASYNCHRONOUS)) as driver:
        driver.insert([new_job()])
        with crashing(server, url):
            [undone] = reserve(driver)

        answers = [
            *driver.settle([Settlement(undone.lease, Outcome.ack())]),
            *driver.settle([Settlement(undone.lease, Outcome.release())]),
            *driver.extend([undone.lease], lease=LEASE),
        ]

        assert [type(each) for each in answers] == [JobNotInflight] * 3
        job = driver.inspector.get([undone.job.id])[undone.job.id]
        assert (job.status, job.attempt_count, job.lease_token) == (Status.PENDING, 0, None)


def test_an_undone_reclaim_leaves_the_expired_lease_to_the_next(server: PostgresServer, url: str) -> None:
    with closing(connect(url)) as durable, closing(connect(url + ASYNCHRONOUS)) as driver:
        durable.insert([new_job()])
        [expired] = reserve(durable, lease=NONE)
        with crashing(server, url):
            before = written(url)
            [undone] = reserve(driver)
            assert undone.job.attempt_count == 2
            assert written(url) == before
        job = driver.inspector.get([undone.job.id])[undone.job.id]
        assert (job.status, job.lease_token, job.attempt_count) == (Status.PROCESSING, expired.lease.token, 1)
        assert driver.inspector.attempts([job.id]) == []

        [again] = reserve(driver)

        assert again.job.attempt_count == 2
        assert [each.token for each in driver.inspector.attempts([job.id])] == [expired.lease.token]
        [refused] = driver.settle([Settlement(undone.lease, Outcome.ack())])
        assert isinstance(refused, LeaseMismatch)


def test_a_settlement_writes_the_claim_before_it(server: PostgresServer, url: str) -> None:
    with closing(connect(url + ASYNCHRONOUS)) as driver:
        driver.insert([new_job() for _ in range(2)])
        with crashing(server, url):
            before = written(url)
            first, second = reserve(driver, limit=2)
            assert written(url) == before
            driver.settle([Settlement(first.lease, Outcome.ack())])
            assert written(url) != before

        jobs = driver.inspector.get([first.job.id, second.job.id])
        assert [jobs[each.job.id].status for each in (first, second)] == [Status.SUCCEEDED, Status.PROCESSING]
        assert {job.attempt_count for job in jobs.values()} == {1}
        assert driver.settle([Settlement(second.lease, Outcome.ack())]) == [Settled(second.job.id, Status.SUCCEEDED)]


@pytest.mark.parametrize("way", ["reserve", "claim by id"])
def test_claims_survive_a_crash_by_default_and_by_id_always(server: PostgresServer, url: str, way: str) -> None:
    parameter = "" if way == "reserve" else ASYNCHRONOUS
    with closing(connect(url + parameter)) as driver:
        driver.insert([new_job()])
        with crashing(server, url):
            [claim] = reserve(driver) if way == "reserve" else claim_by_id(driver)

        assert driver.settle([Settlement(claim.lease, Outcome.ack())]) == [Settled(claim.job.id, Status.SUCCEEDED)]


def test_claims_through_a_pooler_do_not_wait_for_the_disk_and_change_no_session(
    server: PostgresServer, url: str
) -> None:
    with pooler(server.url) as pooled:
        address = f"{pooled.rpartition('/')[0]}/{url.rpartition('/')[2]}?pooler=transaction&claims=asynchronous"
        with closing(connect(address)) as driver, stopped_wal_writer(url):
            driver.insert([new_job() for _ in range(2)])
            before = written(url)
            [claim] = reserve(driver)
            assert written(url) == before
            driver.settle([Settlement(claim.lease, Outcome.ack())])
            assert written(url) != before


def reserve(driver: Driver, *, limit: int = 1, lease: timedelta = LEASE) -> list[Claim]:
    options: dict[str, Any] = {"worker": "w", "lease": lease, "limit": limit, "overdue_after": OVERDUE_AFTER}
    return driver.reserve("default", token=new_token(), **options)


def claim_by_id(driver: Driver) -> list[Any]:
    [sent] = driver.dispatch("default", limit=1, lock=LEASE, unclaimed=10)
    return driver.claim([sent.job_id], queue="default", token=new_token(), worker="w", lease=LEASE)


@contextmanager
def crashing(server: PostgresServer, url: str) -> Iterator[None]:
    """Run the block without a WAL writer; then kill the server, and start it again."""
    with stopped_wal_writer(url) as wal_writer:
        yield
        os.kill(wal_writer, signal.SIGKILL)  # a stopped process does not notice that its server is gone
        server.kill()
    server.restart()


@contextmanager
def stopped_wal_writer(url: str) -> Iterator[int]:
    with psycopg.connect(url, autocommit=True) as db:
        pid, _ = state_of_wal_writer(db)
        wait_until(lambda: is_stopped_idle(db, pid))
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_stopped_idle(db: psycopg.Connection, pid: int) -> bool:
    """Stop the WAL writer. Let it continue if it was writing: every commit would wait for the lock that it holds."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: " T " in Path(f"/proc/{pid}/stat").read_text())
    if state_of_wal_writer(db) == (pid, "WalWriterMain"):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def state_of_wal_writer(db: psycopg.Connection) -> tuple[int, str]:
    """Return the pid of the WAL writer, and what it waits for."""
    query = "SELECT pid, coalesce(wait_event, '') FROM pg_stat_activity WHERE backend_type = 'walwriter'"
    [(pid, waits_for)] = db.execute(query).fetchall()
    return pid, waits_for


def written(url: str) -> str:
    """Return the position up to which the server has written WAL to the disk."""
    with psycopg.connect(url, autocommit=True) as db:
        [[position]] = db.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    return str(position)
