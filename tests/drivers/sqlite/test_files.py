"""Tests of the files of a SQLite store, their modes, and the order of writers."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Client, JobRequest
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite import SqliteDriver, pool
from taskharbor.drivers.sqlite.notify import socket_dir
from taskharbor.drivers.sqlite.pool import SqlitePool
from taskharbor.worker import Worker
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.model import Job

SHORT_DEADLINE: Final = timedelta(milliseconds=100)
LONG_DEADLINE: Final = timedelta(seconds=LIMIT_SECONDS)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Return a path without a file, for a process with umask 0."""
    before = os.umask(0)
    yield tmp_path / "jobs.db"
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_of_a_new_store_are_accessible_by_their_owner_only(file: Path) -> None:
    with closing(SqliteDriver(file)) as driver, closing(driver.listen(["default"])):
        Client(driver).enqueue(JobRequest(type="greet"))
        beside = [file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm")]

        assert [_mode(each) for each in (file, *beside)] == [0o600] * 3
        assert _mode(socket_dir(file)) == 0o700


def test_a_file_that_exists_keeps_its_mode(file: Path) -> None:
    file.touch(0o660)

    with closing(SqliteDriver(file)):
        assert _mode(file) == 0o660


class FairLock:
    """A lock that its waiters get in the order of their arrival."""

    def __init__(self) -> None:
        self._mutex, self.waiters, self._is_locked = threading.Lock(), list[threading.Event](), False

    def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        with self._mutex:
            is_free, self._is_locked = not self._is_locked, True
            if is_free or not blocking:
                return is_free
            granted = threading.Event()
            self.waiters.append(granted)
        return granted.wait(timeout)

    def release(self) -> None:
        with self._mutex:
            self._is_locked = bool(self.waiters)
            if self.waiters:
                self.waiters.pop(0).set()


def test_a_lease_is_extended_before_others_of_the_process_write(file: Path) -> None:
    connections, order = SqlitePool(file, clock=None, deadline=LONG_DEADLINE, synchronous="OFF"), list[str]()
    lock = FairLock()
    connections._writing = lock  # type: ignore[assignment]  # noqa: SLF001  so that the heartbeat is the last to arrive

    def write(name: str, *, urgent: bool) -> threading.Thread:
        def run() -> None:
            with connections.urgently() if urgent else connections:
                order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with connections:
        others = [write(f"other {number}", urgent=False) for number in range(4)]
        wait_until(lambda: len(lock.waiters) == 4)
        heartbeat = write("heartbeat", urgent=True)
        wait_until(lambda: len(lock.waiters) == 5)
    for thread in (heartbeat, *others):
        thread.join(LIMIT_SECONDS)

    assert order[0] == "heartbeat"
    assert sorted(order) == ["heartbeat", "other 0", "other 1", "other 2", "other 3"]
    connections.close()


def test_an_urgent_writer_that_gives_up_lets_the_others_write(file: Path) -> None:
    with closing(SqliteDriver(file, deadline=SHORT_DEADLINE)) as driver:
        Client(driver).enqueue(JobRequest(type="greet"))
        [claim] = driver.reserve(
            "default", token=new_token(), worker="w", lease=LONG_DEADLINE, limit=1, overdue_after=LONG_DEADLINE
        )
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="a handler's own write transaction"):
                driver.extend([claim.lease], lease=LONG_DEADLINE)

        assert Client(driver).enqueue(JobRequest(type="greet")).existed is False


def test_a_thread_behind_another_that_waits_for_the_file_names_the_same_cause(file: Path) -> None:
    SqliteDriver(file).close()
    connections = SqlitePool(file, clock=None, deadline=LONG_DEADLINE, synchronous="OFF")
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        def write() -> None:
            with connections:
                pass

        waiting = threading.Thread(target=write)
        waiting.start()
        wait_until(lambda: connections._is_file_locked)  # noqa: SLF001  the wait is not visible otherwise
        connections._seconds = 0.0  # noqa: SLF001  for the second writer only
        with pytest.raises(StoreUnavailable, match="a handler's own write transaction"):
            write()
        other.execute("ROLLBACK")
    waiting.join(LIMIT_SECONDS)

    assert not connections._is_file_locked  # noqa: SLF001
    connections.close()


def test_a_handlers_long_write_transaction_is_reported_before_leases_are_lost(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def hold(_job: Job) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as own:
            own.execute("BEGIN IMMEDIATE")
            wait_until(lambda: "store unavailable; retrying" in caplog.text)

    with closing(SqliteDriver(file, deadline=SHORT_DEADLINE)) as driver:
        worker = Worker(driver, lease=timedelta(seconds=9), heartbeat=timedelta(milliseconds=200), janitor=False)
        worker.register("hold", hold)
        job_id = Client(driver).enqueue(JobRequest(type="hold")).id
        worker.start()
        wait_until(lambda: driver.inspector.get([job_id])[job_id].status is Status.SUCCEEDED)
        worker.stop()

        assert driver.inspector.get([job_id])[job_id].attempt_count == 1
    assert "a handler's own write transaction, has held the write lock for too long" in caplog.text


def _move_backup(backup: Path, file: Path) -> None:
    """Replace the files of a store, as a person does who restores a backup while workers run."""
    for end in ("-wal", "-shm"):
        file.with_name(f"{file.name}{end}").unlink(missing_ok=True)
    backup.rename(file)


@pytest.fixture
def _file_is_always_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "FILE_CHECK_SECONDS", 0.0)


@pytest.mark.usefixtures("_file_is_always_checked")
def test_a_restored_backup_is_used_in_place_of_the_old_file(file: Path) -> None:
    backup = file.with_name("backup.db")
    SqliteDriver(backup).close()

    with closing(SqliteDriver(file)) as driver:
        old = Client(driver).enqueue(JobRequest(type="greet")).id
        with driver._connections.read():  # noqa: SLF001  a connection that is in use meanwhile
            _move_backup(backup, file)
            new = Client(driver).enqueue(JobRequest(type="greet")).id
        with closing(SqliteDriver(file)) as other:
            stored = other.inspector.get([old, new])
        seen = [[*driver.inspector.get([old, new])] for _ in range(3)]

    assert [*stored] == [new]
    assert seen == [[new]] * 3


@pytest.mark.usefixtures("_file_is_always_checked")
def test_a_file_that_was_removed_is_reported_and_not_created_again(file: Path) -> None:
    with closing(SqliteDriver(file)) as driver:
        Client(driver).enqueue(JobRequest(type="greet"))
        file.unlink()

        for call in (lambda: Client(driver).enqueue(JobRequest(type="greet")), driver.inspector.schedules):
            with pytest.raises(StoreUnavailable, match="removed while it was in use"):
                call()

    assert not file.exists()


@pytest.mark.usefixtures("_file_is_always_checked")
def test_a_relative_path_is_kept_if_the_process_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    with closing(SqliteDriver("jobs.db")) as driver:
        first = Client(driver).enqueue(JobRequest(type="greet")).id
        monkeypatch.chdir(elsewhere)
        second = Client(driver).enqueue(JobRequest(type="greet")).id
        driver.listen(["default"]).close()
        stored = driver.inspector.get([first, second])

    assert [*stored] == [first, second]
    assert [*elsewhere.iterdir()] == []


def test_locks_that_others_hold_for_too_long_are_a_store_out_of_reach(file: Path) -> None:
    error = sqlite3.OperationalError("locking protocol")
    error.sqlite_errorname = "SQLITE_PROTOCOL"  # after 100 attempts to lock the index of the WAL file

    with (
        closing(SqliteDriver(file)) as driver,
        pytest.raises(StoreUnavailable, match="held its locks for too long"),
        driver._connections.read(),  # noqa: SLF001  the layer that translates errors
    ):
        raise error
