"""The supervisor of worker processes, run in a forked process with small programs instead of workers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.cli import supervisor as module
from taskharbor.cli.main import ExitCode
from taskharbor.cli.supervisor import Slot, Supervisor, WorkerProcess
from taskharbor.cli.systemd import SystemdNotifier
from taskharbor.service import SAME_STOP_SECONDS
from taskharbor.settings import Settings
from tests.support.waiting import LIMIT_SECONDS, is_running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PROGRAM: Final = """
import os, signal, socket, sys, time
folder, behavior, link = sys.argv[1], sys.argv[2], socket.socket(fileno=int(sys.argv[4]))
pid = os.getpid()
def note(what):
    with open(f"{folder}/notes", "a") as file:
        file.write(f"{what} {pid}\\n")
def stop(*_):
    note("term")
    if behavior != "stay":
        os._exit(0)
signal.signal(signal.SIGTERM, stop)
if behavior == "refuse":
    sys.exit(10)
if behavior in ("import", "load"):
    note(behavior)
    signal.pause()
note("ready")
link.send(b"ready a program\\n")
if behavior.startswith("recycle"):
    sys.exit(int(behavior.removeprefix("recycle")))
if behavior == "crash":
    os.kill(pid, signal.SIGKILL)
while True:
    time.sleep(0.05)
    if behavior != "hang":
        link.send(b"beat\\n")
    if not os.path.exists(folder):
        os._exit(0)
"""


class Forked:
    """A supervisor in a forked process. Programs behave as the file ``behavior`` says when they are started."""

    def __init__(self, folder: Path, count: int, *, stuck_after: float, grace: float) -> None:
        self.folder = folder
        self.pid = os.fork()
        if self.pid == 0:
            logging.basicConfig(filename=folder / "log", level=logging.INFO, force=True)
            vars(module).update(FIRST_BACKOFF_SECONDS=0.05, KILL_AFTER_SECONDS=0.5)  # so that the tests need not wait
            self._supervisor = supervisor = Supervisor(
                command=self._command,
                count=count,
                grace=timedelta(seconds=grace),
                stuck_after=timedelta(seconds=stuck_after),
                systemd=SystemdNotifier(Settings()),
                start_timeout=timedelta(seconds=LIMIT_SECONDS),
            )
            code = 70
            try:
                code = supervisor.run()
            finally:
                os._exit(code)

    def _command(self, number: int) -> Sequence[str]:  # noqa: ARG002  all are alike
        behavior = (self.folder / "behavior").read_text()
        if behavior == "import":  # no other process may miss the limit, however busy the machine is
            self._supervisor.start_timeout = timedelta(seconds=1)
        return [sys.executable, "-S", "-c", PROGRAM, str(self.folder), behavior]

    def noted(self, what: str) -> list[int]:
        """Return the pids that have written this note, in order."""
        notes = self.folder / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [int(pid) for name, pid in map(str.split, lines) if name == what]

    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Return the exit code."""
        ended: list[int] = []

        def has_ended() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            ended.extend([os.waitstatus_to_exitcode(status)] if pid else [])
            return bool(pid)

        wait_until(has_ended)
        self.pid = 0
        return ended[0]

    def end(self) -> None:
        self.send(signal.SIGTERM)
        assert self.wait() == 0


@contextmanager
def supervised(
    folder: Path,
    behavior: str,
    *,
    count: int = 1,
    stuck_after: float = 60,
    grace: float = LIMIT_SECONDS,
) -> Iterator[Forked]:
    (folder / "behavior").write_text(behavior)
    forked = Forked(folder, count, stuck_after=stuck_after, grace=grace)
    try:
        yield forked
    finally:
        if forked.pid:
            os.kill(forked.pid, signal.SIGKILL)
            os.waitpid(forked.pid, 0)
        for pid in {*forked.noted("ready"), *forked.noted("import"), *forked.noted("load")}:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def test_all_processes_are_started_and_stopped_by_one_signal(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", count=3) as supervisor:
        wait_until(lambda: len(supervisor.noted("ready")) == 3)
        supervisor.end()

        assert sorted(supervisor.noted("term")) == sorted(supervisor.noted("ready"))
        assert not any(map(is_running, supervisor.noted("ready")))


def test_a_process_that_cannot_start_ends_the_supervisor_and_no_other_is_started(tmp_path: Path) -> None:
    with supervised(tmp_path, "refuse", count=3) as supervisor:
        assert supervisor.wait() == ExitCode.APP_IMPORT_FAILED

        assert supervisor.noted("ready") == []
        assert "replacing" not in supervisor.log()


def test_a_process_that_crashes_is_replaced_after_growing_pauses(tmp_path: Path) -> None:
    with supervised(tmp_path, "run") as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        (tmp_path / "behavior").write_text("crash")
        os.kill(supervisor.noted("ready")[0], signal.SIGKILL)
        wait_until(lambda: len(supervisor.noted("ready")) >= 4)
        (tmp_path / "behavior").write_text("run")
        wait_until(lambda: is_running(supervisor.noted("ready")[-1]))

        pauses = ["replacing it in 50 ms", "replacing it in 100 ms", "replacing it in 200 ms"]
        log = supervisor.log()
        assert [log.find(pause) for pause in pauses] == sorted(log.find(pause) for pause in pauses)
        assert "was killed by SIGKILL; replacing it in 50 ms" in log
        supervisor.end()


@pytest.mark.parametrize("code", [ExitCode.SLOTS_LOST, ExitCode.RECYCLED])
def test_a_process_that_ended_to_be_replaced_is_replaced_at_once(tmp_path: Path, code: int) -> None:
    with supervised(tmp_path, "run") as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        (tmp_path / "behavior").write_text(f"recycle{code}")
        os.kill(supervisor.noted("ready")[0], signal.SIGKILL)
        wait_until(lambda: len(supervisor.noted("ready")) >= 3)
        (tmp_path / "behavior").write_text("run")

        assert f"exited with code {code}; replacing it in 0 ms" in supervisor.log()
        wait_until(lambda: is_running(supervisor.noted("ready")[-1]))
        supervisor.end()


def test_a_restart_starts_each_process_before_it_stops_the_old_one(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", count=2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        old = supervisor.noted("ready")

        supervisor.send(signal.SIGHUP)
        wait_until(lambda: len(supervisor.noted("term")) == 2)

        lines = (tmp_path / "notes").read_text().split()[::2]
        assert lines == ["ready", "ready", "ready", "term", "ready", "term"]
        assert supervisor.noted("term") == old
        supervisor.end()


def test_a_restart_that_fails_stops_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", count=2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        (tmp_path / "behavior").write_text("refuse")

        supervisor.send(signal.SIGHUP)
        wait_until(lambda: "before it was ready; the others keep running with the old code" in supervisor.log())

        assert all(map(is_running, supervisor.noted("ready")))
        supervisor.end()


def test_a_second_restart_replaces_what_the_first_one_is_starting(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", count=2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        old = supervisor.noted("ready")
        (tmp_path / "behavior").write_text("load")  # the code of the first restart
        supervisor.send(signal.SIGHUP)
        wait_until(lambda: len(supervisor.noted("load")) == 1)
        (tmp_path / "behavior").write_text("run")

        supervisor.send(signal.SIGHUP)

        wait_until(lambda: not any(map(is_running, [*old, *supervisor.noted("load")])))
        assert len(supervisor.noted("ready")) == 4
        assert "keep running with the old code" not in supervisor.log()
        supervisor.end()


def test_a_restart_whose_new_process_does_not_become_ready_stops_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", count=2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        (tmp_path / "behavior").write_text("import")

        supervisor.send(signal.SIGHUP)
        wait_until(lambda: "before it was ready; the others keep running with the old code" in supervisor.log())

        assert "was not ready after" in supervisor.log()
        assert all(map(is_running, supervisor.noted("ready")))
        assert not any(map(is_running, supervisor.noted("import")))
        supervisor.end()


def test_a_replacement_that_does_not_become_ready_is_replaced_itself(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", count=2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        (tmp_path / "behavior").write_text("import")

        os.kill(supervisor.noted("ready")[0], signal.SIGKILL)
        wait_until(lambda: len(supervisor.noted("import")) >= 2)

        assert not is_running(supervisor.noted("import")[0])
        assert is_running(supervisor.noted("ready")[1])
        supervisor.end()


def test_a_process_without_progress_is_killed_and_replaced(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", stuck_after=1.5) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        [first] = supervisor.noted("ready")
        os.kill(first, signal.SIGSTOP)

        wait_until(lambda: len(supervisor.noted("ready")) == 2)

        assert not is_running(first)
        assert f"worker process {first} made no progress for" in supervisor.log()
        supervisor.end()


def test_a_supervisor_that_was_frozen_gives_its_processes_time_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, now, killed = timedelta(seconds=60), 0.0, list[tuple[float, int]]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(module, "_kill", lambda _, number: killed.append((now, number)))
    supervisor = Supervisor(
        command=lambda _: [],
        count=1,
        grace=limit,
        stuck_after=limit,
        systemd=SystemdNotifier(Settings()),
        start_timeout=limit,
    )
    link, theirs = socket.socketpair()
    process = WorkerProcess(os.getpid(), link, started_at=0.0, beat_at=0.0, text="a program")
    supervisor.slots[0].current, supervisor._is_started = process, True  # noqa: SLF001  without real processes
    with link, theirs:
        for moment in (1.0, 601.0, *range(602, 662)):  # frozen for ten minutes
            now = moment
            supervisor._kill_stuck()  # noqa: SLF001  as in a turn

    assert killed == [(660.0, signal.SIGABRT), (661.0, signal.SIGKILL)]


def test_a_process_that_does_not_stop_is_killed_after_the_grace(tmp_path: Path) -> None:
    with supervised(tmp_path, "stay", grace=0.2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())

        supervisor.end()

        assert "did not stop in time; killing it" in supervisor.log()
        assert not is_running(supervisor.noted("ready")[0])


def test_a_process_that_the_system_cannot_start_is_started_later(tmp_path: Path) -> None:
    with supervised(tmp_path, "run", count=2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        first, other = supervisor.noted("ready")
        (tmp_path / "behavior").unlink()  # an OSError, as without memory
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: "no worker process can be started; trying again in" in supervisor.log())

        (tmp_path / "behavior").write_text("run")
        wait_until(lambda: len(supervisor.noted("ready")) == 3)

        assert is_running(other)
        supervisor.end()


def test_a_restart_that_the_system_refuses_stops_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path, "run") as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        (tmp_path / "behavior").unlink()

        supervisor.send(signal.SIGHUP)
        wait_until(lambda: "the others keep running with the old code" in supervisor.log())

        assert is_running(supervisor.noted("ready")[0])
        supervisor.end()


def test_a_process_that_becomes_ready_at_a_stop_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = timedelta(seconds=LIMIT_SECONDS)
    systemd, started = SystemdNotifier(Settings()), list[Slot]()
    supervisor = Supervisor(
        command=lambda _: [], count=2, grace=limit, stuck_after=limit, systemd=systemd, start_timeout=limit
    )
    monkeypatch.setattr(Supervisor, "_start", lambda _, slot: started.append(slot))
    link, theirs = socket.socketpair()
    process = supervisor.slots[0].current = WorkerProcess(os.getpid(), link, started_at=0.0, beat_at=0.0)
    supervisor._stopped_at = 0.0  # noqa: SLF001  without a signal
    with link, theirs:
        theirs.send(b"ready a program\n")

        supervisor._read(process)  # noqa: SLF001  as in a turn after the stop

    assert process.is_ready
    assert not started


def test_a_process_that_became_ready_just_before_its_end_was_ready() -> None:
    limit = timedelta(seconds=LIMIT_SECONDS)
    supervisor = Supervisor(
        command=lambda _: [],
        count=1,
        grace=limit,
        stuck_after=limit,
        systemd=SystemdNotifier(Settings()),
        start_timeout=limit,
    )
    link, theirs = socket.socketpair()
    slot = supervisor.slots[0]
    slot.current = WorkerProcess(os.getpid(), link, started_at=0.0, beat_at=0.0)
    with link, theirs:
        theirs.send(b"ready a program\n")

        supervisor._ended(os.getpid(), ExitCode.RECYCLED)  # noqa: SLF001  reaped before its message was read

    assert (slot.backoff, supervisor.exit_code) == (0.0, ExitCode.OK)
    assert slot.start_at is not None


def test_a_restart_kills_an_old_process_that_does_not_stop(tmp_path: Path) -> None:
    with supervised(tmp_path, "stay", grace=0.2) as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        [old] = supervisor.noted("ready")
        (tmp_path / "behavior").write_text("run")

        supervisor.send(signal.SIGHUP)
        wait_until(lambda: not is_running(old))

        assert f"worker process {old} did not stop in time; killing it" in supervisor.log()
        assert is_running(supervisor.noted("ready")[1])
        supervisor.end()


def test_a_second_signal_is_forwarded_too(tmp_path: Path) -> None:
    with supervised(tmp_path, "stay") as supervisor:
        wait_until(lambda: "supervisor started" in supervisor.log())
        supervisor.send(signal.SIGTERM)
        wait_until(lambda: len(supervisor.noted("term")) == 1)
        threading.Event().wait(SAME_STOP_SECONDS)  # a person presses Ctrl-C again

        supervisor.send(signal.SIGINT)

        wait_until(lambda: len(supervisor.noted("term")) == 2)
