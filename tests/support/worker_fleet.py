"""Worker processes for crash tests, which are killed when the test ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor.client import Client
from taskharbor.core.request import JobRequest
from taskharbor.core.states import FINAL, WAITING
from tests.support.audit import audit
from tests.support.effects import Effects, check
from tests.support.waiting import wait_until
from tests.support.worker_process import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from taskharbor.core.ids import JobId

ROOT: Final = Path(__file__).resolve().parent.parent.parent
LEASE: Final = timedelta(seconds=0.8)
AN_HOUR: Final = timedelta(hours=1)
MAX_ATTEMPTS: Final = 100  # so that no job dies from lost attempts
LIMIT_SECONDS: Final = 60.0  # far more than anything waited for here takes


class Fleet:
    """Worker processes on one store, their jobs, and checks of the results."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self._url, self._folder, self._stack = url, folder, stack
        self.driver = open_store(url)
        stack.callback(self.driver.close)
        self.effects = Effects(folder / "effects.log")
        self.jobs: list[JobId] = []

    @classmethod
    @contextmanager
    def at(cls, url: str, folder: Path) -> Iterator[Self]:
        with ExitStack() as stack:
            yield cls(url, folder, stack)

    def start(self, *before: str, **config: Any) -> subprocess.Popen[bytes]:
        """Start a worker with the arguments *before* in front of its command. It is killed when the test ends."""
        defaults = {"url": self._url, "effects": str(self._folder / "effects.log"), "lease": LEASE.total_seconds()}
        command = [*before, sys.executable, "-m", "tests.support.worker_process", json.dumps(defaults | config)]
        log = self._stack.enter_context((self._folder / "workers.log").open("ab"))
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def enqueue(self, count: int, *, job_type: str = "async", seconds: float = 0.05, **fields: Any) -> list[JobId]:
        request = JobRequest(type=job_type, payload=seconds, **{"max_attempts": MAX_ATTEMPTS, **fields})
        new = [each.id for each in Client(self.driver).enqueue_many([request] * count)]
        self.jobs += new
        return new

    def wait_for_starts(self, jobs: Sequence[JobId]) -> None:
        wanted = {str(each) for each in jobs}
        wait_until(lambda: wanted <= {each.job for each in self.effects.read()}, limit=LIMIT_SECONDS)

    def waiting(self) -> int:
        """Return how many jobs are waiting."""
        return sum(job.status in WAITING for job in self.driver.inspector.get(self.jobs).values())

    def make_duties_due(self) -> None:
        """Make every janitor duty due. Some run once a minute for all workers, and crash tests need them more often."""
        self.driver.maintenance.report_clock_jump(expected=self.driver.inspector.now() + AN_HOUR, lease=LEASE)

    def wait_until_done(self) -> None:
        wait_until(self._are_done, limit=LIMIT_SECONDS)

    def _are_done(self) -> bool:
        return all(job.status in FINAL for job in self.driver.inspector.get(self.jobs).values())

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Send SIGTERM to a process, once it handles that, and check that it exits with 0."""
        wait_until(lambda: process.poll() is not None or _handles_sigterm(process.pid), limit=LIMIT_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_SECONDS) == 0, self.said()

    def verdict(self) -> dict[str, int]:
        """Check what the jobs did and that the rows break no invariant; return counts of what was lost or repeated."""
        assert audit(self.driver) == []
        return check(self.driver, self.jobs, self.effects.read(), lease=LEASE)

    def said(self) -> str:
        return (self._folder / "workers.log").read_text()[-3_000:]


def _handles_sigterm(pid: int) -> bool:
    """Return whether the process has a handler for SIGTERM: one that has just been started is ended by the signal."""
    [caught] = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) & (1 << (signal.SIGTERM - 1)))
