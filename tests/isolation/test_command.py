"""`taskharbor worker` with isolated tasks, in real processes."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Client, JobRequest, SqliteDriver
from taskharbor.core.states import Status
from tests.support.cli_processes import started, taskharbor
from tests.support.waiting import is_running, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId

APP: Final = """
import os
from pathlib import Path
from taskharbor import Harbor

harbor = Harbor()

def note(name):
    Path(f"{name}-{os.getpid()}").touch()

@harbor.task(isolate=True)
def spin() -> None:
    os.fork()
    note("spin")
    while True:
        pass

@harbor.task
def short() -> None:
    note("short")
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteDriver]:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        yield driver


URL: Final = "sqlite:///jobs.db"


def enqueue(store: SqliteDriver, job_type: str) -> JobId:
    return Client(store).enqueue(JobRequest(type=job_type, payload={})).id


def noted(folder: Path, name: str) -> list[int]:
    return [int(file.name.removeprefix(f"{name}-")) for file in folder.glob(f"{name}-*")]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_all_isolated_processes_end_when_their_worker_is_killed(tmp_path: Path, store: SqliteDriver) -> None:
    enqueue(store, "spin")
    with started(tmp_path, "worker", "shop.py", app=APP, environ={"TASKHARBOR_URL": URL}) as worker:
        wait_until(lambda: len(noted(tmp_path, "spin")) == 2)
        pids = noted(tmp_path, "spin")
        zygote = parent_of(min(pids))
        assert zygote != os.getpid()

        worker.send_signal(signal.SIGKILL)

        wait_until(lambda: not any(map(is_running, [zygote, *pids])))


def test_the_command_isolates_all_tasks_with_a_store_of_its_own(tmp_path: Path, store: SqliteDriver) -> None:
    job_id = enqueue(store, "short")
    with started(tmp_path, "worker", "shop.py", "--isolate", "--url", URL, "--child-max-jobs", "1", app=APP) as worker:
        wait_until(lambda: store.inspector.get([job_id])[job_id].status is Status.SUCCEEDED)

        [pid] = noted(tmp_path, "short")
        wait_until(lambda: not is_running(pid))  # it was replaced
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=30) == 0


def test_an_app_whose_children_cannot_be_started_ends_the_command(tmp_path: Path) -> None:
    app = f"import sys\nif 'isolated' in sys.argv[0]:\n    raise ValueError(7)\n{APP}"
    (tmp_path / "shop.py").write_text(app)

    done = taskharbor("worker", str(tmp_path / "shop.py"), "--url", f"sqlite:///{tmp_path / 'jobs.db'}")

    assert done.returncode == 2
    assert "ValueError: 7" in done.stderr
