"""One queue: figures, charts, what runs next, and pausing it."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Path, Query
from fastapi.responses import Response

from taskharbor.api import actions
from taskharbor.api.problems import HttpProblem
from taskharbor.api.requests import QueueName
from taskharbor.api.routing import requires_scope
from taskharbor.core.statistics import Metric, SeriesPoint, quantile
from taskharbor.dashboard.charts import Chart, Frame, Series, fill, lines
from taskharbor.dashboard.figures import forecast_pause, mean_of
from taskharbor.dashboard.pages.figure_reads import one_queue
from taskharbor.dashboard.queries import Reads
from taskharbor.dashboard.ranges import RANGES, Range, range_named
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.dashboard.texts import span

router: Final = ui_router()
QueueParam = Annotated[QueueName, Path()]
NEXT_JOBS: Final = 10
FORECASTS: Final = (timedelta(minutes=10), timedelta(minutes=30), timedelta(hours=2))
LENGTHS: Final = tuple((int(each.total_seconds()), span(each)) for each in (*FORECASTS, timedelta(hours=12)))
LENGTH_VALUES: Final = frozenset(str(seconds) for seconds, _ in LENGTHS)
MAX_REASON_CHARS: Final = 200
_PERCENTS: Final = ((50, "c-p50"), (95, "c-p95"), (99, "c-p99"))


@router.get("/queues/{name}")
@requires_scope("jobs:read")
async def queue(request: UiRequest, name: QueueParam, range: Annotated[str, Query(max_length=5)] = "1h") -> Response:  # noqa: A002  the name in the URL
    """Show a queue."""
    reads, shown = request.reads, range_named(range)
    figures = await one_queue(reads, name)
    jobs = await reads.fresh(lambda inspector: inspector.next_up(name, limit=NEXT_JOBS))
    feeding = [each for each in (await reads.schedules()).values() if each.queue == name]
    charts = await _charts(reads, name, shown)
    return await request.page(
        "queue.html", queue=figures, jobs=jobs, schedules=feeding, shown=shown, ranges=RANGES, **charts
    )


@router.get("/queues/{name}/pause")
@requires_scope("queues:control")
async def ask_pause(request: UiRequest, name: QueueParam) -> Response:
    """Show what a pause would do."""
    figures = await one_queue(request.reads, name)
    feeding = [each.name for each in (await request.reads.schedules()).values() if each.queue == name]
    since, until = RANGES[0].bounds(await request.reads.now())
    run_time = mean_of(await request.reads.series(Metric.RUN, since=since, until=until, queue=name))
    found = (forecast_pause(figures, each, run_time=run_time) for each in FORECASTS)
    forecasts = [each for each in found if each is not None]
    return await request.page(
        "queue_pause.html", queue=figures, forecasts=forecasts, schedules=feeding, lengths=LENGTHS
    )


@router.post("/queues/{name}/pause")
@requires_scope("queues:control")
async def pause(request: UiRequest, name: QueueParam) -> Response:
    """Pause a queue."""
    reason, lasts = request.field("reason"), request.field("lasts")
    if len(reason) > MAX_REASON_CHARS or lasts not in {"", *LENGTH_VALUES}:
        raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", "the reason or the length is not valid")
    length = timedelta(seconds=int(lasts)) if lasts else None
    is_new = await actions.pause_queue(request, name, reason=reason, lasts=length)
    path = f"/queues/{quote(name, safe='')}"
    if not is_new:
        return request.redirect(path, f"Queue {name} was paused already.")
    return request.redirect(path, f"Queue {name} is paused. Running jobs continue.", undo=f"{path}/resume")


@router.get("/queues/{name}/resume")
@requires_scope("queues:control")
async def ask_resume(request: UiRequest, name: QueueParam) -> Response:
    """Show what a resume would do."""
    return await request.page("queue_resume.html", queue=await one_queue(request.reads, name))


@router.post("/queues/{name}/resume")
@requires_scope("queues:control")
async def resume(request: UiRequest, name: QueueParam) -> Response:
    """Resume a queue."""
    is_new = await actions.resume_queue(request, name)
    path = f"/queues/{quote(name, safe='')}"
    if not is_new:
        return request.redirect(path, f"Queue {name} was not paused.")
    return request.redirect(path, f"Queue {name} starts jobs again.", undo=f"{path}/pause")


async def _charts(reads: Reads, name: str, shown: Range) -> dict[str, Any]:
    now = await reads.now()
    since, until = shown.bounds(now)
    frame = Frame(steps=shown.steps(now), step=shown.step)
    read = partial(reads.series, since=since, until=until, step=shown.step, queue=name)
    waiting, oldest = await read(Metric.WAITING), await read(Metric.OLDEST_AGE)
    return {
        "backlog_chart": lines(frame, [Series("waiting", "c-clock", _values(frame, waiting))]),
        "oldest_chart": lines(frame, [Series("oldest wait", "c-retry", _values(frame, oldest))], unit="s"),
        "wait_chart": _percentiles(frame, await read(Metric.WAIT)),
        "run_chart": _percentiles(frame, await read(Metric.RUN)),
    }


def _values(frame: Frame, points: list[SeriesPoint]) -> list[float | None]:
    return fill(frame.steps, {point.at: point.value for point in points}, missing=None)


def _percentiles(frame: Frame, points: list[SeriesPoint]) -> Chart:
    found = []
    for percent, css in _PERCENTS:
        values = {point.at: quantile(point.buckets, percent / 100) for point in points}
        seconds = {at: value.total_seconds() for at, value in values.items() if value is not None}
        found.append(Series(f"p{percent}", css, fill(frame.steps, seconds, missing=None)))
    return lines(frame, found, unit="s")
