"""The PostgreSQL driver during network faults and server restarts."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
import pytest

from taskharbor import Client, JobRequest, Worker
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import JobId
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.drivers.postgres.server import ReplyLost
from taskharbor.testing.conformance.subject import new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.driver_calls import VERBS, reserved, statuses
from tests.support.postgres import emptied, schema_at
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")

SHORT: Final = timedelta(seconds=1)
RECOVERY_SECONDS: Final = 15.0  # after the server is available again; about two if the machine is idle


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def direct(url: str) -> Iterator[PostgresDriver]:
    """A driver of the same store, without the proxy."""
    with closing(PostgresDriver(url)) as driver:
        yield driver


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


@contextmanager
def connected(proxy: Proxy, *, deadline: timedelta = timedelta(seconds=5)) -> Iterator[PostgresDriver]:
    """Yield a driver that is connected through *proxy* and has one idle connection."""
    with closing(PostgresDriver(proxy.url, deadline=deadline)) as driver:
        driver.inspector.now()
        yield driver


def test_a_statement_whose_connection_breaks_is_terminated_before_it_is_repeated(
    url: str, direct: PostgresDriver, proxy: Proxy
) -> None:
    job = new_job()
    with connected(proxy) as driver, psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE th_jobs_waiting")
        answers = pool.submit(driver.insert, [job])
        wait_until(lambda: len(waiting_for_locks(url)) == 1)
        first = waiting_for_locks(url)

        proxy.reset()
        wait_until(lambda: waiting_for_locks(url) not in ([], first))
        waiting = waiting_for_locks(url)
        other.rollback()

        assert answers.result(LIMIT_SECONDS) == [Enqueued(job.id, existed=False)]
    assert len(waiting) == 1, "both waited at once, and both would have stored the job"
    assert statuses(direct) == [(Status.PENDING, 0)]


def test_a_repeated_insert_finds_the_job_if_the_first_one_commits_meanwhile(
    url: str, direct: PostgresDriver, proxy: Proxy
) -> None:
    with psycopg.connect(url, autocommit=True) as other, ThreadPoolExecutor(1) as pool:
        other.execute(COMMITS_WAIT)
        other.execute("SELECT pg_advisory_lock(1)")
        try:
            # Behind a pooler, the backend of a lost reply cannot be terminated.
            with closing(PostgresDriver(proxy.url, is_pooled=True)) as driver:
                answer = pool.submit(Client(driver).enqueue, JobRequest(type="t"))
                wait_until(lambda: len(waiting_for_locks(url)) == 1)
                proxy.reset()
                wait_until(lambda: len(waiting_for_locks(url)) == 2)  # for the COMMIT of the first
                other.execute("SELECT pg_advisory_unlock(1)")
                stored = answer.result(LIMIT_SECONDS)
        finally:
            other.execute("DROP FUNCTION wait_at_commit CASCADE")

    assert stored.existed
    assert statuses(direct) == [(Status.PENDING, 0)]


COMMITS_WAIT: Final = """
    CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql
    AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;

    CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON th_jobs_waiting DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_at_commit()
"""


def waiting_for_locks(url: str) -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url) as db:
        return [pid for (pid,) in db.execute(query)]


def test_a_lost_reply_survives_pickling() -> None:
    lost = ReplyLost("gone", 7)

    copied = pickle.loads(pickle.dumps(lost))

    assert (str(copied), copied.backend) == (str(lost), 7)


def test_in_a_black_hole_every_call_ends_soon_after_its_deadline(direct: PostgresDriver, proxy: Proxy) -> None:
    # For the statement, and for resolving a lost reply; 2 s to connect, and the rest because all of them run at once.
    bound = 2 * SHORT.total_seconds() + 8
    calls = []
    for verb in VERBS.values():
        calls.append(verb(direct).call)
        emptied()
    drivers = [PostgresDriver(proxy.url, deadline=SHORT) for _ in calls]
    for driver in drivers:
        driver.inspector.now()

    proxy.black_hole()
    with ThreadPoolExecutor(len(calls)) as pool:
        took = [*pool.map(seconds_to_fail, calls, drivers, timeout=LIMIT_SECONDS)]
    proxy.heal()

    assert dict(zip(VERBS, took, strict=True)) == {name: pytest.approx(bound / 2, abs=bound / 2) for name in VERBS}
    for driver in drivers:
        assert isinstance(retried(driver.inspector.now), datetime)
        driver.close()


def retried(call: Callable[[], T]) -> T:
    """Return what *call* returns once the store is available; until then it fails fast with a time to retry."""
    give_up_at = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            if error.retry_in is None or time.monotonic() > give_up_at:
                raise
            threading.Event().wait(error.retry_in.total_seconds())


def seconds_to_fail(call: Callable[[PostgresDriver], Any], driver: PostgresDriver) -> float:
    start = time.monotonic()
    with pytest.raises(StoreUnavailable) as failed:
        call(driver)
    assert "\n" not in str(failed.value)
    return time.monotonic() - start


def test_connecting_into_a_black_hole_fails_soon_after_the_deadline(proxy: Proxy) -> None:
    proxy.black_hole()

    with closing(PostgresDriver(proxy.url, deadline=SHORT)) as driver:
        assert seconds_to_fail(lambda driver: driver.inspector.now(), driver) < LIMIT_SECONDS / 2


def test_silently_lost_connections_cost_one_deadline_together(proxy: Proxy) -> None:
    with closing(PostgresDriver(proxy.url, deadline=SHORT, size=8)) as driver:
        hold_at_once(driver, 8)
        proxy.black_hole()
        seconds_to_fail(lambda driver: driver.inspector.now(), driver)
        proxy.forget()

        start = time.monotonic()
        retried(driver.inspector.now)

        assert time.monotonic() - start < 5 * SHORT.total_seconds()  # seven would cost one deadline each


def hold_at_once(driver: PostgresDriver, connections: int) -> None:
    """Make the driver open this many connections."""
    gate = threading.Barrier(connections, timeout=LIMIT_SECONDS)

    def hold(_: int) -> None:
        with driver._connections.connection():  # noqa: SLF001  the only way to hold a connection
            gate.wait()

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(hold, range(connections), timeout=LIMIT_SECONDS))


def test_calls_on_a_slow_network_succeed(direct: PostgresDriver, proxy: Proxy) -> None:
    with connected(proxy) as driver:
        proxy.latency = 0.05

        [claim] = reserved(driver)
        answers = driver.settle([Settlement(claim.lease, Outcome.ack())])

    assert answers == [Settled(claim.job.id, Status.SUCCEEDED)]
    assert statuses(direct) == [(Status.SUCCEEDED, 1)]


def test_a_network_slower_than_the_deadline_loses_and_repeats_nothing(direct: PostgresDriver, proxy: Proxy) -> None:
    job = new_job()
    with connected(proxy, deadline=SHORT) as driver:
        proxy.latency = 3.0
        with pytest.raises(StoreUnavailable):
            driver.insert([job])
        proxy.latency = 0.0
        proxy.reset()

        [answer] = retried(lambda: driver.insert([job], repeat=True))

    assert isinstance(answer, Enqueued)
    assert statuses(direct) == [(Status.PENDING, 0)]


def test_a_call_waits_until_a_known_server_accepts_connections_again(proxy: Proxy) -> None:
    with connected(proxy) as driver, ThreadPoolExecutor(1) as pool:
        proxy.refuse()
        now = pool.submit(driver.inspector.now)
        with pytest.raises(TimeoutError):
            now.result(0.2)

        proxy.accept()

        assert isinstance(now.result(RECOVERY_SECONDS), datetime)


def test_a_call_does_not_wait_for_a_server_that_never_answered(proxy: Proxy) -> None:
    proxy.refuse()
    with closing(PostgresDriver(proxy.url, deadline=timedelta(seconds=LIMIT_SECONDS))) as driver:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            driver.inspector.now()

    proxy.accept()
    assert time.monotonic() - start < LIMIT_SECONDS / 2


def test_a_worker_whose_connections_are_cut_often_runs_every_job(direct: PostgresDriver, proxy: Proxy) -> None:
    client, jobs = Client(direct), list[JobId]()
    with connected(proxy) as driver:
        worker = Worker(driver, concurrency=2, lease=SHORT)
        worker.register("run", lambda _job: None)
        worker.start()
        for _ in range(5):
            for _ in range(4):
                jobs.append(client.enqueue(JobRequest(type="run")).id)
                proxy.reset()
            wait_until(lambda: {job.status for job in direct.inspector.get(jobs).values()} == {Status.SUCCEEDED})
        worker.stop()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that tests may stop and kill."""
    with PostgresServer.start(tmp_path_factory.mktemp("mortal"), settings={"restart_after_crash": "on"}) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        yield server


def stop(server: PostgresServer) -> None:
    server.stop()


def kill(server: PostgresServer) -> None:
    server.kill()


ENDS: Final = [stop, kill]


@pytest.mark.parametrize("end", ENDS)
def test_idle_connections_to_a_restarted_server_are_replaced_without_errors(
    end: Callable[[PostgresServer], None], mortal: PostgresServer
) -> None:
    with closing(PostgresDriver(mortal.url, size=4)) as driver:
        hold_at_once(driver, 4)

        end(mortal)
        mortal.restart()

        driver.inspector.now()  # reads are not repeated, so an error would be raised
        assert len(driver.insert([new_job()])) == 1


@pytest.mark.parametrize("end", ENDS)
def test_every_thread_works_again_soon_after_a_restart_in_the_middle_of_its_calls(
    end: Callable[[PostgresServer], None], mortal: PostgresServer
) -> None:
    with closing(PostgresDriver(mortal.url, size=8, deadline=timedelta(seconds=2))) as driver:
        callers = [Caller(driver) for _ in range(8)]
        wait_until(lambda: all(caller.answered_at for caller in callers))

        end(mortal)
        mortal.restart()
        accepts_at = time.monotonic()
        wait_until(lambda: all(caller.answered_at > accepts_at for caller in callers))
        took = time.monotonic() - accepts_at
        accepted = [job_id for caller in callers for job_id in caller.stop()]

        assert took < RECOVERY_SECONDS
        assert driver.inspector.get(accepted).keys() == {*accepted}


class Caller:
    """A thread that inserts continuously, and tolerates no error but `StoreUnavailable`."""

    def __init__(self, driver: PostgresDriver) -> None:
        self.answered_at = 0.0
        self._driver = driver
        self._is_stopped = threading.Event()
        self._accepted: list[Any] = []
        self._pool = ThreadPoolExecutor(1)
        self._ended = self._pool.submit(self._run)

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                [answer] = self._driver.insert([new_job()])
            except StoreUnavailable:
                continue
            assert isinstance(answer, Enqueued)
            self._accepted.append(answer.id)
            self.answered_at = time.monotonic()

    def stop(self) -> list[Any]:
        """Return the accepted jobs, or raise the error of the thread."""
        self._is_stopped.set()
        self._ended.result(LIMIT_SECONDS)
        self._pool.shutdown()
        return self._accepted
