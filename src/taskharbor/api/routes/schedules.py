"""Endpoints for schedules: list, get, define, remove, run, pause, resume."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Header, Path
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, KEY_PATTERN, describe
from taskharbor.api.render import job_response, json_response
from taskharbor.api.requests import ScheduleBody, ScheduleName, to_timedelta
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.api.store import StoreGateway
from taskharbor.core.errors import ScheduleNotFound
from taskharbor.core.model import Schedule
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.views import schedule_view

router: Final = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=ApiRoute)

# A schedule's name may contain slashes, as types may.
ScheduleParam = Annotated[ScheduleName, Path(examples=["nightly"])]
_SCHEDULE: Final = {200: (responses.ScheduleShape, openapi.SCHEDULE)}


@router.get(
    "",
    summary="List schedules",
    **describe({200: (responses.Schedules, {"schedules": [openapi.SCHEDULE]})}),
)
@requires_scope("jobs:read")
async def list_schedules(request: ApiRequest) -> Response:
    """List all schedules, by name."""
    found = await request.api.store.call(request.api.store.inspector.schedules)
    return json_response({"schedules": [schedule_view(each) for each in found.values()]})


@router.get("/{name:path}", summary="Get a schedule", **describe(_SCHEDULE, 404, 422))
@requires_scope("jobs:read")
async def get(request: ApiRequest, name: ScheduleParam) -> Response:
    """Return one schedule; it includes the payload if the caller may read payloads."""
    return await _reply(request, name)


@router.put(
    "/{name:path}",
    summary="Define a schedule",
    **describe(
        _SCHEDULE | {201: (responses.ScheduleShape, openapi.SCHEDULE)}, *BODY_PROBLEMS, body=openapi.NEW_SCHEDULE
    ),
)
@requires_scope("schedules:write")
async def put(request: ApiRequest, name: ScheduleParam, body: ScheduleBody) -> Response:
    """Store a schedule: 201 if it is new. If cron and timezone are unchanged, so is its next fire time."""
    store = request.api.store
    given = body.model_dump(exclude={"jitter", "window", "timeout"})
    spec = ScheduleSpec(
        name=name,
        jitter=timedelta(seconds=body.jitter),
        window=timedelta(seconds=body.window),
        timeout=to_timedelta(body.timeout),
        **given,
    )
    is_new = await store.call(_put, store, spec)
    await store.record_audit(
        request.caller, "schedules.put", name, cron=spec.cron, timezone=spec.timezone, type=spec.type
    )
    return await _reply(request, name, HTTPStatus.CREATED if is_new else HTTPStatus.OK)


@router.delete(
    "/{name:path}",
    status_code=HTTPStatus.NO_CONTENT,
    summary="Remove a schedule",
    **(describe({}, 404, 422) | {"response_class": Response}),
)
@requires_scope("schedules:write")
async def delete(request: ApiRequest, name: ScheduleParam) -> Response:
    """Remove a schedule; the jobs it created are kept."""
    store = request.api.store
    [existed] = await store.call(store.backend.driver.control.delete_schedules, [name])
    if not existed:
        raise ScheduleNotFound(name)
    await store.record_audit(request.caller, "schedules.delete", name)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.post(
    "/{name:path}/run",
    status_code=HTTPStatus.CREATED,
    summary="Run a schedule now",
    **describe({201: (responses.JobShape, openapi.JOB), 200: (responses.JobShape, openapi.JOB)}, 404, 422),
)
@requires_scope("schedules:write")
async def run(
    request: ApiRequest,
    name: ScheduleParam,
    idempotency_key: Annotated[str | None, Header(pattern=KEY_PATTERN)] = None,
) -> Response:
    """Create a job of the schedule now, even if it is paused. Its next fire time does not change."""
    store = request.api.store
    enqueued = await store.call(_scheduler(store).run_now, name, idempotency_key=idempotency_key)
    if not enqueued.existed:
        await store.record_audit(request.caller, "schedules.run", name, job=str(enqueued.id))
    snapshot = await store.get(enqueued.id, with_payload=request.shows_payload)
    headers = {"Location": f"{request.root}/v1/jobs/{enqueued.id}"}
    return await job_response(request, snapshot, HTTPStatus.OK if enqueued.existed else HTTPStatus.CREATED, headers)


@router.post("/{name:path}/pause", summary="Pause a schedule", **describe(_SCHEDULE, 404, 422))
@requires_scope("schedules:write")
async def pause(request: ApiRequest, name: ScheduleParam) -> Response:
    """Pause a schedule. Pausing a paused schedule has no effect."""
    store = request.api.store
    [is_new] = await store.call(store.backend.driver.control.pause_schedules, [name])
    if is_new:
        await store.record_audit(request.caller, "schedules.pause", name)
    return await _reply(request, name)


@router.post("/{name:path}/resume", summary="Resume a schedule", **describe(_SCHEDULE, 404, 422))
@requires_scope("schedules:write")
async def resume(request: ApiRequest, name: ScheduleParam) -> Response:
    """Resume a paused schedule."""
    store = request.api.store
    [is_new] = await store.call(store.backend.driver.control.resume_schedules, [name])
    if is_new:
        await store.record_audit(request.caller, "schedules.resume", name)
    return await _reply(request, name)


def _scheduler(store: StoreGateway) -> Scheduler:
    return Scheduler(store.backend.driver, codec=store.backend.codec)


def _put(store: StoreGateway, spec: ScheduleSpec) -> bool:
    """Store a schedule, and return whether it is new."""
    existed = spec.name in store.inspector.schedules()
    _scheduler(store).put([spec])
    return not existed


async def _reply(request: ApiRequest, name: str, status: int = HTTPStatus.OK) -> Response:
    store = request.api.store
    found = await store.call(_get, store, name)
    return json_response(schedule_view(found, with_payload=request.may("payload:read")), status)


def _get(store: StoreGateway, name: str) -> Schedule:
    schedules = store.inspector.schedules()
    if name not in schedules:
        raise ScheduleNotFound(name)
    return schedules[name]
