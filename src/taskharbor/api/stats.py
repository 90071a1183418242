"""Workers, and figures for people: from the store's aggregates, never from a count over history."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from taskharbor.api import examples, shapes
from taskharbor.api.bodies import QueueName
from taskharbor.api.describing import describe
from taskharbor.api.replying import json_bytes, json_response, reply_bytes
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.drivers.base import Inspector
from taskharbor.views import finished_view, stats_view, worker_view
from taskharbor.why import is_alive

router: Final = APIRouter(prefix="/v1", tags=["stats"], route_class=ApiRoute)

HOUR: Final = timedelta(hours=1)
MAX_MINUTES: Final = 1_440
MAX_ROWS: Final = 10_000


@router.get("/workers", summary="List workers", **describe({200: (shapes.Workers, {"workers": [examples.WORKER]})}))
@requires_scope("jobs:read")
async def workers(request: ApiRequest) -> Response:
    """List the workers that were heard of lately, by id."""
    store = request.api.store
    found, now = await store.read(store.inspector.workers)
    return json_response({"workers": [worker_view(each) | {"is_alive": is_alive(each, now)} for each in found]})


@router.get("/stats", summary="Get the figures of now", **describe({200: (shapes.Stats, examples.STATS)}))
@requires_scope("jobs:read")
async def stats(request: ApiRequest) -> Response:
    """Return how many jobs there are in each state, who works, and what the last hour brought."""
    store = request.api.store
    return json_response(await store.call(_stats, store.inspector))


@router.get(
    "/stats/timeseries",
    summary="Get the figures of the last minutes",
    **describe({200: (shapes.TimeSeries, {"minutes": [examples.MINUTE]})}, 422),
)
@requires_scope("jobs:read")
async def timeseries(
    request: ApiRequest,
    minutes: Annotated[int, Query(ge=1, le=MAX_MINUTES)] = 60,
    queue: Annotated[QueueName | None, Query()] = None,
) -> Response:
    """Return how many jobs ended in each minute, by queue and state, oldest first; 10,000 rows at most, the newest."""
    inspector = request.api.store.inspector
    body = await request.api.store.page(_minutes, inspector, timedelta(minutes=minutes), queue)
    return reply_bytes(body)


def _minutes(inspector: Inspector, span: timedelta, queue: str | None) -> bytes:
    """Read the newest rows and write them as JSON, in one thread: 10,000 of them take 30 ms."""
    found = inspector.finished_counts(since=inspector.now() - span, queue=queue, limit=MAX_ROWS)
    return json_bytes({"minutes": [finished_view(each) for each in found]})


def _stats(inspector: Inspector) -> dict[str, Any]:
    now = inspector.now()
    alive = sum(is_alive(worker, now) for worker in inspector.workers())
    return stats_view(inspector.queues(), inspector.finished_counts(since=now - HOUR), workers_alive=alive, now=now)
