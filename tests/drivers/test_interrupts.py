"""A call that Ctrl-C interrupts leaves neither a lock nor an open transaction, and its connection can be used again."""

from __future__ import annotations

import signal
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor.core.results import Enqueued, JobFilter
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import new_job
from tests.support.postgres import emptied
from tests.support.signals import keyboard_interrupts
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

_OTHERS: Final = """
    SELECT state, wait_event_type
      FROM pg_stat_activity
     WHERE datname = current_database()
       AND application_name = 'taskharbor'
"""


def test_an_interrupted_statement_of_postgresql_is_canceled_and_its_connection_used_again() -> None:
    url, job, main = emptied(), new_job(idempotency_key="k"), threading.get_ident()
    with (
        closing(PostgresDriver(url, size=1)) as driver,
        psycopg.connect(url) as holder,
        psycopg.connect(url, autocommit=True) as db,
    ):

        def interrupt() -> None:
            wait_until(lambda: ("active", "Lock") in db.execute(_OTHERS).fetchall())
            signal.pthread_kill(main, signal.SIGINT)

        driver.join(holder).insert([new_job(idempotency_key="k")])
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        with keyboard_interrupts(), pytest.raises(KeyboardInterrupt):
            driver.insert([job])
        interrupter.join(LIMIT_SECONDS)
        holder.rollback()

        assert driver.insert([job]) == [Enqueued(job.id, existed=False)]
        wait_until(lambda: {state for state, _ in db.execute(_OTHERS).fetchall()} == {"idle"})


class InterruptedClock(ManualClock):
    """A clock that Ctrl-C interrupts. The driver reads it inside its transactions."""

    is_interrupted = False

    def now(self) -> datetime:
        if self.is_interrupted:
            raise KeyboardInterrupt
        return super().now()


def test_an_interrupted_transaction_of_sqlite_is_rolled_back(tmp_path: Path) -> None:
    file, clock = tmp_path / "jobs.db", InterruptedClock()
    with closing(SqliteDriver(file, clock=clock)) as driver, closing(sqlite3.connect(file, timeout=0)) as other:
        clock.is_interrupted = True
        with pytest.raises(KeyboardInterrupt):
            driver.insert([new_job()])
        clock.is_interrupted = False

        other.execute("BEGIN IMMEDIATE")  # it would be locked
        other.rollback()
        driver.insert([new_job()])
        assert len(driver.inspector.find(JobFilter(), limit=10).jobs) == 1
