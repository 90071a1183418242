"""Handlers that do not end by themselves: their processes are killed, and nothing else is harmed."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.states import FINAL, Status
from tests.support import isolated_app as app
from tests.support.isolation_rig import descriptors, processes, threads
from tests.support.waiting import is_running, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.tasks import Handle
    from tests.support.isolation_rig import IsolationRig

TIMEOUT_SECONDS = 0.5
LIMIT_SECONDS = TIMEOUT_SECONDS + 10.0  # nine of them are at work, and so may others be


def test_hostile_handlers_fail_their_own_attempts_only(rig: IsolationRig) -> None:
    app.pid_of_child.enqueue()
    rig.drain(concurrency=10)  # opens all connections
    before = descriptors(), threads()
    hostile: dict[str, Handle[Any]] = {
        task.type: task.using(timeout=TIMEOUT_SECONDS, max_attempts=1).enqueue()
        for task in (
            app.hold_the_gil,
            app.match_without_end,
            app.crash,
            app.ignore_sigterm,
            app.close_all_descriptors,
            app.write_to_the_link,
        )
    }
    call = app.fork_and_wait.using(timeout=TIMEOUT_SECONDS, max_attempts=1)
    hostile["fork_and_wait"] = call.enqueue(str(rig.folder))
    hostile["allocate"] = app.allocate.using(timeout=TIMEOUT_SECONDS, max_attempts=1).enqueue(10_000)
    hostile["write_a_lot"] = app.write_a_lot.using(timeout=TIMEOUT_SECONDS, max_attempts=1).enqueue(1_000)

    with rig.running(concurrency=10):
        others = [app.pid_of_child.enqueue() for _ in range(20)]
        wait_until(lambda: all(handle.status() in FINAL for handle in (*hostile.values(), *others)))
        assert len(processes()) > 0

    assert {name: handle.status() for name, handle in hostile.items()} == dict.fromkeys(hostile, Status.DEAD)
    assert {other.status() for other in others} == {Status.SUCCEEDED}
    took = {name: rig.seconds[handle.id] for name, handle in hostile.items()}
    assert {name: seconds for name, seconds in took.items() if seconds > LIMIT_SECONDS} == {}
    assert len(rig.noted_pids()) == 2  # of the handler that forks
    wait_until(lambda: not processes() and not any(map(is_running, rig.noted_pids())))
    wait_until(lambda: threads() <= before[1])
    assert descriptors() == before[0]


def test_a_handler_that_computes_is_interrupted_at_its_timeout(rig: IsolationRig) -> None:
    handle = app.loop.using(timeout=0.3, max_attempts=1).enqueue(str(rig.folder))

    rig.drain()

    failure = rig.failure(handle)
    assert failure.is_timeout
    assert "isolated_app.py" in failure.traceback  # it shows where the handler was
    assert (rig.folder / "cleaned-up").exists()


def test_an_async_handler_is_canceled_at_its_timeout(rig: IsolationRig) -> None:
    handle = app.await_forever.using(timeout=0.3, max_attempts=1).enqueue(str(rig.folder))

    rig.drain()

    assert rig.failure(handle).is_timeout
    assert (rig.folder / "cleaned-up").exists()


def test_a_killed_handler_has_the_line_that_it_hung_in(rig: IsolationRig) -> None:
    def traceback_of_a_killed_handler() -> str:
        handle = app.hold_the_gil.using(timeout=0.1, max_attempts=1).enqueue()
        rig.drain()
        failure = rig.failure(handle)
        assert failure.is_timeout
        assert "did not end when it was asked to, and was killed" in failure.traceback
        return str(failure.traceback)

    # On a very busy machine a child may be killed before it had the time to print its stack.
    assert any("in hold_the_gil" in traceback_of_a_killed_handler() for _ in range(10))


def test_a_handler_that_ignores_signals_sees_that_it_must_stop(rig: IsolationRig) -> None:
    handle = app.wait_for_stop.enqueue(str(rig.folder))

    with rig.running():
        rig.wait_for("running")
        handle.cancel()
        wait_until(lambda: handle.status() is Status.CANCELED)

    assert (rig.folder / "asked").exists()


def test_a_canceled_handler_is_killed(rig: IsolationRig) -> None:
    handle = app.fork_and_wait.enqueue(str(rig.folder))

    with rig.running():
        wait_until(lambda: len(rig.noted_pids()) == 2)
        handle.cancel()
        wait_until(lambda: handle.status() is Status.CANCELED)
        wait_until(lambda: not any(map(is_running, rig.noted_pids())))


def test_a_stop_kills_running_handlers_and_releases_their_jobs(rig: IsolationRig) -> None:
    handle = app.fork_and_wait.enqueue(str(rig.folder))
    worker = rig.worker()
    worker.start()
    wait_until(lambda: len(rig.noted_pids()) == 2)

    worker.stop(timedelta(0))

    job = handle.job()
    assert (job.status, job.releases) == (Status.PENDING, 1)
    wait_until(lambda: not processes() and not any(map(is_running, rig.noted_pids())))


def test_a_handler_whose_lease_is_lost_is_killed(rig: IsolationRig) -> None:
    handle = app.fork_and_wait.enqueue(str(rig.folder))

    with rig.running(lease=timedelta(seconds=1)):
        wait_until(lambda: len(rig.noted_pids()) == 2)
        first = rig.noted_pids()
        with closing(sqlite3.connect(rig.file, timeout=20)) as connection:
            connection.execute("UPDATE th_jobs SET lease_token = ? WHERE lease_token IS NOT NULL", (os.urandom(16),))
            connection.commit()
        wait_until(lambda: not any(map(is_running, first)))

    assert handle.job().status in {Status.PENDING, Status.FAILED, Status.PROCESSING}


@pytest.mark.parametrize("allocate", [lambda: app.allocate.enqueue(10_000), lambda: app.allocate_shared.enqueue(1_000)])
def test_an_attempt_beyond_its_memory_limit_fails(rig: IsolationRig, allocate: Callable[[], Handle[Any]]) -> None:
    handle = allocate()

    with rig.running():
        wait_until(lambda: handle.status() is Status.FAILED)

    assert str(handle.job().last_error).startswith(
        "taskharbor.MemoryLimitReached: the memory limit of 256 MB was reached"
    )


def test_the_memory_of_all_processes_of_an_attempt_is_limited(rig: IsolationRig) -> None:
    handle = app.allocate_in_copies.using(max_attempts=1).enqueue(str(rig.folder), 3, 100)

    with rig.running():
        wait_until(lambda: handle.status() is Status.DEAD)
        wait_until(lambda: not any(map(is_running, rig.noted_pids())))

    assert rig.failure(handle).type == "taskharbor.MemoryLimitReached"


def test_memory_that_processes_of_an_attempt_share_counts_once(rig: IsolationRig) -> None:
    handle = app.share_with_copies.enqueue(100, 4)

    rig.drain()

    assert handle.result() == 100 << 20


def test_a_killed_handler_leaves_no_process_in_any_session(rig: IsolationRig) -> None:
    handle = app.hang_with_daemons.enqueue(str(rig.folder))

    with rig.running():
        wait_until(lambda: len(rig.noted_pids()) == 4)
        handle.cancel()
        wait_until(lambda: handle.status() is Status.CANCELED)
        wait_until(lambda: not any(map(is_running, rig.noted_pids())))


def test_an_attempt_within_its_memory_limit_succeeds(rig: IsolationRig) -> None:
    handle = app.allocate.enqueue(100)

    rig.drain()

    assert handle.result() == 100 << 20


def test_a_job_after_a_stopped_one_is_not_stopped(rig: IsolationRig) -> None:
    stopped = app.loop.using(timeout=0.2, max_attempts=1).enqueue(str(rig.folder))
    others = [app.pid_of_child.enqueue() for _ in range(10)]

    rig.drain(concurrency=1)

    assert stopped.status() is Status.DEAD
    assert int(rig.wait_for("running")) not in {other.result() for other in others}  # its process is not used again
