"""Endpoints for statistics and health checks. Statistics come from aggregates, never from counting jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import describe
from taskharbor.api.problems import HttpProblem
from taskharbor.api.render import json_response
from taskharbor.api.requests import QueueName, Timestamp, TypeName
from taskharbor.api.routing import PUBLIC, ApiRequest, ApiRoute, requires_scope
from taskharbor.core.errors import TaskHarborError
from taskharbor.core.statistics import GroupBy, Metric
from taskharbor.diagnosis import is_alive
from taskharbor.drivers.base import Inspector
from taskharbor.statistics import read_series, read_types, read_versions
from taskharbor.views import stats_view

router: Final = APIRouter(prefix="/v1", tags=["stats"], route_class=ApiRoute)

HOUR: Final = timedelta(hours=1)
Step = Literal["1", "15", "60"]
health_router: Final = APIRouter(tags=["health"], route_class=ApiRoute)
READY_TIMEOUT_SECONDS: Final = 1.5
"""Less than the timeout of a probe in deploy/kubernetes: a probe without an answer has no cause."""
_OK: Final = {200: (responses.Health, {"status": "ok"})}
_Verbose = Annotated[
    str | None,
    Query(description="If it is given, with or without a value, the response has `checks`, as that of a worker."),
]


@router.get("/stats", summary="Get current statistics", **describe({200: (responses.Stats, openapi.STATS)}))
@requires_scope("jobs:read")
async def stats(request: ApiRequest) -> Response:
    """Return the number of jobs in each state, the live workers, and the jobs finished in the last hour."""
    store = request.api.store
    return json_response(await store.call(_stats, store.inspector))


@router.get(
    "/stats/timeseries",
    summary="Get a series of statistics",
    **describe({200: (responses.TimeSeries, openapi.SERIES)}, 422),
)
@requires_scope("jobs:read")
async def timeseries(
    request: ApiRequest,
    *,
    metric: Metric = Metric.ENDED,
    by: GroupBy = GroupBy.NONE,
    step: Step = "1",
    since: Annotated[Timestamp | None, Query()] = None,
    until: Annotated[Timestamp | None, Query()] = None,
    queue: Annotated[QueueName | None, Query()] = None,
    type: Annotated[TypeName | None, Query()] = None,
) -> Response:
    """Return a series by steps of 1, 15 or 60 minutes, oldest first; by default of the last hour.

    Steps without data are omitted. At most 2,000 points.
    """
    store = request.api.store
    options: dict[str, Any] = {
        "by": by,
        "step": int(step),
        "since": since,
        "until": until,
        "queue": queue,
        "type": type,
    }
    return json_response(await store.call(read_series, store.inspector, metric, **options))


@router.get("/types", summary="List types of jobs", **describe({200: (responses.Types, {"types": [openapi.TYPE]})}))
@requires_scope("jobs:read")
async def types(request: ApiRequest) -> Response:
    """List the types that live workers handle, or that had attempts in the last hour, by name."""
    store = request.api.store
    return json_response({"types": await store.call(read_types, store.inspector)})


@router.get(
    "/versions",
    summary="List versions of the application",
    **describe({200: (responses.Versions, {"versions": [openapi.VERSION]})}),
)
@requires_scope("jobs:read")
async def versions(request: ApiRequest) -> Response:
    """List the versions of the application that workers reported in the last 8 days, the last one to appear first."""
    store = request.api.store
    return json_response({"versions": await store.call(read_versions, store.inspector)})


def _stats(inspector: Inspector) -> dict[str, Any]:
    now = inspector.now()
    alive = sum(is_alive(worker, now) for worker in inspector.workers())
    return stats_view(inspector.queues(), inspector.finished_counts(since=now - HOUR), workers_alive=alive, now=now)


@health_router.get("/livez", summary="Liveness", **describe(_OK, 422))
@requires_scope(PUBLIC)
async def livez(*, verbose: _Verbose = None) -> Response:
    """Return 200 if the event loop runs. An unavailable store is no reason to restart the process."""
    return json_response({"status": "ok"} | _checks({"event-loop": "ok"}, verbose))


@health_router.get("/readyz", summary="Readiness", **describe(_OK, 422))
@requires_scope(PUBLIC)
async def readyz(request: ApiRequest, *, verbose: _Verbose = None) -> Response:
    """Return 200 if the store answers, and 503 if it does not."""
    store = request.api.store
    try:
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            await store.ping()
    except (TaskHarborError, TimeoutError) as error:
        # Not its text, which may name hosts and users.
        checks = _checks({"store": type(error).__name__}, verbose)
        raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", "store unavailable", **checks) from None
    return json_response({"status": "ok"} | _checks({"store": "ok"}, verbose))


def _checks(found: dict[str, str], verbose: str | None) -> dict[str, Any]:
    return {} if verbose is None else {"checks": found}
