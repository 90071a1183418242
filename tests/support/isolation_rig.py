"""Helpers of tests with isolated tasks: a store, a running worker, and what it leaves behind."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.hooks import AttemptFailed, JobsStarted, JobsSucceeded
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.model import Job, claim_from_job
from taskharbor.core.states import Status
from taskharbor.worker.execution import Execution
from tests.support import isolated_app as app
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.hooks import HookEvent
    from taskharbor.tasks import Handle
    from taskharbor.worker import Worker

NOW: Final = timedelta(0)


class IsolationRig:
    """The harbor of `tests.support.isolated_app` on a new store in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "jobs.db"
        self.seconds: dict[JobId, float] = {}
        """How long the attempt of each job took that failed or succeeded."""
        self.started: list[JobId] = []
        """The jobs of attempts that were reported as started."""
        app.harbor.use_store(f"sqlite:///{self.file}")

    def note(self, event: HookEvent) -> None:
        if isinstance(event, AttemptFailed):
            self.seconds[event.job.id] = event.run_seconds or 0.0
        elif isinstance(event, JobsStarted):
            self.started += [job.id for job in event.jobs]
        elif isinstance(event, JobsSucceeded):
            self.seconds.update(zip((job.id for job in event.jobs), event.run_seconds, strict=True))

    def worker(self, **options: Any) -> Worker:
        return app.harbor.worker(hooks=[self.note], poll=timedelta(milliseconds=50), **options)

    @contextmanager
    def running(self, **options: Any) -> Iterator[Worker]:
        worker = self.worker(**options)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop(NOW)

    def drain(self, **options: Any) -> None:
        self.worker(**options).drain(timedelta(seconds=60))

    def job(self, handle: Handle[Any]) -> Job:
        return handle.job()

    def failure(self, handle: Handle[Any]) -> Any:
        """Return the failure of the last attempt of a job."""
        return app.harbor.driver.inspector.attempts([handle.id])[-1].failure

    def wait_for(self, name: str) -> str:
        """Wait until a handler has written this file, and return its text."""
        file = self.folder / name
        wait_until(lambda: file.exists() and (bool(file.read_text()) or name != "running"))
        return file.read_text()

    def noted_pids(self) -> list[int]:
        """Return the processes that handlers have noted."""
        return [int(file.name.removeprefix("pid-")) for file in self.folder.glob("pid-*")]


def processes() -> set[int]:
    """Return the descendants of this process, without the server of tests on PostgreSQL."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                command, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                if command != "postgres":
                    parents[int(entry.name)] = int(rest.split()[1])
    found, level = set[int](), {os.getpid()}
    while level := {pid for pid, parent in parents.items() if parent in level} - found:
        found |= level
    return found


def descriptors() -> list[str]:
    """Return what the descriptors of this process refer to, without the files of a store, whose pool keeps some."""
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(entry.readlink()))
    return sorted(name for name in found if "jobs.db" not in name and not name.startswith("/proc/"))


def threads() -> int:
    return threading.active_count()


def new_execution(*, type: str = "resize", payload: bytes = b"[]", ends_at: float = 0.0) -> Execution:
    """Return an attempt that no store has."""
    now = datetime.now(UTC)
    job = Job(
        id=JobId(new_token()),
        type=type,
        queue="images",
        priority=0,
        status=Status.PROCESSING,
        scheduled_for=now,
        timeout=None,
        created_at=now,
        attempt_count=1,
        max_attempts=5,
        lease_token=new_token(),
        lease_expires_at=now + timedelta(seconds=30),
        payload=payload,
    )
    return Execution(claim_from_job(job), ends_at=ends_at, times_out_at=None)
