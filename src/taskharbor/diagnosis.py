"""Explain why a job has not run, or how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import JobNotFound
from taskharbor.core.messages import OVERDUE_AFTER
from taskharbor.core.model import PUBLISHER_AWAY
from taskharbor.core.results import JobFilter, Kept
from taskharbor.core.states import WAITING, Status
from taskharbor.views import iso_time

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary, WorkerRecord
    from taskharbor.core.results import QueueStats
    from taskharbor.drivers.base import Inspector

WORKER_ALIVE_WITHIN: Final = timedelta(seconds=30)
"""A worker without a heartbeat for longer counts as dead. Three heartbeat intervals."""
MAX_COUNTED: Final = 50
"""The maximum number of waiting jobs that are counted exactly; for more, the store's statistics are used."""


class Cause(StrEnum):
    """What a job waits for, or why it does not wait."""

    FINAL = "final"
    LEASED = "leased"
    LEASE_OVER = "lease-over"
    NOT_DUE = "not-due"
    PAUSED = "paused"
    UNHANDLED = "unhandled"
    MESSAGE = "message"
    AHEAD = "ahead"
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The first cause that keeps a job in its status. ``cause`` is for programs, ``text`` for people.

    ``until`` is when the cause ends, if known. ``ahead`` is the approximate number of jobs that come
    first. ``kept`` is why a finished job cannot be removed yet.
    """

    job_id: JobId
    status: Status
    cause: Cause
    text: str
    until: datetime | None = None
    worker: str | None = None
    ahead: int | None = None
    kept: Kept | None = None

    def view(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "job_id": str(self.job_id),
            "status": self.status.value,
            "cause": self.cause.value,
            "text": self.text,
            "until": iso_time(self.until),
            "worker": self.worker,
            "ahead": self.ahead,
            "kept": self.kept,
        }


def diagnose(inspector: Inspector, job_id: JobId) -> Diagnosis:
    """Return why a job is in its status, or raise `JobNotFound`. Reads few rows, however long the queue."""
    job = inspector.summaries([job_id]).get(job_id)
    if job is None:
        raise JobNotFound(job_id)
    if job.status.is_final:
        return _final(job, _kept(inspector, job_id))
    now = inspector.now()
    if job.status is Status.PROCESSING:
        return _held(job, now)
    return _not_due(job, now) if job.scheduled_for > now else _not_started(inspector, job, now)


def is_alive(worker: WorkerRecord, now: datetime) -> bool:
    """Return whether the worker's last heartbeat is recent."""
    return worker.seen_at is not None and worker.seen_at > now - WORKER_ALIVE_WITHIN


def _not_started(inspector: Inspector, job: JobSummary, now: datetime) -> Diagnosis:
    """Return why no worker runs a job that is due."""
    queue = next((each for each in inspector.queues() if each.name == job.queue), None)
    if queue is not None and queue.paused_at is not None:
        return _paused(job, queue)
    alive = [each for each in inspector.workers() if is_alive(each, now) and job.queue in each.queues]
    if not any(job.type in each.types for each in alive):
        return _unhandled(job, alive)
    if job.status is Status.ENQUEUED and now < job.scheduled_for + OVERDUE_AFTER:
        return _message(job)
    return _waiting(job, *_ahead(inspector, job, queue, now))


def _final(job: JobSummary, kept: Kept | None) -> Diagnosis:
    reason = f": {job.dead_reason}" if job.status is Status.DEAD else ""
    note = "" if kept is None else "; it cannot be removed yet: dead-letter event not published yet"
    return _diagnosis(
        job, Cause.FINAL, f"it ended as {job.status} at {iso_time(job.completed_at)}{reason}{note}", kept=kept
    )


def _kept(inspector: Inspector, job_id: JobId) -> Kept | None:
    """Return why prune and purge keep a finished job: its event is not published yet."""
    if all(row.is_done for row in inspector.outbox([job_id])):
        return None
    seen_at = inspector.publisher_seen_at()
    return Kept.UNPUBLISHED if seen_at is not None and seen_at > inspector.now() - PUBLISHER_AWAY else None


def _held(job: JobSummary, now: datetime) -> Diagnosis:
    until, worker = job.lease_expires_at, job.worker_id
    if until is not None and until <= now:
        text = f"the lease of {worker} expired at {iso_time(until)}; reclaim pending"
        return _diagnosis(job, Cause.LEASE_OVER, text, worker=worker)
    text = f"it is leased to {worker} until {iso_time(until)}"
    if job.cancel_requested_at is not None:
        text += f"; cancel requested at {iso_time(job.cancel_requested_at)}"
    return _diagnosis(job, Cause.LEASED, text, until=until, worker=worker)


def _not_due(job: JobSummary, now: datetime) -> Diagnosis:
    after = " after its last attempt failed" if job.status is Status.FAILED else ""
    left = timedelta(seconds=round((job.scheduled_for - now).total_seconds()))
    text = f"it is due at {iso_time(job.scheduled_for)}{after}, in {left}"
    return _diagnosis(job, Cause.NOT_DUE, text, until=job.scheduled_for)


def _paused(job: JobSummary, queue: QueueStats) -> Diagnosis:
    text = f"queue {job.queue!r} was paused by {queue.paused_by} at {iso_time(queue.paused_at)}: resume it"
    return _diagnosis(job, Cause.PAUSED, text)


def _unhandled(job: JobSummary, alive: list[WorkerRecord]) -> Diagnosis:
    if not alive:
        text = f"no live worker serves queue {job.queue!r}: start one"
    else:
        text = f"none of the {len(alive)} live workers of queue {job.queue!r} handles type {job.type!r}"
    return _diagnosis(job, Cause.UNHANDLED, text)


def _message(job: JobSummary) -> Diagnosis:
    until = job.scheduled_for + OVERDUE_AFTER
    sent = "is not confirmed as sent" if job.sent_at is None else f"was sent at {iso_time(job.sent_at)}"
    text = f"its message {sent}; if none arrives, workers claim the job from the store at {iso_time(until)}"
    return _diagnosis(job, Cause.MESSAGE, text, until=until)


def _waiting(job: JobSummary, ahead: int, is_exact: bool) -> Diagnosis:  # noqa: FBT001  the pair that _ahead returns
    if ahead == 0:
        return _diagnosis(job, Cause.NEXT, "it is next: it runs when a worker has a free slot", ahead=0)
    jobs = "job of its queue comes" if ahead == 1 else "jobs of its queue come"
    text = f"{'' if is_exact else 'about '}{ahead:,} {jobs} first"
    return _diagnosis(job, Cause.AHEAD, text, ahead=ahead)


def _ahead(inspector: Inspector, job: JobSummary, queue: QueueStats | None, now: datetime) -> tuple[int, bool]:
    """Return how many jobs come first, and whether the number is exact."""
    page = inspector.find(JobFilter(queue=job.queue, statuses=WAITING), limit=MAX_COUNTED)
    if page.after is None:
        return sum(each.scheduled_for <= now and _position(each) < _position(job) for each in page.jobs), True
    waiting = 0 if queue is None else sum(queue.counts.get(status, 0) for status in WAITING)
    return max(waiting - 1, MAX_COUNTED), False


def _position(job: JobSummary) -> tuple[int, datetime, JobId]:
    return job.priority, job.scheduled_for, job.id


def _diagnosis(job: JobSummary, cause: Cause, text: str, **more: Any) -> Diagnosis:
    return Diagnosis(job_id=job.id, status=job.status, cause=cause, text=text, **more)
