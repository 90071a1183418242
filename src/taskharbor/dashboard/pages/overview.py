"""The first page: what needs attention, the totals, and the queues; for an empty store, what to do first."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import Query
from fastapi.responses import Response

from taskharbor.api.routing import requires_scope
from taskharbor.core.states import Status
from taskharbor.core.statistics import GroupBy, Metric
from taskharbor.dashboard.attention import Facts, calm_sentence, find_attention
from taskharbor.dashboard.charts import Chart, Frame, Mark, Series, fill, lines, stacked_bars
from taskharbor.dashboard.figures import rate_of
from taskharbor.dashboard.pages.figure_reads import all_queues, by_group
from taskharbor.dashboard.queries import Reads
from taskharbor.dashboard.ranges import RANGES, Range, range_named
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.dashboard.texts import STATES
from taskharbor.tasks import Task
from taskharbor.views import iso_time

router: Final = ui_router()
MAX_TASKS: Final = 5
ENDED: Final = (Status.SUCCEEDED, Status.CANCELED, Status.DEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The numbers of all queues together."""

    pending: int
    sent: int
    running: int
    capacity: int
    retrying: int
    dead: int
    oldest: timedelta | None
    oldest_queue: str | None
    rate: float | None


@router.get("/")
@requires_scope("jobs:read")
async def overview(request: UiRequest, range: Annotated[str, Query(max_length=5)] = "1h") -> Response:  # noqa: A002  the name in the URL
    """Show what needs attention, the totals and the queues."""
    reads, shown = request.reads, range_named(range)
    facts = await reads.facts()
    queues = await all_queues(reads)
    tasks = request.api.store.backend.tasks
    return await request.page(
        "overview.html",
        attention=find_attention(facts),
        calm=calm_sentence(facts),
        totals=await _totals(reads, facts),
        queues=queues,
        is_empty=not queues,
        tasks=sorted(tasks)[:MAX_TASKS],
        first=_first_commands(*min(tasks.items())) if tasks else _COMMANDS,
        workers=facts.alive,
        ended=await _ended(request, shown),
        backlog=await _backlog(request, shown),
        shown=shown,
        ranges=RANGES,
    )


_COMMANDS: Final = {
    "command": "taskharbor enqueue greet name=Ada",
    "body": '{"type": "greet", "payload": {"name": "Ada"}}',
}


def _first_commands(name: str, task: Task[..., Any, Any]) -> dict[str, str]:
    """Return what enqueues a job of *task*, with the parameters that it requires: a command, and a body for HTTP."""
    parameters = [*inspect.signature(task).parameters.values()][1 if task.arguments.takes_context else 0 :]
    required = [each.name for each in parameters if each.default is each.empty]
    command = " ".join(["taskharbor enqueue", name, *(f"{each}=VALUE" for each in required)])
    return {"command": command, "body": json.dumps({"type": name, "payload": dict.fromkeys(required, "VALUE")})}


async def _totals(reads: Reads, facts: Facts) -> Totals:
    now = await reads.now()
    since, until = RANGES[0].bounds(now)
    ended = await reads.series(Metric.ENDED, since=since, until=until, by=GroupBy.STATUS)
    queues = await reads.queues()
    counts = {status: sum(each.counts.get(status, 0) for each in queues) for status in Status}
    due = [(each.oldest_due, each.name) for each in queues if each.oldest_due is not None]
    oldest, name = min(due) if due else (None, None)
    return Totals(
        pending=counts[Status.PENDING],
        sent=counts[Status.ENQUEUED],
        running=counts[Status.PROCESSING],
        capacity=sum(each.concurrency - each.lost_slots for each in facts.alive),
        retrying=counts[Status.FAILED],
        dead=counts[Status.DEAD],
        oldest=None if oldest is None else max(now - oldest, timedelta(0)),
        oldest_queue=name,
        rate=rate_of(ended, now),
    )


async def _frame(request: UiRequest, shown: Range) -> Frame:
    now = await request.reads.now()
    steps = shown.steps(now)
    versions = [each for each in await request.reads.versions() if steps[0] < each.first_seen < now]
    return Frame(
        steps=steps,
        step=shown.step,
        hrefs=[_jobs_of(request, at, at + shown.step) for at in steps],
        marks=[Mark(each.first_seen, f"version {each.version}") for each in versions],
    )


async def _ended(request: UiRequest, shown: Range) -> Chart:
    """Return the jobs that ended in each step, by outcome."""
    frame = await _frame(request, shown)
    since, until = frame.steps[0], frame.steps[-1] + frame.step
    found = await request.reads.series(Metric.ENDED, since=since, until=until, step=shown.step, by=GroupBy.STATUS)
    points = by_group(found)
    series = [
        Series(
            STATES[status].word,
            f"c-{STATES[status].icon}",
            fill(frame.steps, {point.at: point.value for point in points.get(status.value, ())}),
        )
        for status in ENDED
    ]
    return stacked_bars(frame, series)


async def _backlog(request: UiRequest, shown: Range) -> Chart:
    """Return how many jobs waited at the end of each step."""
    frame = await _frame(request, shown)
    since, until = frame.steps[0], frame.steps[-1] + frame.step
    found = await request.reads.series(Metric.WAITING, since=since, until=until, step=shown.step)
    values = fill(frame.steps, {point.at: point.value for point in found}, missing=None)
    return lines(frame, [Series("Waiting", "c-clock", values)])


def _jobs_of(request: UiRequest, since: datetime, until: datetime) -> str:
    query = urlencode({"since": iso_time(since), "until": iso_time(until)})
    return f"{request.base}/jobs?{query}"
