"""Waiting for jobs to end, but not for ever."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.cli.operating import get_summary
from taskharbor.cli.tables import printable
from taskharbor.core.errors import JobFailed, ResultTimeout
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.drivers.base import Driver

WAIT_TIMEOUT: Final = "10m"
"""How long a command waits where nobody says."""
_FIRST: Final = timedelta(milliseconds=20)
_LONGEST: Final = timedelta(seconds=1)


def wait_until_final(driver: Driver, job_id: JobId, *, timeout: timedelta) -> JobSummary:
    """Return the job when it has ended; raise `ResultTimeout` after *timeout*."""
    ends, pause = time.monotonic() + timeout.total_seconds(), _FIRST
    while not (job := get_summary(driver, job_id)).status.is_final:
        left = timedelta(seconds=ends - time.monotonic())
        if left <= timedelta(0):
            raise ResultTimeout(job_id, timeout)
        wait(min(pause, left))
        pause = min(pause * 1.5, _LONGEST)
    return job


def require_success(job: JobSummary) -> None:
    """Raise `JobFailed` where a job that has ended did not succeed."""
    if job.status is not Status.SUCCEEDED:
        died_of = ": ".join(dict.fromkeys(filter(None, [job.dead_reason, job.last_error])))
        raise JobFailed(job.id, job.status, printable(died_of) if job.dead_reason else "somebody called it off")


def wait(length: timedelta) -> None:
    """Let so much time pass; Ctrl-C ends it."""
    threading.Event().wait(length.total_seconds())
