"""Endpoints for queues: list, get, pause, resume, and figures for autoscaling."""

from __future__ import annotations

from datetime import datetime
from math import ceil
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import describe
from taskharbor.api.problems import not_found
from taskharbor.api.render import json_response
from taskharbor.api.requests import QueueName
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.core.results import QueueStats
from taskharbor.core.states import WAITING, Status
from taskharbor.diagnosis import is_alive
from taskharbor.drivers.base import Inspector
from taskharbor.views import queue_view

router: Final = APIRouter(prefix="/v1/queues", tags=["queues"], route_class=ApiRoute)

QueueParam = Annotated[QueueName, Path(examples=["default"])]
_QUEUE: Final = {200: (responses.QueueShape, openapi.QUEUE)}


@router.get("", summary="List queues", **describe({200: (responses.Queues, {"queues": [openapi.QUEUE]})}))
@requires_scope("jobs:read")
async def list_queues(request: ApiRequest) -> Response:
    """List every queue that has jobs or is paused. Counts are a few seconds old."""
    store = request.api.store
    queues, now = await store.read(store.inspector.queues)
    return json_response({"queues": [queue_view(each, now=now) for each in queues]})


@router.get("/{name}", summary="Get a queue", **describe(_QUEUE, 404, 422))
@requires_scope("jobs:read")
async def get(request: ApiRequest, name: QueueParam) -> Response:
    """Return one queue; 404 if it has no jobs and is not paused."""
    queue, now = await _find(request, name)
    if queue is None:
        raise not_found("queue", name)
    return json_response(queue_view(queue, now=now))


@router.post("/{name}/pause", summary="Pause a queue", **describe(_QUEUE, 422))
@requires_scope("queues:control")
async def pause(request: ApiRequest, name: QueueParam) -> Response:
    """Stop starting jobs of the queue; running jobs continue. Pausing a paused queue has no effect."""
    store = request.api.store
    [is_new] = await store.call(store.backend.driver.control.pause, [name], by=request.caller.name)
    if is_new:
        await store.record_audit(request.caller, "queues.pause", name)
    return await _reply(request, name)


@router.post("/{name}/resume", summary="Resume a queue", **describe(_QUEUE, 422))
@requires_scope("queues:control")
async def resume(request: ApiRequest, name: QueueParam) -> Response:
    """Start jobs of the queue again."""
    store = request.api.store
    [is_new] = await store.call(store.backend.driver.control.resume, [name])
    if is_new:
        await store.record_audit(request.caller, "queues.resume", name)
    return await _reply(request, name)


@router.get(
    "/{name}/scaling",
    summary="Get autoscaling figures for a queue",
    **describe({200: (responses.Scaling, openapi.SCALING)}, 422),
)
@requires_scope("jobs:read")
async def scaling(
    request: ApiRequest,
    name: QueueParam,
    jobs_per_worker: Annotated[
        int, Query(ge=1, le=10_000, description="How many jobs one worker runs concurrently.")
    ] = 16,
) -> Response:
    """Return figures for an autoscaler such as KEDA: backlog, its age, and a suggested number of workers (*hint*)."""
    store = request.api.store
    figures, _ = await store.read(_scaling, store.inspector, name, jobs_per_worker)
    return json_response(figures)


def _scaling(inspector: Inspector, name: str, jobs_per_worker: int) -> dict[str, Any]:
    queue = next((each for each in inspector.queues() if each.name == name), None) or _empty(name)
    now = inspector.now()
    backlog = sum(queue.counts.get(status, 0) for status in WAITING)
    running = queue.counts.get(Status.PROCESSING, 0)
    # Jobs that are not due need no worker; the store knows whether any job is due, but not how many.
    due = backlog if queue.oldest_due is not None and queue.paused_at is None else 0
    return {
        "queue": name,
        "backlog": backlog,
        "running": running,
        "oldest_age_seconds": queue_view(queue, now=now)["oldest_age_seconds"] or 0.0,
        "is_paused": queue.paused_at is not None,
        "workers": sum(name in each.queues and is_alive(each, now) for each in inspector.workers()),
        "hint": ceil((due + running) / jobs_per_worker),
    }


async def _find(request: ApiRequest, name: str) -> tuple[QueueStats | None, datetime]:
    store = request.api.store
    queues, now = await store.read(store.inspector.queues)
    return next((each for each in queues if each.name == name), None), now


async def _reply(request: ApiRequest, name: str) -> Response:
    queue, now = await _find(request, name)
    return json_response(queue_view(queue or _empty(name), now=now))


def _empty(name: str) -> QueueStats:
    return QueueStats(name=name, counts={}, oldest_due=None, paused_at=None, paused_by=None)
