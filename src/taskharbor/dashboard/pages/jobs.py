"""The list of jobs: filters, one page of rows with the reason of each, and the choice of jobs for a bulk operation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from uuid import UUID

from fastapi.responses import Response

from taskharbor.api.routing import requires_scope
from taskharbor.core.ids import JobId
from taskharbor.core.model import JobSummary
from taskharbor.core.results import JobFilter, Page
from taskharbor.core.states import Status
from taskharbor.dashboard.job_filters import GivenFilter, read_filter
from taskharbor.dashboard.reasons import Reason, reason_of
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.diagnosis import diagnose_all
from taskharbor.drivers.base import Inspector
from taskharbor.views import run_time, wait_time

router: Final = ui_router()
PAGE: Final = 50
MAX_LOOKS: Final = 20
MAX_LOOK_SECONDS: Final = 0.15
"""A filter that matches little stops here, and the page offers to look further."""
MAX_NEW: Final = 99
TABS: Final = (None, *Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job of the list, and why it is in its state."""

    job: JobSummary
    reason: Reason
    wait: timedelta | None
    run: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """The rows of a page. *after* is where the next page continues. *newer* counts jobs that came since."""

    rows: tuple[JobRow, ...]
    after: JobId | None = None
    looked_back_to: datetime | None = None
    newer: int = 0


@router.get("/jobs")
@requires_scope("jobs:read")
async def jobs(request: UiRequest) -> Response:
    """Show jobs, newest first."""
    given = read_filter(request.query_params.getlist, await request.reads.now())
    after = _job_id(request.query_params.get("cursor", ""))
    keys = [each for each in map(_job_id, request.headers.get("x-keys", "").split(",")) if each is not None]
    read = partial(_again, wanted=given.wanted, keys=keys[:PAGE]) if keys else partial(_page, given.wanted, after=after)
    found = await request.reads.fresh(read)
    counts = await _counts(request, given)
    names = [each.name for each in await request.reads.queues()]
    types = sorted({each for worker in await request.reads.workers() for each in worker.types})
    return await request.page(
        "jobs.html",
        given=given,
        found=found,
        counts=counts,
        tabs=TABS,
        is_first=after is None,
        queues=names,
        types=types,
    )


async def _counts(request: UiRequest, given: GivenFilter) -> dict[Status, int] | None:
    """Return how many jobs are in each state, from the statistics of queues; None if another filter is given."""
    if given.texts.keys() - {"queue"}:
        return None
    queues = [each for each in await request.reads.queues() if each.name == given.texts.get("queue", each.name)]
    return {status: sum(each.counts.get(status, 0) for each in queues) for status in Status}


def _page(wanted: JobFilter, inspector: Inspector, *, after: JobId | None) -> JobList:
    """Read one page. A filter that matches little is followed for a limited time."""
    began, found = time.monotonic(), list[JobSummary]()
    for _ in range(MAX_LOOKS):
        page = inspector.find(wanted, limit=PAGE - len(found), after=after)
        found += page.jobs
        after = page.after
        if after is None or len(found) == PAGE or time.monotonic() - began > MAX_LOOK_SECONDS:
            break
    is_full = len(found) == PAGE
    looked_back_to = None if is_full else Page((), after).looked_back_to
    return JobList(rows=_rows(inspector, found), after=after, looked_back_to=looked_back_to)


def _again(inspector: Inspector, *, wanted: JobFilter, keys: Sequence[JobId]) -> JobList:
    """Read the jobs that a page shows again, in their order, and count those that came since."""
    jobs = inspector.summaries(keys)
    newest = inspector.find(wanted, limit=MAX_NEW)
    newer = sum(job.id > keys[0] for job in newest.jobs)
    return JobList(rows=_rows(inspector, [jobs[each] for each in keys if each in jobs]), newer=newer)


def _rows(inspector: Inspector, jobs: Sequence[JobSummary]) -> tuple[JobRow, ...]:
    if not jobs:
        return ()
    now, whys = inspector.now(), diagnose_all(inspector, jobs)
    return tuple(
        JobRow(
            job=job,
            reason=reason_of(job, whys[job.id]),
            wait=None if job.status.is_waiting and job.scheduled_for > now else wait_time(job, now),
            run=run_time(job, now),
        )
        for job in jobs
    )


def _job_id(text: str) -> JobId | None:
    try:
        return JobId(UUID(text))
    except ValueError:
        return None
