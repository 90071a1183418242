"""LISTEN and NOTIFY during server restarts and network faults."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor.core.errors import SchemaOutOfDate, StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.results import Enqueued
from taskharbor.drivers import migrate
from taskharbor.drivers.base import Notice
from taskharbor.drivers.postgres import PostgresDriver, insert, listen, notify
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.drivers.postgres.server import ServerAddress
from taskharbor.testing.conformance.subject import new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.postgres import emptied, schema_at
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.postgres.listen import PostgresListener
    from taskharbor.drivers.postgres.notify import PostgresNotifier
    from taskharbor.drivers.postgres.server import ServerConnection

SHORT: Final = timedelta(milliseconds=50)
SECOND: Final = timedelta(seconds=1)
DEADLINE: Final = timedelta(seconds=5)  # far longer than a notification takes


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(url)) as driver:
        yield driver


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that tests may stop and kill."""
    with PostgresServer.start(tmp_path_factory.mktemp("mortal")) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        yield server


@pytest.fixture
def _short_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let LISTEN connections test themselves after 0.1 s, with a timeout of 0.5 s."""
    monkeypatch.setattr(listen, "SELF_TEST_SECONDS", 0.1)
    monkeypatch.setattr(listen, "ECHO_TIMEOUT_SECONDS", 0.5)


def connection_of(driver: PostgresDriver) -> object:
    connection = driver._listeners._listen_connection  # noqa: SLF001  not part of the API
    return connection and connection._db  # noqa: SLF001  as above


def wait_for_another_connection(driver: PostgresDriver, listener: PostgresListener, before: object) -> None:
    """Wait on *listener* until the driver has a new LISTEN connection and no notification is pending."""
    wait_until(lambda: not listener.wait(SHORT) and connection_of(driver) not in {None, before})


def insert_elsewhere(url: str) -> None:
    """Store a job from another driver: listeners of the same driver need no NOTIFY."""
    with closing(PostgresDriver(url)) as elsewhere:
        elsewhere.insert([new_job()])


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
def test_a_listener_is_notified_again_after_a_server_restart(
    end: Callable[[PostgresServer], None], mortal: PostgresServer
) -> None:
    with closing(PostgresDriver(mortal.url)) as driver, closing(driver.listen(["default"])) as listener:
        before = connection_of(driver)
        end(mortal)
        mortal.restart()
        wait_for_another_connection(driver, listener, before)

        insert_elsewhere(mortal.url)

        assert listener.wait(DEADLINE)


def test_losing_and_restoring_the_listen_connection_each_wake_the_listener(mortal: PostgresServer) -> None:
    with closing(PostgresDriver(mortal.url)) as driver, closing(driver.listen(["default"])) as listener:
        mortal.stop()
        gone = bool(listener.wait(DEADLINE))
        mortal.restart()

        assert (gone, bool(listener.wait(DEADLINE))) == (True, True)


def test_a_listener_created_while_the_server_is_down_is_notified_later(mortal: PostgresServer) -> None:
    with closing(PostgresDriver(mortal.url)) as driver:
        mortal.stop()
        with closing(driver.listen(["default"])) as listener:
            early = bool(listener.wait(SHORT))
            mortal.restart()
            wait_for_another_connection(driver, listener, None)
            insert_elsewhere(mortal.url)

            assert (early, bool(listener.wait(DEADLINE))) == (False, True)


@pytest.mark.usefixtures("_short_self_test")
def test_a_listen_connection_that_passes_its_self_test_is_kept(url: str, driver: PostgresDriver) -> None:
    with closing(driver.listen(["default"])) as listener:
        before = connection_of(driver)

        was_notified = bool(listener.wait(1.5 * SECOND))

        assert (was_notified, connection_of(driver)) == (False, before)
        insert_elsewhere(url)
        assert listener.wait(DEADLINE)


@pytest.mark.usefixtures("_short_self_test")
def test_a_silently_lost_listen_connection_is_replaced_and_both_events_are_logged(
    url: str, driver: PostgresDriver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with (
        Proxy(url) as proxy,
        closing(PostgresDriver(proxy.url, deadline=SECOND)) as behind,
        closing(behind.listen(["default"])) as listener,
    ):
        before = connection_of(behind)
        proxy.black_hole()
        start = time.monotonic()
        listener.wait(SECOND)
        took = time.monotonic() - start
        proxy.forget()
        wait_for_another_connection(behind, listener, before)

        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
        assert took < LIMIT_SECONDS / 2, "it waited for a reply that never came"
        wait_until(lambda: not listener.wait(SHORT) and "LISTEN connection restored" in caplog.text)
    assert caplog.text.count("LISTEN connection lost; polling, will reconnect") == 1
    assert "its own NOTIFY did not arrive" in caplog.text


def test_behind_a_pooler_listen_is_disabled_and_waiting_uses_no_cpu(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with closing(PostgresDriver(url, is_pooled=True)) as driver, closing(driver.listen(["default"])) as listener:
        start, cpu_start = time.monotonic(), time.thread_time()

        was_notified = bool(listener.wait(SECOND))

        assert (was_notified, time.monotonic() - start >= 0.9) == (False, True)
        assert time.thread_time() - cpu_start < 0.2
    assert "LISTEN disabled behind a pooler; polling" in caplog.text


def test_a_connection_cut_many_times_in_a_row_leaves_one_listener_that_is_notified(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "RECONNECT_SECONDS", 0.001)
    with (
        Proxy(url) as proxy,
        closing(PostgresDriver(proxy.url)) as cut,
        closing(cut.listen(["default"])) as listener,
        psycopg.connect(url, autocommit=True) as db,
    ):
        for _ in range(20):
            before = connection_of(cut)
            proxy.reset()
            wait_until(lambda before=before: connection_of(cut) not in {None, before})  # type: ignore[misc]
        # The server notices the end of a connection a moment later.
        wait_until(lambda: [*db.execute(_LISTENERS)] == [(1,)])
        wait_until(lambda: not listener.wait(SHORT))
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)


_LISTENERS: Final = """
    SELECT count(*)
      FROM pg_stat_activity
     WHERE datname = current_database()
       AND (query LIKE 'LISTEN%%' OR query LIKE 'SELECT pg_notify%%transaction_read_only%%')
"""


def test_a_rare_insert_notifies_by_its_own_statement_without_a_thread(url: str, driver: PostgresDriver) -> None:
    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen(["default"])) as listener:
        wait_until(lambda: not listener.wait(SHORT))
        driver.insert([new_job()])

        assert (listener.wait(DEADLINE), driver._notifier._thread) == (Notice.JOBS, None)  # noqa: SLF001  as above


def test_inserts_in_quick_succession_share_the_notify_of_a_thread(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "MIN_JOIN_SECONDS", DEADLINE.total_seconds())
    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen(["default"])) as listener:
        driver.insert([new_job()])
        wait_until(lambda: not listener.wait(SHORT))
        driver.insert([new_job()])

        assert (listener.wait(DEADLINE), driver._notifier._thread is None) == (Notice.JOBS, False)  # noqa: SLF001  as above


class Inserts:
    """Inserts of a driver that contain their NOTIFY, by a clock that they move."""

    def __init__(self, notifier: PostgresNotifier, monkeypatch: pytest.MonkeyPatch) -> None:
        self._notifier, self._now = notifier, 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now)

    def is_rare_after(self, seconds: float) -> bool:
        self._now += seconds
        return self._notifier.may_join()

    def insert(self, *, seconds: float) -> None:
        def take() -> int:
            self._now += seconds
            return 1

        self._notifier.join(take)


def test_an_insert_is_rare_again_after_twenty_times_its_duration(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = Inserts(driver._notifier, monkeypatch)  # noqa: SLF001  not part of the API

    first, during = inserts.is_rare_after(0), inserts.is_rare_after(0)
    inserts.insert(seconds=1)

    assert (first, during, inserts.is_rare_after(19.9), inserts.is_rare_after(0.2)) == (True, False, False, True)


def test_only_a_second_slow_insert_makes_the_next_one_wait_longer(
    driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = Inserts(driver._notifier, monkeypatch)  # noqa: SLF001  as above

    rare = []
    for seconds in (0.001, 1, 1):
        rare.append(inserts.is_rare_after(0.1))
        inserts.insert(seconds=seconds)

    assert (rare, inserts.is_rare_after(19.9), inserts.is_rare_after(0.2)) == ([True, True, True], False, True)


def test_an_insert_beside_a_listener_of_its_driver_does_not_contain_notify(driver: PostgresDriver) -> None:
    with closing(driver.listen(["default"])):
        assert not driver._notifier.may_join()  # noqa: SLF001  as above


def test_a_job_is_stored_though_the_notify_of_its_insert_fails(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The error of a full queue of notifications. It has this code, too.
    monkeypatch.setattr(insert, "_NOTIFY_ONE", "SELECT repeat('x', 2000000000), %(channel)s")
    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen(["default"])) as listener:
        wait_until(lambda: not listener.wait(SHORT))
        [answer] = driver.insert([new_job()])

        assert (isinstance(answer, Enqueued), listener.wait(DEADLINE)) == (True, Notice.JOBS)
        assert not driver._notifier.may_join()  # noqa: SLF001  as above


def test_a_lock_timeout_is_raised_and_the_next_insert_contains_no_notify(url: str) -> None:
    with closing(PostgresDriver(url, deadline=timedelta(seconds=1))) as driver, psycopg.connect(url) as holder:
        assert driver._has_tallies  # noqa: SLF001  as above; so that nothing but the insert is left to run
        holder.execute("LOCK TABLE th_jobs IN ACCESS EXCLUSIVE MODE")
        before = driver._connections.statements  # noqa: SLF001
        with pytest.raises(StoreUnavailable, match="held a lock for too long"):
            driver.insert([new_job()])

        assert driver._connections.statements == before + 1  # noqa: SLF001
        assert not driver._notifier.may_join()  # noqa: SLF001


def test_a_notify_that_fails_once_works_the_next_time(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "MIN_JOIN_SECONDS", DEADLINE.total_seconds())
    driver.insert([new_job()])  # so that the next ones are notified by the thread
    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen(["default"])) as listener:
        wait_until(lambda: not listener.wait(SHORT))
        monkeypatch.setattr(notify, "_NOTIFY_ALL", "SELECT 1 / 0, %(channel)s, %(topics)s")
        driver.insert([new_job()])
        wait_until(lambda: not driver._notifier._topics)  # noqa: SLF001  the only sign that the NOTIFY was tried
        silent = not listener.wait(4 * SHORT)
        monkeypatch.undo()

        driver.insert([new_job()])

        assert (silent, bool(listener.wait(DEADLINE))) == (True, True)


def test_without_a_thread_the_caller_notifies_and_gets_no_error(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "MIN_JOIN_SECONDS", DEADLINE.total_seconds())
    driver.insert([new_job()])  # contains its NOTIFY; the next one does not

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen(["default"])) as listener:
        wait_until(lambda: not listener.wait(SHORT))
        monkeypatch.setattr(threading.Thread, "start", fail)
        [answer] = driver.insert([new_job()])
        is_notified = listener.wait(DEADLINE)
        monkeypatch.undo()

        assert (isinstance(answer, Enqueued), bool(is_notified)) == (True, True)


def test_an_error_that_is_not_of_the_server_does_not_end_the_notify_thread(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = ServerAddress.connect
    failed = threading.Event()

    def fail(address: ServerAddress, **options: bool) -> ServerConnection:
        if threading.current_thread().name == "taskharbor-notify" and not failed.is_set():
            failed.set()
            raise SchemaOutOfDate("1", "2", "migrate")
        return connect(address, **options)

    monkeypatch.setattr(ServerAddress, "connect", fail)
    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen(["default"])) as listener:
        wait_until(lambda: not listener.wait(SHORT))
        with driver._connections.connection():  # noqa: SLF001  so that the thread needs another one
            driver._notifier.notify(["default"])  # noqa: SLF001  as an insert does
            assert failed.wait(DEADLINE.total_seconds())
        driver._notifier.notify(["default"])  # noqa: SLF001  as above

        assert listener.wait(DEADLINE)


def test_a_cancel_notifies_the_worker_that_runs_the_job_and_no_other(url: str, driver: PostgresDriver) -> None:
    running = [_running(driver, worker) for worker in ("one", "other")]

    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen([], worker="one")) as listener:
        wait_until(lambda: not listener.wait(SHORT))
        driver.cancel([running[1]])
        of_other = listener.wait(4 * SHORT)
        driver.cancel([running[0]])

        assert (of_other, listener.wait(DEADLINE)) == (Notice.NONE, Notice.CANCELS)


def test_a_job_does_not_notify_a_listener_for_cancels_only(url: str, driver: PostgresDriver) -> None:
    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen([], worker="one")) as listener:
        wait_until(lambda: not listener.wait(SHORT))
        driver.insert([new_job()])
        driver.reschedule([new_job().id])  # notifies all queues

        assert not listener.wait(4 * SHORT)


def _running(driver: PostgresDriver, worker: str) -> JobId:
    """Return a job that *worker* runs."""
    driver.insert([new_job()])
    [claim] = driver.reserve("default", token=new_token(), worker=worker, lease=DEADLINE, limit=1, overdue_after=SECOND)
    return claim.job.id


def test_listeners_of_the_inserting_driver_are_notified_without_a_listen_connection(url: str) -> None:
    with closing(PostgresDriver(url, is_pooled=True)) as driver, closing(driver.listen(["default"])) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
