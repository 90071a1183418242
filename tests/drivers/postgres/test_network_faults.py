"""The PostgreSQL driver on a network that fails, and on a server that goes and comes back."""

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

from taskharbor.core.errors import StoreUnavailable
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
from tests.support.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")

SHORT: Final = timedelta(seconds=1)
BACK_WITHIN: Final = 5.0  # seconds after the server answers again


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def direct(url: str) -> Iterator[PostgresDriver]:
    """The same store, without the network in between."""
    with closing(PostgresDriver(url)) as driver:
        yield driver


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


@contextmanager
def connected(proxy: Proxy, *, deadline: timedelta = timedelta(seconds=5)) -> Iterator[PostgresDriver]:
    """Give a driver behind *proxy* which has one idle connection."""
    with closing(PostgresDriver(proxy.url, deadline=deadline)) as driver:
        driver.inspector.now()
        yield driver


def test_a_statement_that_still_runs_when_its_connection_breaks_is_ended_before_it_is_repeated(
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

        assert answers.result(LIMIT) == [Enqueued(job.id, existed=False)]
    assert len(waiting) == 1, "both waited at once, and both would have stored the job"
    assert statuses(direct) == [(Status.PENDING, 0)]


def waiting_for_locks(url: str) -> list[int]:
    asked = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url) as db:
        return [pid for (pid,) in db.execute(asked)]


def test_a_lost_reply_survives_the_way_between_processes() -> None:
    lost = ReplyLost("gone", 7)

    copied = pickle.loads(pickle.dumps(lost))

    assert (str(copied), copied.backend) == (str(lost), 7)


def test_in_a_black_hole_every_call_ends_soon_after_its_deadline(direct: PostgresDriver, proxy: Proxy) -> None:
    bound = 2 * SHORT.total_seconds() + 3  # the statement's, and for one that may be committed another's; 2 to connect
    calls = []
    for verb in VERBS.values():
        calls.append(verb(direct).call)
        emptied()
    drivers = [PostgresDriver(proxy.url, deadline=SHORT) for _ in calls]
    for driver in drivers:
        driver.inspector.now()

    proxy.black_hole()
    with ThreadPoolExecutor(len(calls)) as pool:
        took = [*pool.map(seconds_to_fail, calls, drivers, timeout=LIMIT)]
    proxy.heal()

    assert dict(zip(VERBS, took, strict=True)) == {name: pytest.approx(bound / 2, abs=bound / 2) for name in VERBS}
    for driver in drivers:
        assert isinstance(insisted(driver.inspector.now), datetime)
        driver.close()


def insisted(call: Callable[[], T]) -> T:
    """Return what *call* returns once the store answers it: until then it fails fast, and says when to try again."""
    give_up_at = time.monotonic() + BACK_WITHIN
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


def test_in_a_black_hole_nobody_is_connected_and_told_so_in_time(proxy: Proxy) -> None:
    proxy.black_hole()

    with closing(PostgresDriver(proxy.url, deadline=SHORT)) as driver:
        assert seconds_to_fail(lambda driver: driver.inspector.now(), driver) < 4


def test_connections_that_died_in_silence_cost_one_deadline_and_not_one_each(proxy: Proxy) -> None:
    with closing(PostgresDriver(proxy.url, deadline=SHORT, size=5)) as driver:
        hold_at_once(driver, 5)
        proxy.black_hole()
        seconds_to_fail(lambda driver: driver.inspector.now(), driver)
        proxy.forget()

        start = time.monotonic()
        insisted(driver.inspector.now)

        assert time.monotonic() - start < SHORT.total_seconds()


def hold_at_once(driver: PostgresDriver, connections: int) -> None:
    """Make the driver open so many connections."""
    gate = threading.Barrier(connections, timeout=LIMIT)

    def hold(_: int) -> None:
        with driver._connections.connection():  # noqa: SLF001  the only way to keep one for a while
            gate.wait()

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(hold, range(connections), timeout=LIMIT))


def test_a_slow_network_is_only_slow(direct: PostgresDriver, proxy: Proxy) -> None:
    with connected(proxy) as driver:
        proxy.latency = 0.05

        [claim] = reserved(driver)
        answers = driver.settle([Settlement(claim.lease, Outcome.ack())])

    assert answers == [Settled(claim.job.id, Status.SUCCEEDED)]
    assert statuses(direct) == [(Status.SUCCEEDED, 1)]


def test_a_network_slower_than_the_deadline_loses_and_doubles_nothing(direct: PostgresDriver, proxy: Proxy) -> None:
    job = new_job()
    with connected(proxy, deadline=SHORT) as driver:
        proxy.latency = 3.0
        with pytest.raises(StoreUnavailable):
            driver.insert([job])
        proxy.latency = 0.0
        proxy.reset()

        [answer] = insisted(lambda: driver.insert([job], repeat=True))

    assert isinstance(answer, Enqueued)
    assert statuses(direct) == [(Status.PENDING, 0)]


def test_a_server_that_is_known_is_waited_for_until_it_listens_again(proxy: Proxy) -> None:
    with connected(proxy) as driver, ThreadPoolExecutor(1) as pool:
        proxy.refuse()
        now = pool.submit(driver.inspector.now)
        with pytest.raises(TimeoutError):
            now.result(0.2)

        proxy.accept()

        assert isinstance(now.result(BACK_WITHIN), datetime)


def test_a_server_that_was_never_there_is_not_waited_for(proxy: Proxy) -> None:
    proxy.refuse()
    with closing(PostgresDriver(proxy.url, deadline=timedelta(seconds=LIMIT))) as driver:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            driver.inspector.now()

    proxy.accept()
    assert time.monotonic() - start < LIMIT / 2


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that may be stopped and killed."""
    with PostgresServer.start(tmp_path_factory.mktemp("mortal"), settings={"restart_after_crash": "on"}) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        yield server


def stop(server: PostgresServer) -> None:
    server.stop()


def kill(server: PostgresServer) -> None:
    server.kill()


ENDS: Final = [stop, kill]


@pytest.mark.parametrize("end", ENDS)
def test_idle_connections_to_a_server_that_was_restarted_are_replaced_unseen(
    end: Callable[[PostgresServer], None], mortal: PostgresServer
) -> None:
    with closing(PostgresDriver(mortal.url, size=4)) as driver:
        hold_at_once(driver, 4)

        end(mortal)
        mortal.restart()

        driver.inspector.now()  # reads are not repeated: nothing makes up for an error
        assert len(driver.insert([new_job()])) == 1


@pytest.mark.parametrize("end", ENDS)
def test_every_thread_works_again_soon_after_a_restart_in_the_middle_of_its_calls(
    end: Callable[[PostgresServer], None], mortal: PostgresServer
) -> None:
    with closing(PostgresDriver(mortal.url, size=8, deadline=timedelta(seconds=2))) as driver:
        crew = [Caller(driver) for _ in range(8)]
        wait_until(lambda: all(caller.answered_at for caller in crew))

        end(mortal)
        mortal.restart()
        accepts_at = time.monotonic()
        wait_until(lambda: all(caller.answered_at > accepts_at for caller in crew))
        took = time.monotonic() - accepts_at
        accepted = [job_id for caller in crew for job_id in caller.stop()]

        assert took < BACK_WITHIN
        assert driver.inspector.get(accepted).keys() == {*accepted}


class Caller:
    """A thread that inserts without a pause, and bears nothing but that the store is out of reach."""

    def __init__(self, driver: PostgresDriver) -> None:
        self.answered_at = 0.0
        self._driver = driver
        self._is_over = threading.Event()
        self._accepted: list[Any] = []
        self._pool = ThreadPoolExecutor(1)
        self._ended = self._pool.submit(self._run)

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                [answer] = self._driver.insert([new_job()])
            except StoreUnavailable:
                continue
            assert isinstance(answer, Enqueued)
            self._accepted.append(answer.id)
            self.answered_at = time.monotonic()

    def stop(self) -> list[Any]:
        """Return the jobs that were accepted, or raise what went wrong."""
        self._is_over.set()
        self._ended.result(LIMIT)
        self._pool.shutdown()
        return self._accepted
