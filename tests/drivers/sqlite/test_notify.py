"""What listening at a SQLite file promises beyond the contract: between processes, and where nothing can ring."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.ids import new_token
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.notify import ChangeWatch, SqliteListener, socket_dir
from taskharbor.testing.conformance.subject import LEASE, PATIENCE, new_job
from tests.support.mount_namespace import call_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

DEADLINE: Final = timedelta(seconds=30)
MOMENT: Final = timedelta(milliseconds=10)
NEVER: Final = timedelta(days=1)  # between two looks at the file: nothing is heard but what rings
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
def listening(file: Path, *, look: timedelta = NEVER) -> Iterator[SqliteListener]:
    with closing(SqliteListener(file, ["default"], look=look)) as listener:
        yield listener


def insert_one(file: Path) -> None:
    with closing(SqliteDriver(file)) as driver:
        driver.insert([new_job()])


@pytest.mark.usefixtures("driver")
def test_a_job_of_another_process_rings(file: Path) -> None:
    with listening(file) as listener, SPAWN.Pool(1) as pool:
        inserting = pool.apply_async(insert_one, (file,))

        assert listener.wait(DEADLINE)
        inserting.get(DEADLINE.total_seconds())


def test_who_listens_for_one_queue_does_not_hear_of_another(driver: SqliteDriver, file: Path) -> None:
    with listening(file) as listener:
        driver.insert([new_job(queue="other")])
        others = listener.wait(MOMENT)
        driver.insert([new_job(queue="other"), new_job()])
        own = listener.wait(DEADLINE)

    assert (others, own) == (False, True)


def test_a_job_for_later_does_not_ring(driver: SqliteDriver, file: Path) -> None:
    with listening(file) as listener:
        driver.insert([new_job(delay=LEASE)])

        assert not listener.wait(MOMENT)


def test_a_listener_that_does_not_wait_holds_nobody_up_and_hears_of_everything_at_once(
    driver: SqliteDriver, file: Path
) -> None:
    with listening(file) as listener:
        for _ in range(200):
            driver.insert([new_job()])

        assert (listener.wait(DEADLINE), listener.wait(MOMENT)) == (True, False)


@pytest.mark.usefixtures("driver")
def test_only_the_user_may_look_at_who_listens(file: Path) -> None:
    with listening(file):
        assert stat.S_IMODE(socket_dir(file).stat().st_mode) == 0o700


@pytest.mark.usefixtures("driver")
def test_when_nobody_listens_any_more_nothing_of_it_is_left(file: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    with listening(file), listening(file):
        pass

    assert not socket_dir(file).exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def listen_for_ever(file: Path, ready: Connection) -> None:
    with listening(file) as listener:
        ready.send(None)
        listener.wait(NEVER)


def test_the_socket_of_a_listener_that_was_killed_is_swept_away_by_the_next_ring(
    driver: SqliteDriver, file: Path
) -> None:
    here, there = SPAWN.Pipe()
    victim = SPAWN.Process(target=listen_for_ever, args=(file, there))
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


def test_a_ring_removes_nothing_but_sockets(driver: SqliteDriver, file: Path) -> None:
    with listening(file):
        note = socket_dir(file) / "note"
        note.write_text("not a socket")
        driver.insert([new_job()])

        assert note.exists()


def test_where_the_path_is_too_long_for_a_socket_the_folder_is_among_temporary_files(tmp_path: Path) -> None:
    file = tmp_path / ("deep" * 30) / "jobs.db"
    file.parent.mkdir()
    with closing(SqliteDriver(file)) as driver, listening(file) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
        assert socket_dir(file).exists()
        assert file.parent not in socket_dir(file).parents
    assert not socket_dir(file).exists()


def test_a_file_is_listened_at_under_each_of_its_names(driver: SqliteDriver, file: Path) -> None:
    link = file.with_name("link.db")
    link.symlink_to(file)
    with listening(link) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)


def occupied(folder: Path) -> None:
    folder.write_text("no folder")


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def led_elsewhere(folder: Path) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir(0o700)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("trouble", [occupied, open_to_all, led_elsewhere])
def test_where_no_socket_can_be_trusted_a_job_is_noticed_all_the_same(
    driver: SqliteDriver, file: Path, trouble: Any
) -> None:
    trouble(socket_dir(file))

    with listening(file, look=MOMENT) as listener:
        driver.insert([new_job()])

        assert listener.wait(DEADLINE)
        assert not any(path.is_socket() for path in file.parent.rglob("*"))


def test_where_the_folder_is_read_only_a_job_is_noticed_all_the_same(driver: SqliteDriver, file: Path) -> None:
    driver.insert([new_job()])
    socket_dir(file).mkdir(0o700)

    report = call_in(socket_dir(file), insert_and_listen, mounted="ro,mode=700")

    assert report == {"read-only": True, "rang": True}


def insert_and_listen(folder: Path) -> dict[str, bool]:
    file = folder.with_name(folder.name.removesuffix("-listeners"))
    with closing(SqliteDriver(file)) as driver, listening(file, look=MOMENT) as listener:
        driver.insert([new_job()])
        return {"read-only": bool(os.statvfs(folder).f_flag & os.ST_RDONLY), "rang": listener.wait(DEADLINE)}


def test_who_looks_for_jobs_and_finds_none_wakes_nobody(driver: SqliteDriver, file: Path) -> None:
    with closing(ChangeWatch(file, every=NEVER)) as watch:
        driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=PATIENCE)
        idle = watch.check()
        driver.insert([new_job()])

        assert (idle, watch.check()) == (False, True)


def listen_on_the_other_side(listener: SqliteListener, report: Connection) -> None:
    report.send(listener.wait(timedelta(0)))
    report.send(listener.wait(DEADLINE))
    listener.close()


def test_a_listener_made_before_a_fork_hears_on_both_sides_of_it(driver: SqliteDriver, file: Path) -> None:
    here, there = FORK.Pipe()
    with listening(file) as listener:
        child = FORK.Process(target=listen_on_the_other_side, args=(listener, there))
        child.start()
        assert (here.poll(DEADLINE.total_seconds()), here.recv()) == (True, False)

        driver.insert([new_job()])
        heard = listener.wait(DEADLINE), here.poll(DEADLINE.total_seconds()) and here.recv()
        child.join(DEADLINE.total_seconds())
        driver.insert([new_job()])

        assert heard == (True, True)
        assert child.exitcode == 0
        assert listener.wait(DEADLINE), "the other side took down more than its own"
