"""Endpoints for schedules: list, get, define, remove, run, pause, resume; their fire times and runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Header, Path, Query
from fastapi.responses import Response

from taskharbor.api import actions, admin_responses, openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, KEY_PATTERN, describe
from taskharbor.api.render import job_response, json_response
from taskharbor.api.requests import ScheduleBody, ScheduleName
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.api.store import StoreGateway
from taskharbor.core.errors import ScheduleNotFound
from taskharbor.core.model import Schedule
from taskharbor.core.schedule_runs import KEPT_RUNS
from taskharbor.diagnosis import declared_schedules
from taskharbor.schedule_runs import MAX_FIRE_TIMES, read_fire_times, read_runs
from taskharbor.schedules import ScheduleSpec
from taskharbor.task_requests import request_for
from taskharbor.views import schedule_view

router: Final = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=ApiRoute)

# A schedule's name may contain slashes, as types may.
ScheduleParam = Annotated[ScheduleName, Path(examples=["nightly"])]
_FIRES: Final = {
    "name": "nightly",
    "cron": "0 2 * * *",
    "timezone": "Europe/Paris",
    "fires": ["2030-01-02T01:00:00Z"],
    "local": ["2030-01-02T02:00:00+01:00"],
}
_RUN: Final = {
    "at": "2030-01-01T01:00:00.1Z",
    "fire_time": "2030-01-01T01:00:00Z",
    "job_id": openapi.ID,
    "skipped": None,
    "status": "SUCCEEDED",
    "attempts": 1,
    "ended_at": "2030-01-01T01:00:02.6Z",
    "run_seconds": 2.4,
    "error": None,
}
_SCHEDULE: Final = {200: (responses.ScheduleShape, openapi.SCHEDULE)}


@router.get(
    "",
    summary="List schedules",
    **describe({200: (responses.Schedules, {"schedules": [openapi.SCHEDULE]})}),
)
@requires_scope("jobs:read")
async def list_schedules(request: ApiRequest) -> Response:
    """List all schedules, by name."""
    found, declared = await request.api.store.call(_read, request.api.store)
    return json_response({"schedules": [schedule_view(each, declared=declared) for each in found.values()]})


@router.get(
    "/{name:path}/next",
    summary="List the next fire times of a schedule",
    **describe({200: (admin_responses.FireTimes, _FIRES)}, 404, 422),
)
@requires_scope("jobs:read")
async def fire_times(
    request: ApiRequest, name: ScheduleParam, count: Annotated[int, Query(ge=1, le=MAX_FIRE_TIMES)] = 10
) -> Response:
    """List the next fire times of a schedule, in UTC and in its time zone, also if it is paused."""
    (found, _), now = await request.api.store.read(_read, request.api.store)
    if name not in found and f"{name}/next" in found:
        return await _reply(request, f"{name}/next")
    schedule = _known(found, name)
    return json_response(read_fire_times(schedule, now=now, count=count))


@router.get(
    "/{name:path}/runs",
    summary="List the last runs of a schedule",
    **describe({200: (admin_responses.Runs, {"runs": [_RUN]})}, 404, 422),
)
@requires_scope("jobs:read")
async def runs(
    request: ApiRequest, name: ScheduleParam, limit: Annotated[int, Query(ge=1, le=KEPT_RUNS)] = 30
) -> Response:
    """List the last runs of a schedule, newest first: each fire time with what became of its job, or why it has none.

    A run without *fire_time* was asked for. *status* is null if the job was removed.
    """
    store = request.api.store
    found, _ = await store.call(_read, store)
    if name not in found and f"{name}/runs" in found:
        return await _reply(request, f"{name}/runs")
    _known(found, name)
    return json_response({"runs": (await store.call(read_runs, store.inspector, [name], limit=limit))[name]})


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
    """Store a schedule: 201 if it is new. If cron and timezone are unchanged, so is its next fire time.

    It fires until it is paused or removed. If code declares a schedule of this name, its definition is stored again
    when a worker starts.
    """
    store = request.api.store
    job = await request.compute(
        request.size,
        request_for,
        store.backend.tasks,
        body.type,
        body.payload,
        body.options(),
        accept_unknown=request.api.accepts_unknown,
    )
    spec = ScheduleSpec(
        name=name,
        cron=body.cron,
        timezone=body.timezone,
        missed=body.missed,
        overlap=body.overlap,
        jitter=timedelta(seconds=body.jitter),
        window=timedelta(seconds=body.window),
        type=job.type,
        payload=job.payload,
        queue=job.queue,
        timeout=job.timeout,
        max_attempts=job.max_attempts,
        priority=job.priority,
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
    """Remove a schedule; the jobs it created are kept. Code that declares it stores it again when a worker starts."""
    await actions.delete_schedule(request, name)
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
    enqueued = await actions.run_schedule(request, name, idempotency_key=idempotency_key)
    snapshot = await request.api.store.get(enqueued.id, with_payload=request.shows_payload)
    headers = {"Location": f"{request.root}/v1/jobs/{enqueued.id}"}
    return await job_response(request, snapshot, HTTPStatus.OK if enqueued.existed else HTTPStatus.CREATED, headers)


@router.post("/{name:path}/pause", summary="Pause a schedule", **describe(_SCHEDULE, 404, 422))
@requires_scope("schedules:write")
async def pause(request: ApiRequest, name: ScheduleParam) -> Response:
    """Pause a schedule. Pausing a paused schedule has no effect."""
    await actions.pause_schedule(request, name)
    return await _reply(request, name)


@router.post("/{name:path}/resume", summary="Resume a schedule", **describe(_SCHEDULE, 404, 422))
@requires_scope("schedules:write")
async def resume(request: ApiRequest, name: ScheduleParam) -> Response:
    """Resume a paused schedule."""
    await actions.resume_schedule(request, name)
    return await _reply(request, name)


def _put(store: StoreGateway, spec: ScheduleSpec) -> bool:
    """Store a schedule, and return whether it is new."""
    existed = spec.name in store.inspector.schedules()
    actions.scheduler(store).put([spec])
    return not existed


async def _reply(request: ApiRequest, name: str, status: int = HTTPStatus.OK) -> Response:
    store = request.api.store
    found, declared = await store.call(_read, store)
    schedule = _known(found, name)
    return json_response(schedule_view(schedule, declared=declared, with_payload=request.may("payload:read")), status)


def _known(found: Mapping[str, Schedule], name: str) -> Schedule:
    if name not in found:
        raise ScheduleNotFound(name)
    return found[name]


def _read(store: StoreGateway) -> tuple[Mapping[str, Schedule], frozenset[str]]:
    """Return all schedules, and the names of those that live workers declare."""
    return store.inspector.schedules(), declared_schedules(store.inspector)
