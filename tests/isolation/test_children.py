"""Child processes: how their deaths are reported, when they are replaced, and that none is left."""

from __future__ import annotations

import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.states import FINAL, Status
from taskharbor.worker.isolation.child import Child, IsolatedCall
from taskharbor.worker.isolation.job_queue import JobQueue
from taskharbor.worker.isolation.wire import Wire
from tests.support import isolated_app as app
from tests.support.isolation_rig import new_execution, processes
from tests.support.waiting import is_running, wait_until

if TYPE_CHECKING:
    from taskharbor.tasks import Handle
    from tests.support.isolation_rig import IsolationRig


@pytest.mark.parametrize(
    ("handle", "message", "line"),
    [
        (lambda: app.crash.using(max_attempts=1).enqueue(), "was killed by SIGSEGV", "about to crash"),
        (lambda: app.exit_now.using(max_attempts=1).enqueue(3), "exited with code 3", "the last words"),
        (lambda: app.kill_itself.using(max_attempts=1).enqueue(), "was killed by SIGKILL", ""),
    ],
)
def test_the_death_of_a_child_is_reported_with_all_that_is_known(
    rig: IsolationRig, handle: Any, message: str, line: str
) -> None:
    dead, other = handle(), app.pid_of_child.enqueue()

    rig.drain()

    failure = rig.failure(dead)
    assert failure.type == "taskharbor.ChildDied"
    assert failure.message.startswith(f"its process {message}")
    assert "peak memory" in failure.message
    assert line in failure.traceback
    assert other.status() is Status.SUCCEEDED


def test_the_stack_of_a_crash_is_kept(rig: IsolationRig) -> None:
    handle = app.crash.using(max_attempts=1).enqueue()

    rig.drain()

    assert "isolated_app.py" in rig.failure(handle).traceback
    assert os.path.join("taskharbor", "worker", "executor.py") not in rig.failure(handle).traceback  # noqa: PTH118


def test_a_child_is_used_again_until_its_number_of_jobs(rig: IsolationRig) -> None:
    handles = [app.pid_of_child.enqueue() for _ in range(6)]

    rig.drain(concurrency=1, child_max_jobs=2)

    pids = [handle.result() for handle in handles]
    assert [pids[0], pids[2], pids[4]] == [pids[1], pids[3], pids[5]]
    assert len({*pids}) == 3


def test_a_child_is_replaced_when_it_uses_too_much_memory(rig: IsolationRig) -> None:
    handles = [app.pid_of_child.enqueue() for _ in range(3)]

    rig.drain(concurrency=1, child_max_memory="1MB")

    assert len({handle.result() for handle in handles}) == 3


def test_an_idle_child_that_is_killed_costs_no_attempt(rig: IsolationRig) -> None:
    first = app.pid_of_child.enqueue()
    with rig.running(concurrency=1):
        pid = first.result()

        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))
        second = app.pid_of_child.enqueue()

        assert second.result() != pid
        assert second.job().attempt_count == 1
        assert rig.started == [first.id, second.id]


def test_processes_that_a_handler_leaves_are_killed(rig: IsolationRig, caplog: pytest.LogCaptureFixture) -> None:
    handles = [app.leave_a_process.enqueue(str(rig.folder)) for _ in range(2)]

    with rig.running(concurrency=1):
        first, second = (handle.result() for handle in handles)
        wait_until(lambda: not any(map(is_running, rig.noted_pids())))

    assert first != second
    about = [vars(each) for each in caplog.records if "processes behind; killing them" in each.getMessage()]
    assert [each["job_id"] for each in about] == [str(handle.id) for handle in handles]
    assert {each["type"] for each in about} == {"leave_a_process"}


def test_a_copy_of_a_child_that_a_handler_forks_ends_no_attempt(rig: IsolationRig) -> None:
    handles = [app.fork_and_return.enqueue(number) for number in range(10)]

    rig.drain(concurrency=1)

    assert [handle.result() for handle in handles] == [*range(10)]


def test_a_child_that_cannot_start_costs_no_attempt(
    rig: IsolationRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ISOLATED_APP_BROKEN", "1")
    handle = app.pid_of_child.enqueue()

    with rig.running(isolate=True):
        wait_until(lambda: "no isolated process could be started" in caplog.text)
        wait_until(lambda: handle.status() is Status.PENDING)

    assert "its process exited with code 3; peak memory" in caplog.text
    assert "LookupError: no such model; retrying in 1 s" in caplog.text
    assert handle.job().attempt_count == 0


def test_a_zygote_that_is_killed_is_replaced(rig: IsolationRig) -> None:
    running = app.fork_and_wait.using(max_attempts=1).enqueue(str(rig.folder))
    with rig.running(concurrency=2):
        wait_until(lambda: len(rig.noted_pids()) == 2)
        child = next(pid for pid in rig.noted_pids() if pid in processes())
        zygote = _parent_of(min(rig.noted_pids()))

        os.kill(zygote, signal.SIGKILL)

        wait_until(lambda: running.status() in FINAL)
        assert rig.failure(running).type == "taskharbor.ChildDied"
        assert isinstance(app.pid_of_child.enqueue().result(), int)
        wait_until(lambda: not is_running(child))


def test_no_processes_are_left_after_many_timeouts(rig: IsolationRig) -> None:
    handles: list[Handle[Any]] = [
        app.loop.using(timeout=0.05, max_attempts=1).enqueue(str(rig.folder)) for _ in range(20)
    ]

    rig.drain(concurrency=4)

    assert {handle.status() for handle in handles} == {Status.DEAD}
    wait_until(lambda: not processes())


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[1])


def test_a_child_that_still_runs_an_attempt_gets_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    link, their_link = socket.socketpair()
    supervision, their_supervision = socket.socketpair()
    output, their_output = os.pipe()
    child = Child(link, supervision, output, JobQueue())

    def fail(_record: logging.LogRecord) -> bool:
        raise LookupError

    monkeypatch.setattr(logging.getLogger("shop"), "filters", [fail])
    fields = {"name": "shop", "levelname": "ERROR", "levelno": logging.ERROR, "msg": "no stock"}
    with their_link, their_supervision:
        Wire(their_link).send({"log": fields})

        with pytest.raises(LookupError):
            child.run(IsolatedCall(new_execution(), 0, None, lambda *_: None), lambda _: None)

        assert not child.is_usable
    child.close()
    os.close(their_output)
