"""Schedules: the list with their last runs, one with its next fire times, and running, pausing and deleting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

from cronsim import CronSim
from fastapi import Path, Query
from fastapi.responses import Response

from taskharbor.api import actions
from taskharbor.api.requests import ScheduleName
from taskharbor.api.routing import check_scope, requires_scope
from taskharbor.core.errors import ScheduleNotFound
from taskharbor.core.model import Schedule
from taskharbor.dashboard.forms import reject_form
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.diagnosis import declared_schedules
from taskharbor.drivers.base import Inspector
from taskharbor.schedule_runs import read_runs
from taskharbor.schedules import next_fires
from taskharbor.views import schedule_state

router: Final = ui_router()
ScheduleParam = Annotated[ScheduleName, Path()]
PAGE: Final = 50
LISTED_RUNS: Final = 30
SHOWN_RUNS: Final = 100
NEXT_FIRES: Final = 10
VERBS: Final = ("run", "pause", "resume", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSchedule:
    """A schedule, whether it fires, and its last runs, newest first."""

    schedule: Schedule
    state: str
    words: str
    runs: list[dict[str, Any]]

    @property
    def path(self) -> str:
        """The path of its page."""
        return f"/schedules/{quote(self.schedule.name, safe='')}"


@router.get("/schedules")
@requires_scope("jobs:read")
async def schedules(request: UiRequest, after: Annotated[str, Query(max_length=255)] = "") -> Response:
    """Show the schedules by name, a page at a time: each has up to 30 runs."""
    names = sorted(name for name in await request.reads.schedules() if name > after)
    page, is_last = names[:PAGE], len(names) <= PAGE
    found = await request.reads.cached(("schedules", after), lambda inspector: _read(inspector, page, LISTED_RUNS))
    return await request.page("schedules.html", schedules=found, after="" if is_last else page[-1])


@router.get("/schedules/{name:path}")  # a name may have slashes
@requires_scope("jobs:read")
async def schedule(request: UiRequest, name: ScheduleParam) -> Response:
    """Show a schedule, or what a change of it would do."""
    found = await _find(request, name)
    stem, _, verb = name.rpartition("/")
    if found is None and stem and verb in VERBS:
        check_scope(request, "schedules:write")
        return await request.page("schedule_action.html", shown=await _one(request, stem), verb=verb)
    if found is None:
        raise ScheduleNotFound(name)
    fires = await _fires(request, found.schedule)
    return await request.page("schedule.html", shown=found, fires=fires)


@router.post("/schedules/{name:path}/run")
@requires_scope("schedules:write")
async def run(request: UiRequest, name: ScheduleParam) -> Response:
    """Create a job of the schedule now."""
    enqueued = await actions.run_schedule(request, name)
    return request.redirect(f"/jobs/{enqueued.id}", f"Schedule {name} has created this job.")


@router.post("/schedules/{name:path}/pause")
@requires_scope("schedules:write")
async def pause(request: UiRequest, name: ScheduleParam) -> Response:
    """Pause a schedule."""
    shown = await _one(request, name)
    await actions.pause_schedule(request, name)
    return request.redirect(shown.path, f"Schedule {name} is paused.", undo=f"{shown.path}/resume")


@router.post("/schedules/{name:path}/resume")
@requires_scope("schedules:write")
async def resume(request: UiRequest, name: ScheduleParam) -> Response:
    """Resume a schedule."""
    shown = await _one(request, name)
    await actions.resume_schedule(request, name)
    return request.redirect(shown.path, f"Schedule {name} fires again.", undo=f"{shown.path}/pause")


@router.post("/schedules/{name:path}/delete")
@requires_scope("schedules:write")
async def delete(request: UiRequest, name: ScheduleParam) -> Response:
    """Delete a schedule."""
    if request.field("typed") != name:
        reject_form(f"type the name of the schedule, {name}, to delete it; nothing was changed")
    await actions.delete_schedule(request, name)
    return request.redirect("/schedules", f"Schedule {name} is deleted. Its jobs stay.")


async def _one(request: UiRequest, name: str) -> ShownSchedule:
    found = await _find(request, name)
    if found is None:
        raise ScheduleNotFound(name)
    return found


async def _find(request: UiRequest, name: str) -> ShownSchedule | None:
    found = await request.reads.fresh(lambda inspector: _read(inspector, [name], SHOWN_RUNS))
    return found[0] if found else None


def _read(inspector: Inspector, names: Sequence[str], runs: int) -> list[ShownSchedule]:
    found: Mapping[str, Schedule] = inspector.schedules()
    wanted = [found[name] for name in names if name in found]
    declared = declared_schedules(inspector)
    by_name = read_runs(inspector, [each.name for each in wanted], limit=runs)
    return [
        ShownSchedule(
            schedule=each,
            state=schedule_state(each, declared=declared),
            words=_words(each.cron),
            runs=by_name[each.name],
        )
        for each in wanted
    ]


async def _fires(request: UiRequest, schedule: Schedule) -> list[tuple[datetime, str]]:
    """Return the next fire times, in UTC and in the zone of the schedule."""
    now, zone = await request.reads.now(), ZoneInfo(schedule.timezone)
    fires = next_fires(schedule.cron, schedule.timezone, after=now, count=NEXT_FIRES)
    return [(each, f"{each.astimezone(zone):%a %Y-%m-%d %H:%M %Z}") for each in fires]


@lru_cache(maxsize=1_000)  # 0.35 ms each, and a page may show hundreds
def _words(cron: str) -> str:
    return str(CronSim(cron, datetime(2030, 1, 1, tzinfo=UTC)).explain())
