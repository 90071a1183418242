"""The running attempt as a context variable, and the filter that adds its job to log records."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from taskharbor.observability.tracing import trace_id_of

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Job
    from taskharbor.observability.log_capture import LogCapture


class CurrentAttempt:
    """The attempt that this thread or asyncio task runs: for the user's own logs, and to fence effects.

    Tasks that a handler starts, and threads that it runs in a copy of its context, have the same attempt. After the
    handler has returned, ``has_ended`` is true for all of them.
    """

    __slots__ = ("capture", "has_ended", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.capture: LogCapture | None = None
        self.has_ended = False

    @property
    def job_id(self) -> JobId:
        """The id of the job."""
        return self.job.id

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.job.attempt_count

    @property
    def token(self) -> Token | None:
        """The fencing token of the lease: no other attempt has or had it."""
        return self.job.lease_token


current_attempt: Final[ContextVar[CurrentAttempt | None]] = ContextVar("taskharbor_running", default=None)


class JobLogFilter(logging.Filter):
    """Adds the running job to each record that a handler of a job logs. Add it to the handlers of your log.

    The attributes are ``job_id``, ``type``, ``queue``, ``attempt``, ``worker`` and ``trace_id``. An attribute that the
    record has already is not changed, and a record with a ``job_id`` gets none: it is about that job. A record that is
    logged outside a handler, or after its handler has returned, gets none either. No record is dropped.

    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(JobLogFilter())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        attempt = current_attempt.get()
        if attempt is not None and not attempt.has_ended and "job_id" not in vars(record):
            vars(record).update(job_fields(attempt.job) | vars(record))
        return True


def job_fields(job: Job) -> dict[str, object]:
    """Return the attributes of all log records about an attempt of *job*."""
    return {
        "job_id": str(job.id),
        "type": job.type,
        "queue": job.queue,
        "attempt": job.attempt_count,
        "worker": job.worker_id,
        "trace_id": trace_id_of(job),
    }
