"""Hearing of jobs in PostgreSQL, while servers go and networks fall silent."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import PostgresDriver, notify
from taskharbor.drivers.postgres.schema import MIGRATIONS
from taskharbor.testing.conformance.subject import new_job
from taskharbor.testing.postgres import PostgresServer
from tests.support.postgres import emptied, schema_at
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.drivers.postgres.notify import PostgresListener

MOMENT: Final = timedelta(milliseconds=50)
SECOND: Final = timedelta(seconds=1)
DEADLINE: Final = timedelta(seconds=5)  # far longer than any ring takes


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(url)) as driver:
        yield driver


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that may be stopped and killed."""
    with PostgresServer.start(tmp_path_factory.mktemp("mortal")) as server:
        migrate.migrate_up(schema_at(server.url), MIGRATIONS)
        yield server


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let listeners test themselves after a moment, and expect to hear themselves soon."""
    monkeypatch.setattr(notify, "SELF_TEST_SECONDS", 0.1)
    monkeypatch.setattr(notify, "ECHO_TIMEOUT_SECONDS", 0.5)


def connection_of(driver: PostgresDriver) -> object:
    ear = driver._listeners._listen_connection  # noqa: SLF001  nobody else sees it
    return ear and ear._db  # noqa: SLF001  as above


def wait_for_another_connection(driver: PostgresDriver, listener: PostgresListener, before: object) -> None:
    """Wait as a worker does, until the driver listens on one, and has said so."""
    wait_until(lambda: not listener.wait(MOMENT) and connection_of(driver) not in {None, before})


def insert_elsewhere(url: str) -> None:
    """Store a job as another process does: who listens on the same driver hears of it without a NOTIFY."""
    with closing(PostgresDriver(url)) as elsewhere:
        elsewhere.insert([new_job()])


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
def test_a_listener_hears_again_after_the_server_was_restarted(
    end: Callable[[PostgresServer], None], mortal: PostgresServer
) -> None:
    with closing(PostgresDriver(mortal.url)) as driver, closing(driver.listen(["default"])) as listener:
        before = connection_of(driver)
        end(mortal)
        mortal.restart()
        wait_for_another_connection(driver, listener, before)

        insert_elsewhere(mortal.url)

        assert listener.wait(DEADLINE)


def test_a_listener_that_was_deaf_for_a_while_says_that_there_may_be_jobs(mortal: PostgresServer) -> None:
    with closing(PostgresDriver(mortal.url)) as driver, closing(driver.listen(["default"])) as listener:
        mortal.stop()
        gone = listener.wait(DEADLINE)
        mortal.restart()

        assert (gone, listener.wait(DEADLINE)) == (True, True)


def test_a_listener_may_be_made_while_the_server_is_away(mortal: PostgresServer) -> None:
    with closing(PostgresDriver(mortal.url)) as driver:
        mortal.stop()
        with closing(driver.listen(["default"])) as listener:
            early = listener.wait(MOMENT)
            mortal.restart()
            wait_for_another_connection(driver, listener, None)
            insert_elsewhere(mortal.url)

            assert (early, listener.wait(DEADLINE)) == (False, True)


@pytest.mark.usefixtures("_impatient")
def test_a_listener_that_hears_its_own_voice_keeps_its_connection(url: str, driver: PostgresDriver) -> None:
    with closing(driver.listen(["default"])) as listener:
        before = connection_of(driver)

        rang = listener.wait(1.5 * SECOND)

        assert (rang, connection_of(driver)) == (False, before)
        insert_elsewhere(url)
        assert listener.wait(DEADLINE)


@pytest.mark.usefixtures("_impatient")
def test_a_listener_whose_connection_died_in_silence_notices_hears_again_and_says_both(
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
        assert took < 4, "it waited for an answer that nobody gave"
        wait_until(lambda: not listener.wait(MOMENT) and "listens for jobs again" in caplog.text)
    assert caplog.text.count("cannot listen for jobs, and tries again") == 1
    assert "its own NOTIFY does not arrive" in caplog.text


def test_a_listener_behind_a_pooler_waits_in_peace_and_says_that_it_does_not_listen(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with closing(PostgresDriver(url, is_pooled=True)) as driver, closing(driver.listen(["default"])) as listener:
        start, spent = time.monotonic(), time.thread_time()

        rang = listener.wait(SECOND)

        assert (rang, round(time.monotonic() - start)) == (False, 1)
        assert time.thread_time() - spent < 0.2
    assert "a pooler is in between: nothing is listened to" in caplog.text


def test_a_bell_that_fails_once_rings_the_next_time(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PostgresDriver(url)) as elsewhere, closing(elsewhere.listen(["default"])) as listener:
        monkeypatch.setattr(notify, "_NOTIFY_ALL", "SELECT 1 / 0, %(channel)s, %(queues)s")
        driver.insert([new_job()])
        wait_until(lambda: not driver._notifier._queues)  # noqa: SLF001  nothing else shows that it took its turn
        silent = not listener.wait(4 * MOMENT)
        monkeypatch.undo()

        driver.insert([new_job()])

        assert (silent, listener.wait(DEADLINE)) == (True, True)


def test_who_listens_on_the_driver_that_stores_a_job_needs_no_connection_to_hear_of_it(url: str) -> None:
    with closing(PostgresDriver(url, is_pooled=True)) as driver, closing(driver.listen(["default"])) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
