"""Workers for operators: their state, the jobs that they hold, and what became of the jobs lost with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.results import JobFilter, Page
from taskharbor.core.states import Status
from taskharbor.diagnosis import WORKER_GONE_AFTER, is_alive
from taskharbor.timeline import attempt_entries
from taskharbor.views import iso_time, seconds, worker_view

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.model import Attempt, JobSummary, WorkerRecord
    from taskharbor.drivers.base import Inspector
    from taskharbor.timeline import TimelineEntry

MAX_LISTED: Final = 100
"""The maximum number of jobs of a worker that are listed as held, and as lost."""
MAX_LOOKS: Final = 20
"""How many pages of running jobs are searched for those of one worker."""


class WorkerState(StrEnum):
    """Whether a worker sends heartbeats."""

    LIVE = "live"
    SILENT = "silent"
    """Its heartbeats are late. Its leases expire, and its jobs are reclaimed."""
    GONE = "gone"
    """It has stopped (``stopped_at``), or was killed or cut off and is not expected to return."""


def state_of(worker: WorkerRecord, now: datetime) -> WorkerState:
    if worker.stopped_at is not None or worker.seen_at is None or worker.seen_at <= now - WORKER_GONE_AFTER:
        return WorkerState.GONE
    return WorkerState.LIVE if is_alive(worker, now) else WorkerState.SILENT


def describe_worker(worker: WorkerRecord, now: datetime) -> dict[str, Any]:
    """Return the JSON form of a worker at the store's time *now*."""
    state = state_of(worker, now)
    return worker_view(worker) | {"state": state.value, "is_alive": state is WorkerState.LIVE}


def list_workers(inspector: Inspector, *, include_past: bool) -> list[WorkerRecord]:
    """Return the workers by id, with those that are gone if *include_past*."""
    workers = inspector.workers() + (inspector.past_workers() if include_past else [])
    return sorted(workers, key=lambda worker: worker.id)


def find_worker(inspector: Inspector, worker_id: str) -> WorkerRecord | None:
    found = (each for each in list_workers(inspector, include_past=True) if each.id == worker_id)
    return next(found, None)


def held_by(inspector: Inspector, worker_id: str, *, limit: int = MAX_LISTED) -> Page:
    """Return up to *limit* jobs that a worker holds, newest first. ``after`` is None if these are all."""
    wanted = JobFilter(worker=worker_id, statuses=frozenset({Status.PROCESSING}))
    page = inspector.find(wanted, limit=limit)
    for _ in range(MAX_LOOKS):
        if page.after is None or len(page.jobs) == limit:
            break
        more = inspector.find(wanted, limit=limit - len(page.jobs), after=page.after)
        page = Page((*page.jobs, *more.jobs), more.after)
    return page


@dataclass(frozen=True, slots=True, kw_only=True)
class LostJob:
    """An attempt that was lost with a worker, the job as it is now, and its next attempt, if there is one."""

    attempt: Attempt
    job: JobSummary
    following: TimelineEntry | None

    def view(self) -> dict[str, Any]:
        """Return the JSON form."""
        next_up = self.following
        return {
            "job_id": str(self.job.id),
            "type": self.job.type,
            "queue": self.job.queue,
            "status": self.job.status.value,
            "attempt": self.attempt.attempt,
            "started_at": iso_time(self.attempt.started_at),
            "lost_at": iso_time(self.attempt.ended_at),
            "next": None
            if next_up is None
            else {
                "worker": next_up.worker,
                "started_at": iso_time(next_up.at),
                "wait_seconds": seconds(next_up.wait),
                "outcome": next_up.outcome,
            },
        }


def lost_with(inspector: Inspector, worker_id: str, *, limit: int = MAX_LISTED) -> list[LostJob]:
    """Return the jobs that were lost with a worker, the last first, and what became of them."""
    lost = inspector.lost_attempts(worker_id, limit=limit)
    ids = list(dict.fromkeys(each.job_id for each in lost))
    jobs, now = inspector.summaries(ids), inspector.now()
    attempts: dict[object, list[Attempt]] = {job_id: [] for job_id in ids}
    for each in inspector.attempts(ids):
        attempts[each.job_id].append(each)
    return [
        LostJob(
            attempt=each,
            job=jobs[each.job_id],
            following=_following(each, jobs[each.job_id], attempts[each.job_id], now),
        )
        for each in lost
        if each.job_id in jobs  # else it was removed meanwhile
    ]


def _following(lost: Attempt, job: JobSummary, attempts: list[Attempt], now: datetime) -> TimelineEntry | None:
    """Return the attempt after *lost*. An attempt cannot begin before the previous one has ended."""
    later = [each for each in attempt_entries(job, attempts, now=now) if each.at >= lost.ended_at]
    return min(later, key=lambda entry: entry.at, default=None)
