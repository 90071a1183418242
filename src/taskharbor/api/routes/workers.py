"""Endpoints for workers: list, and one with the jobs that it holds and those that were lost with it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import describe
from taskharbor.api.problems import not_found
from taskharbor.api.render import json_response
from taskharbor.api.requests import Key
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.api.store import StoreGateway
from taskharbor.views import job_view
from taskharbor.workers import describe_worker, find_worker, held_by, list_workers, lost_with

router: Final = APIRouter(prefix="/v1/workers", tags=["workers"], route_class=ApiRoute)


@router.get("", summary="List workers", **describe({200: (responses.Workers, {"workers": [openapi.WORKER]})}, 422))
@requires_scope("jobs:read")
async def list_all(
    request: ApiRequest,
    *,
    include_past: Annotated[
        bool, Query(alias="all", description="Whether to list also those that stopped or died in the last seven days.")
    ] = False,
) -> Response:
    """List the workers that sent a heartbeat in the last minutes and have not stopped, by id."""
    store = request.api.store
    found, now = await store.read(list_workers, store.inspector, include_past=include_past)
    return json_response({"workers": [describe_worker(each, now) for each in found]})


@router.get(
    "/{name}",
    summary="Get a worker",
    **describe({200: (responses.WorkerDetail, openapi.WORKER_DETAIL)}, 404, 422),
)
@requires_scope("jobs:read")
async def get(
    request: ApiRequest, name: Annotated[Key, Path(examples=["web-1:4711:0a1b2c3d"], description="The worker's id.")]
) -> Response:
    """Return one worker, the jobs that it holds, and those that were lost with it and what became of them.

    *held* has up to 100 jobs; *holds_more* is whether there may be others. *lost* has the last 100.
    """
    detail = await request.api.store.call(_detail, request.api.store, name, request.root)
    if detail is None:
        raise not_found("worker", name)
    return json_response(detail)


def _detail(store: StoreGateway, worker_id: str, root: str) -> dict[str, Any] | None:
    inspector, now = store.inspector, store.clock.now()
    worker = find_worker(inspector, worker_id)
    if worker is None:
        return None
    held = held_by(inspector, worker_id)
    return describe_worker(worker, now) | {
        "held": [job_view(job, now=now, root=root) for job in held.jobs],
        "holds_more": held.after is not None,
        "lost": [each.view() for each in lost_with(inspector, worker_id)],
    }
