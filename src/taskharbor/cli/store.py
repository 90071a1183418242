"""Store access for commands: opening it, looking up jobs, queues and schedules, audit entries, and waiting."""

from __future__ import annotations

import getpass
import socket
import threading
import time
from contextlib import closing, contextmanager
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from taskharbor.cli.errors import NoSuchName, StoreNotFound, StoreNotShared
from taskharbor.cli.render import echo_status, printable
from taskharbor.core.errors import JobFailed
from taskharbor.core.states import Status
from taskharbor.views import describe_end

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job, JobSummary, Schedule
    from taskharbor.drivers.base import Driver
    from taskharbor.harbor import Harbor

WAIT_TIMEOUT: Final = "10m"
_FIRST_POLL: Final = timedelta(milliseconds=20)
_MAX_POLL: Final = timedelta(seconds=1)


def record_audit(driver: Driver, action: str, target: str, **detail: str) -> None:
    """Write an audit entry. If that fails, only print a message: the action itself is done."""
    from taskharbor.core.errors import StoreUnavailable
    from taskharbor.core.ids import new_token
    from taskharbor.core.model import AuditEntry

    entry = AuditEntry(id=new_token(), actor=current_actor(), action=action, target=target, detail=detail)
    try:
        driver.control.record_audit([entry])
    except StoreUnavailable as error:
        echo_status(f"done, but the audit entry failed: {error}")


@contextmanager
def open_driver(url: str) -> Iterator[Driver]:
    """Open the existing store at *url* for the duration of a command."""
    from taskharbor.drivers.connect import connect

    check_shared(url)
    check_exists(url)
    with closing(connect(url)) as driver:
        yield driver


def url_of(harbor: Harbor) -> str | None:
    """Return the URL of the store of *harbor*, or None if it has a driver of its own or no store."""
    from taskharbor.settings import Settings

    store = Settings.from_env().url if harbor.source is None else harbor.source
    return store if isinstance(store, str) else None


def check_shared(url: str | None) -> None:
    """Raise `StoreNotShared` if *url* refers to the memory of this process."""
    from taskharbor.drivers.connect import store_kind

    if url is not None and store_kind(url) == "memory":
        raise StoreNotShared(url)


def check_exists(url: str) -> None:
    """Raise `StoreNotFound` if *url* refers to a file that does not exist. Opening it would create it."""
    from taskharbor.drivers.connect import file_of

    file = file_of(url)
    if file is not None and not file.exists():
        raise StoreNotFound(str(file.absolute()), url)


def current_actor() -> str:
    """Return the actor for audit entries: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run with a user id that has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


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
    """Raise `NoSuchName`, with the most similar known name, unless *name* is known."""
    if name not in known:
        raise NoSuchName(kind, name, did_you_mean(name, known) or _list_known(kind, known))


def known_queues(driver: Driver) -> set[str]:
    """Return the names of queues that have jobs, are paused, or have a worker, as of a few seconds ago."""
    served = (queue for worker in driver.inspector.workers() for queue in worker.queues)
    return {queue.name for queue in driver.inspector.queues()} | set(served)


def no_matches(driver: Driver, what: str, queue: str | None) -> str:
    """Return the message for an empty result; it suggests another queue if *queue* may be mistyped."""
    known = known_queues(driver) if queue is not None else set()
    near = "" if queue is None or queue in known else did_you_mean(queue, known)
    return f"no matching {what}s" + (f": queue {queue!r} not found; {near}" if near else "")


def require_schedules(driver: Driver, names: Sequence[str]) -> list[Schedule]:
    """Return the schedules of these names, or raise `ScheduleNotFound` with the most similar name."""
    from taskharbor.core.errors import ScheduleNotFound

    known = driver.inspector.schedules()
    for name in names:
        if name not in known:
            raise ScheduleNotFound(name, next(iter(get_close_matches(name, known, n=1)), None))
    return [known[name] for name in names]


def did_you_mean(text: str, known: Collection[str]) -> str:
    """Return a question with the known name that is most similar to *text*, or an empty string."""
    near = [name for name in known if text and name.startswith(text)] or get_close_matches(text, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _list_known(kind: str, known: Collection[str], *, limit: int = 5) -> str:
    names = ", ".join(sorted(known)[:limit])
    if not names:
        return f"there are no {kind}s"
    return f"known: {names}" + (" and others" if len(known) > limit else "")


def wait_until_final(driver: Driver, job_id: JobId, *, timeout: timedelta) -> JobSummary:
    """Return the job when it has ended; raise `ResultTimeout` after *timeout*."""
    from taskharbor.diagnosis import timeout_error

    ends, pause = time.monotonic() + timeout.total_seconds(), _FIRST_POLL
    while not (job := get_summary(driver, job_id)).status.is_final:
        left = timedelta(seconds=ends - time.monotonic())
        if left <= timedelta(0):
            raise timeout_error(driver.inspector, job_id, timeout)
        wait(min(pause, left))
        pause = min(pause * 1.5, _MAX_POLL)
    return job


def require_success(job: JobSummary) -> None:
    """Raise `JobFailed` if a finished job did not succeed."""
    if job.status is not Status.SUCCEEDED:
        raise JobFailed(job.id, job.status, printable(describe_end(job)) if job.dead_reason else "canceled")


def wait(length: timedelta) -> None:
    """Wait for *length*; Ctrl-C interrupts it."""
    threading.Event().wait(length.total_seconds())
