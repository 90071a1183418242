"""Waiting for jobs to end, but not for ever."""

from __future__ import annotations

import getpass
import socket
import threading
import time
from contextlib import closing, contextmanager
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final
from uuid import UUID

from taskharbor.cli.errors import NoSuchName, NotAJobId
from taskharbor.cli.render import echo_status, printable
from taskharbor.core.errors import JobFailed, ResultTimeout
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job, JobSummary, Schedule
    from taskharbor.drivers.base import Driver

_RECENT: Final = 200  # jobs that a mistyped id is compared with
WAIT_TIMEOUT: Final = "10m"
"""How long a command waits where nobody says."""
_FIRST: Final = timedelta(milliseconds=20)
_LONGEST: Final = timedelta(seconds=1)


def record_audit(driver: Driver, action: str, target: str, **detail: str) -> None:
    """Leave a row that says who did what, and to what. Where that cannot be, say so: what was done, is done."""
    from taskharbor.core.errors import StoreUnavailable
    from taskharbor.core.ids import new_token
    from taskharbor.core.model import AuditEntry

    entry = AuditEntry(id=new_token(), actor=current_actor(), action=action, target=target, detail=detail)
    try:
        driver.control.record_audit([entry])
    except StoreUnavailable as error:
        echo_status(f"it is done, but not written down: {error}")


@contextmanager
def open_driver(url: str) -> Iterator[Driver]:
    """Open the store at *url* for the length of a command."""
    from taskharbor.drivers.connect import connect

    with closing(connect(url)) as driver:
        yield driver


def current_actor() -> str:
    """Return who is asking: user@host, for the records."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def job_id_of(driver: Driver, text: str) -> JobId:
    """Read a job's id, or raise `NotAJobId` with the nearest among recent ones."""
    from taskharbor.core.ids import JobId

    try:
        return JobId(UUID(text))
    except ValueError:
        raise NotAJobId(text, _nearest_job(driver, text)) from None


def job_ids_of(driver: Driver, texts: Sequence[str]) -> list[JobId]:
    """Read the ids of different jobs, in the order given."""
    return list(dict.fromkeys(job_id_of(driver, text) for text in texts))


def get_job(driver: Driver, job_id: JobId) -> Job:
    """Return the job, or raise `JobNotFound`."""
    from taskharbor.core.errors import JobNotFound

    found = driver.inspector.get([job_id])
    if job_id not in found:
        raise JobNotFound(job_id)
    return found[job_id]


def get_summary(driver: Driver, job_id: JobId) -> JobSummary:
    """Return the job without its payload and result, or raise `JobNotFound`."""
    from taskharbor.core.errors import JobNotFound

    found = driver.inspector.summaries([job_id])
    if job_id not in found:
        raise JobNotFound(job_id)
    return found[job_id]


def require_name(kind: str, name: str, known: Collection[str]) -> None:
    """Raise `NoSuchName`, with the nearest there is, unless *name* is known."""
    if name not in known:
        raise NoSuchName(kind, name, did_you_mean(name, known) or _there_are(kind, known))


def known_queues(driver: Driver) -> set[str]:
    """Return the names of queues that hold jobs, are paused, or have a worker; as of some seconds ago."""
    served = (queue for worker in driver.inspector.workers() for queue in worker.queues)
    return {queue.name for queue in driver.inspector.queues()} | set(served)


def no_matches(driver: Driver, what: str, queue: str | None) -> str:
    """Say that nothing was found, and perhaps why: the queue may be mistyped."""
    known = known_queues(driver) if queue is not None else set()
    near = "" if queue is None or queue in known else did_you_mean(queue, known)
    return f"no {what} is like that" + (f": there is no queue {queue!r}, {near}" if near else "")


def require_schedules(driver: Driver, names: Sequence[str]) -> list[Schedule]:
    """Return the schedules of these names, or raise `ScheduleNotFound` with the nearest there is."""
    from taskharbor.core.errors import ScheduleNotFound

    known = driver.inspector.schedules()
    for name in names:
        if name not in known:
            raise ScheduleNotFound(name, next(iter(get_close_matches(name, known, n=1)), None))
    return [known[name] for name in names]


def did_you_mean(text: str, known: Collection[str]) -> str:
    """Return a question that names what *text* may have meant, or nothing."""
    near = [name for name in known if text and name.startswith(text)] or get_close_matches(text, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _nearest_job(driver: Driver, text: str) -> str:
    from taskharbor.core.results import JobFilter

    recent = [str(job.id) for job in driver.inspector.find(JobFilter(), limit=_RECENT).jobs]
    return did_you_mean(text.strip().lower(), recent) or "'taskharbor jobs list' shows the newest"


def _there_are(kind: str, known: Collection[str], *, most: int = 5) -> str:
    names = ", ".join(sorted(known)[:most])
    if not names:
        return f"there is no {kind} at all"
    return f"there are {names}" + (" and others" if len(known) > most else "")


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
