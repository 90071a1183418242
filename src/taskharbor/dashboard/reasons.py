"""Why a job waits, or how it ended, in a few words, which come from the cause of its diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskharbor.core.states import Status
from taskharbor.diagnosis import Cause
from taskharbor.views import describe_end

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.model import JobSummary
    from taskharbor.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True)
class Reason:
    """What to show: *text*, then the time *at*, if any, then *more*."""

    text: str
    at: datetime | None = None
    more: str = ""


def reason_of(job: JobSummary, found: Diagnosis) -> Reason:
    """Return the reason of a job's state in a few words."""
    error = (job.last_error or "").partition("\n")[0]
    match found.cause:
        case Cause.FINAL:
            return _end(job)
        case Cause.LEASED:
            asked = job.cancel_requested_at is not None
            return Reason("cancel requested" if asked else f"runs on {job.worker_id}", more=_progress(job))
        case Cause.LEASE_OVER:
            return Reason(f"the lease of {job.worker_id} expired", job.lease_expires_at, "reclaim pending")
        case Cause.NOT_DUE:
            return Reason("due", job.scheduled_for, error if job.status is Status.FAILED else "")
        case Cause.AHEAD:
            return Reason(f"≈ {found.ahead:,} jobs come first")
        case _:
            return Reason(_WORDS[found.cause])


_WORDS = {
    Cause.PAUSED: "its queue is paused",
    Cause.UNHANDLED: "no live worker handles it",
    Cause.NO_ENQUEUER: "no enqueuer sends its message",
    Cause.SEND_FAILED: "its message cannot be sent",
    Cause.RECEIVE_FAILED: "workers cannot receive its message",
    Cause.MESSAGE: "its message is on its way",
    Cause.NEXT: "next: a free slot runs it",
}


def _end(job: JobSummary) -> Reason:
    if job.status is Status.DEAD:
        return Reason((describe_end(job).partition("\n")[0] or "died") + ",", job.completed_at)
    return Reason("ended" if job.status is Status.SUCCEEDED else "canceled", job.completed_at)


def _progress(job: JobSummary) -> str:
    progress = job.progress
    if progress is None:
        return ""
    total = "" if progress.total is None else f"/{progress.total:,}"
    return " ".join(filter(None, [f"{progress.done:,}{total}", progress.note]))
