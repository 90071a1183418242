"""Endpoints for queues: list, get, pause, resume, and figures for autoscaling."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from taskharbor.api import actions, openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, describe
from taskharbor.api.problems import not_found
from taskharbor.api.render import json_response
from taskharbor.api.requests import PauseBody, QueueName, to_timedelta
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.core.states import WAITING, Status
from taskharbor.diagnosis import is_alive
from taskharbor.drivers.base import Inspector
from taskharbor.queues import describe_queues, empty_queue, read_queue, read_queues
from taskharbor.views import View, job_view, queue_view

router: Final = APIRouter(prefix="/v1/queues", tags=["queues"], route_class=ApiRoute)

QueueParam = Annotated[QueueName, Path(examples=["default"])]
_QUEUE: Final = {200: (responses.QueueShape, openapi.QUEUE)}


@router.get("", summary="List queues", **describe({200: (responses.Queues, {"queues": [openapi.QUEUE]})}))
@requires_scope("jobs:read")
async def list_queues(request: ApiRequest) -> Response:
    """List every queue that has jobs or is paused. Counts are a few seconds old, rates are means over 5 minutes."""
    store = request.api.store
    return json_response({"queues": await store.call(read_queues, store.inspector)})


@router.get("/{name}", summary="Get a queue", **describe(_QUEUE, 404, 422))
@requires_scope("jobs:read")
async def get(request: ApiRequest, name: QueueParam) -> Response:
    """Return one queue; 404 if it has no jobs and is not paused."""
    store = request.api.store
    queue = await store.call(read_queue, store.inspector, name)
    if queue is None:
        raise not_found("queue", name)
    return json_response(queue)


@router.get(
    "/{name}/next",
    summary="List the jobs that run next",
    **describe({200: (responses.NextJobs, {"jobs": [openapi.JOB]})}, 422),
)
@requires_scope("jobs:read")
async def next_up(request: ApiRequest, name: QueueParam, limit: Annotated[int, Query(ge=1, le=50)] = 10) -> Response:
    """List the jobs of the queue that run next, in their order: those that are due, then the others."""
    store = request.api.store
    jobs, now = await store.read(store.inspector.next_up, name, limit=limit)
    return json_response({"jobs": [job_view(job, now=now, root=request.root) for job in jobs]})


@router.post(
    "/{name}/pause",
    summary="Pause a queue",
    **describe(_QUEUE, *BODY_PROBLEMS, body={"reason": "the mail server is down", "for": 1_800}),
)
@requires_scope("queues:control")
async def pause(request: ApiRequest, name: QueueParam, body: PauseBody | None = None) -> Response:
    """Stop starting jobs of the queue; running jobs continue. Pausing a paused queue has no effect.

    With *for*, a worker or janitor resumes the queue after so many seconds.
    """
    given = body or PauseBody.model_validate({})
    await actions.pause_queue(request, name, reason=given.reason, lasts=to_timedelta(given.lasts))
    return await _reply(request, name)


@router.post("/{name}/resume", summary="Resume a queue", **describe(_QUEUE, 422))
@requires_scope("queues:control")
async def resume(request: ApiRequest, name: QueueParam) -> Response:
    """Start jobs of the queue again."""
    await actions.resume_queue(request, name)
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
    """Return figures for an autoscaler such as KEDA: the backlog and its age, the live workers, and how many to run.

    *suggested_workers* is how many workers run all due and running jobs at once; a paused queue has no due jobs.
    """
    store = request.api.store
    figures, _ = await store.read(_scaling, store.inspector, name, jobs_per_worker)
    return json_response(figures)


def _scaling(inspector: Inspector, name: str, jobs_per_worker: int) -> dict[str, Any]:
    queue = next((each for each in inspector.queues() if each.name == name), None) or empty_queue(name)
    now = inspector.now()
    # The counts are kept by janitors, which are part of workers: without any worker, only the due time shows new jobs.
    backlog = max(sum(queue.counts.get(status, 0) for status in WAITING), int(queue.oldest_due is not None))
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
        "suggested_workers": ceil((due + running) / jobs_per_worker),
    }


async def _reply(request: ApiRequest, name: str) -> Response:
    store = request.api.store
    return json_response(await store.call(_queue, store.inspector, name))


def _queue(inspector: Inspector, name: str) -> View:
    return read_queue(inspector, name) or describe_queues(inspector, [empty_queue(name)], only=name)[0]
