"""Failover: a primary becomes read-only, another is promoted, and all connections of the driver move to it."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import conninfo

from taskharbor import Client, JobRequest
from taskharbor.core.errors import JobNotFound, StoreUnavailable
from taskharbor.core.model import Progress
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.conformance.subject import LEASE, new_job
from taskharbor.testing.postgres import PostgresServer
from tests.drivers.postgres.test_network_faults import hold_at_once
from tests.support.driver_calls import reserved
from tests.support.postgres import schema_at
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId


class Pair:
    """Two servers, one of which is writable."""

    def __init__(self, first: PostgresServer, second: PostgresServer) -> None:
        self.servers = first, second
        self.primary, self.other = first, second
        self.set_read_only(first, to="off")
        self.set_read_only(second, to="on")

    @property
    def url(self) -> str:
        """A URL that connects to the current primary."""
        ports = [conninfo.conninfo_to_dict(each.url)["port"] for each in self.servers]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def swap(self) -> None:
        """Demote the primary without closing its connections, and promote the other server."""
        self.demote()
        self.set_read_only(self.other, to="off")
        self.primary, self.other = self.other, self.primary

    def demote(self) -> None:
        self.set_read_only(self.primary, to="on")

    def jobs(self) -> list[JobId]:
        """Return the jobs on the primary."""
        with psycopg.connect(self.primary.url) as db:
            return [job_id for (job_id,) in db.execute("SELECT id FROM th_jobs ORDER BY id")]

    def set_read_only(self, server: PostgresServer, *, to: str) -> None:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute(f"ALTER SYSTEM SET default_transaction_read_only = {to}".encode())
            db.execute("SELECT pg_reload_conf()")
        wait_until(lambda: self._is_read_only(server) == to)

    def _is_read_only(self, server: PostgresServer) -> str:
        with psycopg.connect(server.url) as db:
            [value] = db.execute("SHOW default_transaction_read_only").fetchone() or [""]
            return str(value)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with (
        PostgresServer.start(tmp_path_factory.mktemp("first")) as first,
        PostgresServer.start(tmp_path_factory.mktemp("second")) as second,
    ):
        for server in (first, second):
            migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        yield first, second


@pytest.fixture
def pair(servers: tuple[PostgresServer, PostgresServer]) -> Pair:
    for server in servers:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute("DELETE FROM th_jobs")
    return Pair(*servers)


@pytest.fixture
def driver(pair: Pair) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(pair.url, size=4, deadline=timedelta(seconds=2))) as driver:
        yield driver


def test_after_a_failover_one_call_fails_and_the_next_succeeds(pair: Pair, driver: PostgresDriver) -> None:
    hold_at_once(driver, 4)
    pair.swap()
    job = new_job()

    with pytest.raises(StoreUnavailable, match="the server is read-only; connect to the primary"):
        driver.insert([new_job()])
    driver.insert([job])

    assert pair.jobs() == [job.id]


def test_a_client_does_not_notice_a_failover(pair: Pair, driver: PostgresDriver) -> None:
    hold_at_once(driver, 4)
    pair.swap()

    stored = [Client(driver).enqueue(JobRequest(type="greet")).id for _ in range(6)]

    assert pair.jobs() == sorted(stored)


def test_a_connection_that_was_in_use_at_the_failover_is_not_used_again(pair: Pair, driver: PostgresDriver) -> None:
    hold_at_once(driver, 2)
    with driver._connections.connection():  # noqa: SLF001  the only way to hold a connection
        pair.swap()
        with pytest.raises(StoreUnavailable):
            driver.insert([new_job()])

    driver.insert([new_job()])
    driver.insert([new_job()])

    assert len(pair.jobs()) == 2


def test_the_heartbeat_connection_moves_to_the_new_primary_with_the_others(pair: Pair, driver: PostgresDriver) -> None:
    [claim] = reserved(driver)
    driver.extend([claim.lease], lease=LEASE)
    pair.swap()
    with pytest.raises(StoreUnavailable):
        driver.insert([new_job()])

    answers = driver.extend([claim.lease], lease=LEASE)

    assert [type(answer) for answer in answers] == [JobNotFound], "the new primary does not know the job"


def test_the_other_connections_move_with_that_of_the_heartbeat(pair: Pair, driver: PostgresDriver) -> None:
    [claim] = reserved(driver)
    driver.extend([claim.lease], lease=LEASE)
    pair.swap()
    with pytest.raises(StoreUnavailable, match="read-only"):
        driver.save_progress([(claim.lease, Progress(1))])

    driver.insert([job := new_job()])

    assert pair.jobs() == [job.id]


def test_a_listener_is_notified_of_jobs_on_the_new_primary(pair: Pair, driver: PostgresDriver) -> None:
    with closing(driver.listen(["default"])) as listener, closing(PostgresDriver(pair.url)) as other:
        driver.inspector.now()
        pair.swap()
        with pytest.raises(StoreUnavailable):
            driver.insert([new_job()])

        def is_notified() -> bool:
            other.insert([new_job()])
            return bool(listener.wait(timedelta(milliseconds=200))) and is_listening(pair)

        wait_until(is_notified)


def is_listening(pair: Pair) -> bool:
    with psycopg.connect(pair.primary.url) as db:
        return bool(
            db.execute("SELECT FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query LIKE '%pg_notify%'").fetchall()
        )


def test_without_a_primary_calls_fail_as_for_any_outage_and_recover(pair: Pair, driver: PostgresDriver) -> None:
    driver.inspector.now()
    pair.demote()
    with pytest.raises(StoreUnavailable):
        driver.insert([new_job()])
    with pytest.raises(StoreUnavailable, match="the server is read-only; connect to the primary"):
        driver.insert([new_job()])
    pair.swap()

    def works() -> bool:
        try:
            driver.insert([new_job()])
        except StoreUnavailable as error:
            assert error.retry_in is not None  # noqa: PT017  it must be the error of an outage
            return False
        return True

    assert wait_until(works) < 15  # about two if the machine is idle
