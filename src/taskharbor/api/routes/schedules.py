"""Schedules: jobs that are made again and again."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Header, Path
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import KEY_PATTERN, WITH_BODY, describe
from taskharbor.api.render import job_response, json_response
from taskharbor.api.requests import ScheduleBody, ScheduleName, to_timedelta
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.api.store import StoreGateway
from taskharbor.core.errors import ScheduleNotFound
from taskharbor.core.model import Schedule
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.views import schedule_view

router: Final = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=ApiRoute)

# A schedule's name may hold slashes, as types do.
ThatSchedule = Annotated[ScheduleName, Path(examples=["nightly"])]
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
async def get(request: ApiRequest, name: ThatSchedule) -> Response:
    """Return one schedule, with its payload for those who may see it."""
    return await _reply(request, name)


@router.put(
    "/{name:path}",
    summary="Define a schedule",
    **describe(_SCHEDULE | {201: (responses.ScheduleShape, openapi.SCHEDULE)}, *WITH_BODY, body=openapi.NEW_SCHEDULE),
)
@requires_scope("schedules:write")
async def put(request: ApiRequest, name: ThatSchedule, body: ScheduleBody) -> Response:
    """Store a schedule: 201 where there was none. With the same cron and timezone its next time stays."""
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
async def delete(request: ApiRequest, name: ThatSchedule) -> Response:
    """Remove a schedule; jobs that it made stay."""
    store = request.api.store
    [was_there] = await store.call(store.backend.driver.control.delete_schedules, [name])
    if not was_there:
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
    name: ThatSchedule,
    idempotency_key: Annotated[str | None, Header(pattern=KEY_PATTERN)] = None,
) -> Response:
    """Make a job of the schedule at once, paused or not; its next time stays as it is."""
    store = request.api.store
    made = await store.call(_scheduler(store).run_now, name, idempotency_key=idempotency_key)
    if not made.existed:
        await store.record_audit(request.caller, "schedules.run", name, job=str(made.id))
    seen = await store.get(made.id, with_payload=request.shows_payload)
    headers = {"Location": f"{request.root}/v1/jobs/{made.id}"}
    return await job_response(request, seen, HTTPStatus.OK if made.existed else HTTPStatus.CREATED, headers)


@router.post("/{name:path}/pause", summary="Pause a schedule", **describe(_SCHEDULE, 404, 422))
@requires_scope("schedules:write")
async def pause(request: ApiRequest, name: ThatSchedule) -> Response:
    """Let a schedule rest. One that rests already stays so."""
    store = request.api.store
    [is_new] = await store.call(store.backend.driver.control.pause_schedules, [name])
    if is_new:
        await store.record_audit(request.caller, "schedules.pause", name)
    return await _reply(request, name)


@router.post("/{name:path}/resume", summary="Resume a schedule", **describe(_SCHEDULE, 404, 422))
@requires_scope("schedules:write")
async def resume(request: ApiRequest, name: ThatSchedule) -> Response:
    """Let a schedule fire again."""
    store = request.api.store
    [is_new] = await store.call(store.backend.driver.control.resume_schedules, [name])
    if is_new:
        await store.record_audit(request.caller, "schedules.resume", name)
    return await _reply(request, name)


def _scheduler(store: StoreGateway) -> Scheduler:
    return Scheduler(store.backend.driver, codec=store.backend.codec)


def _put(store: StoreGateway, spec: ScheduleSpec) -> bool:
    """Store a schedule, and tell whether there was none of its name."""
    was_there = spec.name in store.inspector.schedules()
    _scheduler(store).put([spec])
    return not was_there


async def _reply(request: ApiRequest, name: str, status: int = HTTPStatus.OK) -> Response:
    store = request.api.store
    found = await store.call(_get, store, name)
    return json_response(schedule_view(found, with_payload=request.may("payload:read")), status)


def _get(store: StoreGateway, name: str) -> Schedule:
    schedules = store.inspector.schedules()
    if name not in schedules:
        raise ScheduleNotFound(name)
    return schedules[name]
