"""All listeners of a driver share one LISTEN connection."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor import Client, JobRequest
from taskharbor.core.states import Status
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.conformance.subject import new_job
from taskharbor.watcher import JobWatcher
from taskharbor.worker import Worker
from tests.support.postgres import emptied
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.postgres.listen import PostgresListener

DEADLINE: Final = timedelta(seconds=5)  # far longer than a notification takes
SHORT: Final = timedelta(milliseconds=50)
FORK: Final = multiprocessing.get_context("fork")


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(url)) as driver:
        yield driver


def listening_backends(url: str) -> set[int]:
    """Return the backends that listen: their last statement is LISTEN or the self-test."""
    with psycopg.connect(url) as db:
        query = """
            SELECT pid
              FROM pg_stat_activity
             WHERE datname = %s
               AND (query LIKE 'LISTEN%%' OR query LIKE 'SELECT pg_notify($%%')
        """
        return {pid for (pid,) in db.execute(query, [db.info.dbname])}


def test_workers_share_one_listen_connection_that_closes_with_the_last_worker(url: str, driver: PostgresDriver) -> None:
    started, may_end, counted = threading.Event(), threading.Event(), []

    def handle(_job: object) -> None:
        started.set()
        may_end.wait(LIMIT_SECONDS)

    workers = [Worker(driver, janitor=False) for _ in range(3)]
    for worker in workers:
        worker.register("greet", handle)
        worker.start()
    job_id = Client(driver).enqueue(JobRequest(type="greet")).id
    with closing(JobWatcher(driver.inspector)) as watcher:
        waiting = threading.Thread(target=lambda: counted.append(watcher.wait(job_id, DEADLINE).status))
        waiting.start()
        assert started.wait(LIMIT_SECONDS)
        together = listening_backends(url)
        may_end.set()
        waiting.join(LIMIT_SECONDS)
    for worker in workers[:2]:
        worker.stop()
    left = listening_backends(url)
    workers[2].stop()

    assert (len(together), left, counted) == (1, together, [Status.SUCCEEDED])
    wait_until(lambda: not listening_backends(url))


def test_all_listeners_are_notified_again_after_their_connection_was_killed(url: str, driver: PostgresDriver) -> None:
    with ExitStack() as stack, closing(PostgresDriver(url)) as elsewhere:
        listeners = [stack.enter_context(closing(driver.listen(["default"]))) for _ in range(3)]
        [killed] = listening_backends(url)
        with psycopg.connect(url) as db:
            db.execute("SELECT pg_terminate_backend(%s)", [killed])
        wait_until(lambda: len(listening_backends(url) - {killed}) == 1)
        wait_until(lambda: not any(listener.wait(SHORT) for listener in listeners))

        elsewhere.insert([new_job()])

        assert [bool(listener.wait(DEADLINE)) for listener in listeners] == [True, True, True]
        assert len(listening_backends(url)) == 1


def test_a_child_listens_on_a_connection_of_its_own(url: str, driver: PostgresDriver) -> None:
    with closing(driver.listen(["default"])) as listener:
        before = listening_backends(url)
        child = FORK.Process(target=listen_in_a_child, args=(url, driver, listener, before))
        child.start()
        child.join(LIMIT_SECONDS)
        wait_until(lambda: not listener.wait(SHORT))  # for the job that the child stored

        with closing(PostgresDriver(url)) as elsewhere:
            elsewhere.insert([new_job()])

        assert (child.exitcode, bool(listener.wait(DEADLINE))) == (0, True)
        wait_until(lambda: len(listening_backends(url)) == 1)  # on a busy machine, that of the parent may be a new one


def listen_in_a_child(url: str, driver: PostgresDriver, inherited: PostgresListener, parents: set[int]) -> None:
    inherited.wait(SHORT)
    with closing(driver.listen(["default"])) as own, closing(PostgresDriver(url)) as elsewhere:
        others = listening_backends(url) - parents
        elsewhere.insert([new_job()])
        notified = (bool(inherited.wait(DEADLINE)), bool(own.wait(DEADLINE)))
    inherited.close()
    sys.exit((len(others), notified) != (1, (True, True)))


def test_a_child_that_never_listened_does_not_affect_its_parents_listener(url: str, driver: PostgresDriver) -> None:
    with closing(driver.listen(["default"])) as listener:
        before = listening_backends(url)
        child = FORK.Process(target=close_what_is_inherited, args=(driver, listener))
        child.start()
        child.join(LIMIT_SECONDS)

        assert (child.exitcode, listening_backends(url)) == (0, before)


def close_what_is_inherited(driver: PostgresDriver, listener: PostgresListener) -> None:
    driver.insert([new_job()])
    listener.close()
    driver.close()
