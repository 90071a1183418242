"""Tests of notifications on a SQLite file beyond the contract: between processes, and by polling without sockets."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sqlite3
import stat
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.ids import new_token
from taskharbor.drivers.base import Notice
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.notify import ChangeWatch, SqliteListener, socket_dir
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from tests.support.mount_namespace import call_in
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from taskharbor.core.ids import JobId

DEADLINE: Final = timedelta(seconds=30)
SHORT_WAIT: Final = timedelta(milliseconds=10)
NO_POLLING: Final = timedelta(days=1)  # between two checks of the file: only datagrams notify
SPAWN: Final = multiprocessing.get_context("spawn")
FORK: Final = multiprocessing.get_context("fork")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def driver(file: Path) -> Iterator[SqliteDriver]:
    with closing(SqliteDriver(file)) as driver:
        yield driver


@contextmanager
def listening(file: Path, *, poll: timedelta = NO_POLLING) -> Iterator[SqliteListener]:
    with closing(SqliteListener(file, ["default"], poll=poll)) as listener:
        yield listener


def insert_one(file: Path) -> None:
    with closing(SqliteDriver(file)) as driver:
        driver.insert([new_job()])


@pytest.mark.usefixtures("driver")
def test_a_job_inserted_by_another_process_notifies(file: Path) -> None:
    with listening(file) as listener, SPAWN.Pool(1) as pool:
        inserting = pool.apply_async(insert_one, (file,))

        assert listener.wait(DEADLINE)
        inserting.get(DEADLINE.total_seconds())


def test_a_listener_is_not_notified_of_other_queues(driver: SqliteDriver, file: Path) -> None:
    with listening(file) as listener:
        driver.insert([new_job(queue="other")])
        others = bool(listener.wait(SHORT_WAIT))
        driver.insert([new_job(queue="other"), new_job()])
        own = bool(listener.wait(DEADLINE))

    assert (others, own) == (False, True)


def test_a_delayed_job_does_not_notify(driver: SqliteDriver, file: Path) -> None:
    with listening(file) as listener:
        driver.insert([new_job(delay=LEASE)])

        assert not listener.wait(SHORT_WAIT)


def test_a_listener_that_does_not_wait_blocks_no_inserts_and_is_notified_once(driver: SqliteDriver, file: Path) -> None:
    with listening(file) as listener:
        for _ in range(200):
            driver.insert([new_job()])

        assert (bool(listener.wait(DEADLINE)), bool(listener.wait(SHORT_WAIT))) == (True, False)


def test_a_cancel_notifies_the_worker_that_runs_the_job_and_no_other(driver: SqliteDriver, file: Path) -> None:
    running = [_running(driver, worker) for worker in ("one", "other")]

    with closing(SqliteListener(file, ["default"], worker="one", poll=NO_POLLING)) as listener:
        driver.cancel([running[1]])
        of_other = listener.wait(SHORT_WAIT)
        driver.cancel([running[0]])
        of_one = listener.wait(DEADLINE)
        driver.cancel(running)

        assert (of_other, of_one, listener.wait(DEADLINE)) == (Notice.NONE, Notice.CANCELS, Notice.CANCELS)


def _running(driver: SqliteDriver, worker: str) -> JobId:
    """Return a job that *worker* runs."""
    driver.insert([new_job()])
    [claim] = driver.reserve(
        "default", token=new_token(), worker=worker, lease=LEASE, limit=1, overdue_after=OVERDUE_AFTER
    )
    return claim.job.id


@pytest.mark.usefixtures("driver")
def test_a_commit_without_a_message_counts_as_a_job_and_as_a_cancel(file: Path) -> None:
    with closing(SqliteListener(file, ["default"], worker="one", poll=SHORT_WAIT)) as listener:
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("CREATE TABLE other (id)")

        assert listener.wait(DEADLINE) == Notice.ALL


@pytest.mark.usefixtures("driver")
def test_a_wake_does_not_hide_a_commit_without_a_message(file: Path) -> None:
    with closing(SqliteListener(file, ["default"], worker="one", poll=SHORT_WAIT)) as listener:
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("CREATE TABLE other (id)")
        listener.wake()

        assert any(listener.wait(DEADLINE) == Notice.ALL for _ in range(2))  # the first wait may end for both


@pytest.mark.usefixtures("driver")
def test_the_socket_directory_is_private(file: Path) -> None:
    with listening(file):
        assert stat.S_IMODE(socket_dir(file).stat().st_mode) == 0o700


@pytest.mark.usefixtures("driver")
def test_the_last_listener_removes_its_sockets_and_directory(file: Path) -> None:
    before = _descriptors()

    with listening(file), listening(file):
        pass

    assert not socket_dir(file).exists()
    wait_until(lambda: _descriptors() <= before)  # threads that earlier tests left may close some


def _descriptors() -> int:
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()])


def listen_until_killed(file: Path, ready: Connection) -> None:
    with listening(file) as listener:
        ready.send(None)
        listener.wait(NO_POLLING)


def test_the_next_notification_removes_the_socket_of_a_killed_listener(driver: SqliteDriver, file: Path) -> None:
    here, there = SPAWN.Pipe()
    victim = SPAWN.Process(target=listen_until_killed, args=(file, there))
    victim.start()
    assert here.poll(DEADLINE.total_seconds())
    os.kill(victim.pid or 0, signal.SIGKILL)
    victim.join(DEADLINE.total_seconds())
    before = len(list(socket_dir(file).iterdir()))

    with listening(file) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
        assert (before, len(list(socket_dir(file).iterdir()))) == (1, 1)
    victim.close()


def test_a_notification_removes_only_sockets(driver: SqliteDriver, file: Path) -> None:
    with listening(file):
        note = socket_dir(file) / "note"
        note.write_text("not a socket")
        driver.insert([new_job()])

        assert note.exists()


def test_a_path_too_long_for_a_socket_uses_the_temporary_directory(tmp_path: Path) -> None:
    file = tmp_path / ("deep" * 30) / "jobs.db"
    file.parent.mkdir()
    with closing(SqliteDriver(file)) as driver, listening(file) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
        assert socket_dir(file).exists()
        assert file.parent not in socket_dir(file).parents
    assert not socket_dir(file).exists()


def test_a_listener_on_a_symbolic_link_is_notified(driver: SqliteDriver, file: Path) -> None:
    link = file.with_name("link.db")
    link.symlink_to(file)
    with listening(link) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)


def make_file(folder: Path) -> None:
    folder.write_text("not a directory")


def make_public_directory(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def make_link(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir(0o700)
    folder.symlink_to(target)


@pytest.mark.parametrize("obstacle", [make_file, make_public_directory, make_link])
def test_a_job_is_noticed_by_polling_if_no_socket_can_be_trusted(
    driver: SqliteDriver, file: Path, obstacle: Any
) -> None:
    obstacle(socket_dir(file))

    with listening(file, poll=SHORT_WAIT) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
        assert not any(path.is_socket() for path in file.parent.rglob("*"))


def test_a_job_is_noticed_by_polling_if_the_directory_is_read_only(driver: SqliteDriver, file: Path) -> None:
    driver.insert([new_job()])
    socket_dir(file).mkdir(0o700)

    report = call_in(socket_dir(file), insert_and_listen, mounted="ro,mode=700")

    assert report == {"read-only": True, "notified": True}


def insert_and_listen(folder: Path) -> dict[str, bool]:
    file = folder.with_name(folder.name.removesuffix("-listeners"))
    with closing(SqliteDriver(file)) as driver, listening(file, poll=SHORT_WAIT) as listener:
        driver.insert([new_job()])
        return {"read-only": bool(os.statvfs(folder).f_flag & os.ST_RDONLY), "notified": bool(listener.wait(DEADLINE))}


def test_a_reserve_that_finds_no_job_wakes_no_listener(driver: SqliteDriver, file: Path) -> None:
    with closing(ChangeWatch(file, every=NO_POLLING)) as watch:
        driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=OVERDUE_AFTER)
        idle = watch.check()
        driver.insert([new_job()])

        assert (idle, watch.check()) == (False, True)


def listen_in_the_child(listener: SqliteListener, report: Connection) -> None:
    report.send(bool(listener.wait(timedelta(0))))
    report.send(bool(listener.wait(DEADLINE)))
    listener.close()


def test_a_listener_made_before_a_fork_works_in_both_processes(driver: SqliteDriver, file: Path) -> None:
    here, there = FORK.Pipe()
    with listening(file) as listener:
        child = FORK.Process(target=listen_in_the_child, args=(listener, there))
        child.start()
        assert (here.poll(DEADLINE.total_seconds()), here.recv()) == (True, False)

        driver.insert([new_job()])
        notified = bool(listener.wait(DEADLINE)), here.poll(DEADLINE.total_seconds()) and here.recv()
        child.join(DEADLINE.total_seconds())
        driver.insert([new_job()])

        assert notified == (True, True)
        assert child.exitcode == 0
        assert listener.wait(DEADLINE), "the child removed the socket of its parent"
