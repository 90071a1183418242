"""Groups of dead letters: the list, one group with its jobs, and its replay or purge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query
from fastapi.responses import Response

from taskharbor.api.problems import not_found
from taskharbor.api.routing import requires_scope
from taskharbor.core.model import JobSummary
from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.core.statistics import HOUR, begin_of
from taskharbor.dashboard.job_filters import read_filter
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.diagnosis import is_alive
from taskharbor.drivers.base import Inspector
from taskharbor.statistics import GROUP_HOURS

router: Final = ui_router()
MAX_GROUPS: Final = 50
MAX_JOBS: Final = 20
_DEAD: Final = frozenset({Status.DEAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """A group of dead letters. *hours* are its deaths in each of the last eight days' hours."""

    queue: str
    type: str
    fingerprint: str
    count: int
    error: str
    first_at: datetime
    last_at: datetime
    first_version: str | None
    hours: tuple[int, ...]
    query: str
    """The query of a list with its jobs."""
    is_handled: bool
    """Whether a live worker of its queue handles its type."""


@router.get("/dead")
@requires_scope("jobs:read")
async def dead(request: UiRequest) -> Response:
    """Show the groups, the largest first."""
    return await request.page("dead.html", groups=await _groups(request), is_capped_at=MAX_GROUPS)


@router.get("/dead/{fingerprint}")
@requires_scope("jobs:read")
async def group(
    request: UiRequest,
    fingerprint: str,
    *,
    queue: Annotated[str, Query(max_length=255)] = "",
    type: Annotated[str, Query(max_length=255)] = "",
) -> Response:
    """Show a group. A fingerprint alone may name several, of which the largest is shown."""
    wanted = [
        each
        for each in await _groups(request)
        if each.fingerprint == fingerprint and queue in {"", each.queue} and type in {"", each.type}
    ]
    if not wanted:
        raise not_found("group", fingerprint)
    found = wanted[0]
    jobs = await request.reads.fresh(lambda inspector: _jobs(inspector, found))
    return await request.page("dead_group.html", group=found, jobs=jobs)


async def _groups(request: UiRequest) -> list[DeadGroup]:
    views = await request.reads.groups(limit=MAX_GROUPS)
    workers, now = await request.reads.workers(), await request.reads.now()
    handled = {(queue, name) for each in workers if is_alive(each, now) for queue in each.queues for name in each.types}
    return [_group(view, now, is_handled=(view["queue"], view["type"]) in handled) for view in views]


def _group(view: dict[str, Any], now: datetime, *, is_handled: bool) -> DeadGroup:
    fields = {name: view[name] for name in ("queue", "type", "fingerprint")}
    query = read_filter(lambda name: [fields.get(name, "")] if name != "status" else ["DEAD"], now).query()
    counts = {datetime.fromisoformat(each["hour"]): each["count"] for each in view["hours"]}
    start = begin_of(now - GROUP_HOURS, HOUR)
    hours = tuple(counts.get(start + number * HOUR, 0) for number in range(1, GROUP_HOURS // HOUR + 1))
    return DeadGroup(
        **fields,
        count=view["count"],
        error=view["error"] or "",
        first_at=datetime.fromisoformat(view["first_at"]),
        last_at=datetime.fromisoformat(view["last_at"]),
        first_version=view["first_version"],
        hours=_days(hours),
        query=query,
        is_handled=is_handled,
    )


def _days(hours: tuple[int, ...], *, step: int = 6) -> tuple[int, ...]:
    """Return sums of six hours each: a line of 192 points would be a smear."""
    return tuple(sum(hours[start : start + step]) for start in range(0, len(hours), step))


def _jobs(inspector: Inspector, wanted: DeadGroup) -> tuple[JobSummary, ...]:
    given = JobFilter(queue=wanted.queue, type=wanted.type, fingerprint=wanted.fingerprint, statuses=_DEAD)
    return inspector.find(given, limit=MAX_JOBS).jobs
