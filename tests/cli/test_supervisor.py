"""`taskharbor worker --processes`: real processes that are killed, restarted, stopped and recycled."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import closing
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.request import urlopen

import pytest

from taskharbor import Client, JobRequest, Status
from taskharbor.cli.main import ExitCode
from taskharbor.cli.supervisor import _reaped
from taskharbor.core.model import AttemptOutcome
from taskharbor.drivers.connect import connect
from taskharbor.testing.postgres import _free_port
from tests.support.cli_processes import LIMIT_SECONDS, started, taskharbor
from tests.support.postgres import database
from tests.support.waiting import is_running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver
    from tests.support.cli_processes import Started

APP: Final = """
import os, pathlib, signal, threading

VERSION = "old"

def version(job):
    return [VERSION, os.getpid()]

def stay(job, ctx):
    pathlib.Path(job.data["sign"]).touch()
    while not pathlib.Path(job.data["end"]).exists() and not ctx.is_cancelled:
        threading.Event().wait(0.01)
    ctx.raise_if_cancelled()

def segfault(job):
    signal.raise_signal(11)  # in this thread: the handler does not return

def note(job):
    with open(job.data["file"], "a") as file:
        file.write(f"{job.id}\\n")

GROWN = []

def grow(job):
    GROWN.append(b"x" * (400 << 20))

handlers = {"version": version, "stay": stay, "segfault": segfault, "grow": grow, "note": note}
"""
NO_JOB_TO_WAIT_FOR: Final = ("--poll", "50ms")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    with closing(connect(url)) as driver:
        yield driver


def enqueue(driver: Driver, type: str, *, max_attempts: int = 20, **payload: str) -> JobId:
    request = JobRequest(type=type, payload=payload, max_attempts=max_attempts, timeout=timedelta(minutes=1))
    return Client(driver).enqueue(request).id


def result_of(driver: Driver, job_id: JobId) -> list[str | int]:
    """Wait until the job has succeeded, and return what its handler has returned."""
    wait_until(lambda: driver.inspector.get([job_id])[job_id].status is Status.SUCCEEDED)
    found: list[str | int] = json.loads(driver.inspector.get([job_id])[job_id].result or b"[]")
    return found


def pids_of(supervisor: Started) -> list[int]:
    """Wait until all processes were started, and return their pids."""
    wait_until(lambda: "supervisor started" in supervisor.log())
    [found] = re.findall(r"worker processes \(([\d, ]+)\)", supervisor.log())
    return [int(pid) for pid in found.split(", ")]


def end(supervisor: Started) -> None:
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(LIMIT_SECONDS) == 0, supervisor.log()


def test_worker_processes_share_a_start_line_and_end_with_their_supervisor(
    url: str, driver: Driver, tmp_path: Path
) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "--processes", "2", app=APP) as supervisor:
        pids = pids_of(supervisor)
        ran = {result_of(driver, enqueue(driver, "version"))[1] for _ in range(3)}
        end(supervisor)

    assert len(pids) == 2
    assert ran <= set(pids)
    assert not any(map(is_running, pids))
    assert supervisor.log().count(" started: ") == 1
    assert "2 worker processes" in supervisor.log()
    assert "5 tasks: grow, note, segfault, stay, version" in supervisor.log()


def test_a_killed_process_is_replaced_and_its_job_runs_again(url: str, driver: Driver, tmp_path: Path) -> None:
    arguments = ("--processes", "2", "--lease", "1s", *NO_JOB_TO_WAIT_FOR)
    with started(tmp_path, "worker", "shop.py", "--url", url, *arguments, app=APP) as supervisor:
        first, second = pids_of(supervisor)
        deadly = enqueue(driver, "segfault", max_attempts=1)
        wait_until(lambda: driver.inspector.get([deadly])[deadly].status is Status.DEAD)
        wait_until(lambda: "was killed by SIGSEGV; replacing it in" in supervisor.log())

        assert is_running(first) is not is_running(second)
        assert result_of(driver, enqueue(driver, "version"))[0] == "old"
        end(supervisor)


def test_processes_end_when_their_supervisor_is_killed(url: str, driver: Driver, tmp_path: Path) -> None:
    sign, finish = tmp_path / "sign", tmp_path / "end"
    with started(tmp_path, "worker", "shop.py", "--url", url, "--processes", "2", app=APP) as supervisor:
        pids = pids_of(supervisor)
        job_id = enqueue(driver, "stay", sign=str(sign), end=str(finish))
        wait_until(sign.exists)

        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait(LIMIT_SECONDS)

        wait_until(lambda: not any(map(is_running, pids)))
    # Both processes notice it, one after the other, so the second one may claim what the first one has released.
    assert {each.outcome for each in driver.inspector.attempts([job_id])} == {AttemptOutcome.RELEASED}
    assert "the supervisor is gone; stopping" in supervisor.log()


def test_a_job_runs_again_after_all_processes_were_killed(url: str, driver: Driver, tmp_path: Path) -> None:
    sign, finish = tmp_path / "sign", tmp_path / "end"
    arguments = ("worker", "shop.py", "--url", url, "--processes", "2", "--lease", "1s", *NO_JOB_TO_WAIT_FOR)
    with started(tmp_path, *arguments, app=APP) as supervisor:
        pids = pids_of(supervisor)
        job_id = enqueue(driver, "stay", sign=str(sign), end=str(finish))
        wait_until(sign.exists)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait(LIMIT_SECONDS)
    finish.touch()

    with started(tmp_path, *arguments, app=APP) as supervisor:
        result_of(driver, job_id)
        end(supervisor)

    lost = driver.inspector.attempts([job_id])  # more than one if a busy machine let a lease of a second expire
    assert {each.outcome for each in lost} == {AttemptOutcome.LOST}
    assert driver.inspector.get([job_id])[job_id].attempt_count == 1 + len(lost)


def test_on_sighup_new_code_is_loaded_and_running_jobs_finish(tmp_path: Path) -> None:
    sign, finish = tmp_path / "sign", tmp_path / "end"
    arguments = ("--processes", "2", *NO_JOB_TO_WAIT_FOR)
    with (
        database() as url,
        closing(connect(url)) as driver,
        started(tmp_path, "worker", "shop.py", "--url", url, *arguments, app=APP) as supervisor,
    ):
        pids = pids_of(supervisor)
        job_id = enqueue(driver, "stay", sign=str(sign), end=str(finish))
        wait_until(sign.exists)
        # Another length: Python takes bytecode for current if length and second of the change are equal.
        (tmp_path / "shop.py").write_text(APP.replace('"old"', '"new"') + "\n")

        supervisor.send_signal(signal.SIGHUP)
        wait_until(lambda: "new" in _versions(driver))  # one is new, or both
        finish.touch()

        wait_until(lambda: not any(map(is_running, pids)))
        assert _versions(driver) == {"new"}
        wait_until(lambda: driver.inspector.get([job_id])[job_id].status is Status.SUCCEEDED)
        assert driver.inspector.attempts([job_id]) == []
        end(supervisor)


def test_a_restarted_process_answers_probes_on_the_port_of_the_old_one(url: str, tmp_path: Path) -> None:
    port = _free_port()
    arguments = ("--processes", "1", "--health-host", "127.0.0.1", "--health-port", str(port - 1))
    with started(tmp_path, "worker", "shop.py", "--url", url, *arguments, app=APP) as supervisor:
        [old] = pids_of(supervisor)

        supervisor.send_signal(signal.SIGHUP)
        wait_until(lambda: not is_running(old))

        wait_until(lambda: is_ready_at(port))
        end(supervisor)
    assert "the process before has ended" in supervisor.log()


def is_ready_at(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=LIMIT_SECONDS) as response:
            return bool(response.status == HTTPStatus.OK)
    except OSError:  # the port is free, or the process is not ready yet
        return False


def test_a_restart_under_load_loses_and_releases_no_running_attempt(url: str, driver: Driver, tmp_path: Path) -> None:
    arguments = ("--processes", "2", "--concurrency", "2", "--prefetch", "0", "--isolate", *NO_JOB_TO_WAIT_FOR)
    with started(tmp_path, "worker", "shop.py", "--url", url, *arguments, app=APP) as supervisor:
        pids = pids_of(supervisor)
        jobs = [enqueue(driver, "note", file=str(tmp_path / "begun")) for _ in range(20)]

        supervisor.send_signal(signal.SIGHUP)
        while any(map(is_running, pids)):  # new jobs come while processes stop and start
            jobs.append(enqueue(driver, "note", file=str(tmp_path / "begun")))
            result_of(driver, jobs[-1])
        for job_id in jobs:
            result_of(driver, job_id)
        end(supervisor)

    # A job whose handler had not begun may be released. One that had must have succeeded.
    begun = (tmp_path / "begun").read_text().split()
    assert sorted(begun) == sorted(map(str, jobs))
    assert {job.attempt_count for job in driver.inspector.get(jobs).values()} == {1}


def _versions(driver: Driver) -> set[str | int]:
    return {result_of(driver, enqueue(driver, "version"))[0] for _ in range(3)}


def test_an_app_that_cannot_be_loaded_ends_the_supervisor_with_one_message(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import nothing_like_this")

    done = taskharbor("worker", str(tmp_path / "shop.py"), "--url", url, "--processes", "3")

    assert done.returncode == ExitCode.APP_IMPORT_FAILED
    assert re.fullmatch(r"error: cannot load .*shop.py: .*\n", done.stderr), done.stderr


def test_processes_are_recycled_after_their_number_of_jobs(url: str, driver: Driver, tmp_path: Path) -> None:
    arguments = ("--processes", "1", "--max-jobs", "1", *NO_JOB_TO_WAIT_FOR)
    with started(tmp_path, "worker", "shop.py", "--url", url, *arguments, app=APP) as supervisor:
        [first] = pids_of(supervisor)
        assert result_of(driver, enqueue(driver, "version"))[1] == first
        wait_until(lambda: not is_running(first))
        second = result_of(driver, enqueue(driver, "version"))[1]
        end(supervisor)

    assert second != first
    assert f"worker process {first} exited with code 13; replacing it in 0 ms" in supervisor.log()


def test_a_worker_ends_when_it_uses_too_much_memory(url: str, driver: Driver, tmp_path: Path) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "--max-memory", "300MB", app=APP) as worker:
        result_of(driver, enqueue(driver, "grow"))

        assert worker.wait(LIMIT_SECONDS) == ExitCode.RECYCLED

    assert "MB of memory used, of at most 300 MB; finishing the running jobs" in worker.log()


@pytest.mark.parametrize("processes", [("--processes", "2"), ()])
def test_a_memory_limit_below_what_a_worker_needs_is_refused(
    url: str, tmp_path: Path, processes: tuple[str, ...]
) -> None:
    (tmp_path / "shop.py").write_text(APP)

    done = taskharbor("worker", str(tmp_path / "shop.py"), "--url", url, "--max-memory", "1MB", *processes)

    assert done.returncode == ExitCode.USAGE
    assert len(re.findall(r"1 MB: this process uses \d+ MB after its start, before any job", done.stderr)) == 1


@pytest.mark.parametrize("processes", [("--processes", "1"), ()])
def test_systemd_is_notified_of_start_progress_and_stop(url: str, tmp_path: Path, processes: tuple[str, ...]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        address = tmp_path / "notify"
        systemd.bind(str(address))
        systemd.settimeout(LIMIT_SECONDS)
        environ = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "2000000"}
        received = ""
        with started(tmp_path, "worker", "shop.py", "--url", url, *processes, app=APP, environ=environ) as service:
            while "WATCHDOG=1" not in received:
                received += systemd.recv(4096).decode() + "\n"
            service.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in received:
                received += systemd.recv(4096).decode() + "\n"
            assert service.wait(LIMIT_SECONDS) == 0

    assert received.startswith("READY=1\nSTATUS=")


def test_children_that_lost_their_parent_are_reaped() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(7)

    reaped: dict[int, int] = {}

    def is_reaped() -> bool:
        reaped.update(_reaped())
        return pid in reaped

    wait_until(is_reaped)

    assert os.waitstatus_to_exitcode(reaped[pid]) == 7
