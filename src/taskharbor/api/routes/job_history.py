"""Endpoints for what happened to a job: its attempts, timeline, captured log lines, and why it waits."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import describe
from taskharbor.api.render import json_bytes, json_response, reply_bytes
from taskharbor.api.routes.jobs import JobIdParam
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.core.log_lines import AttemptLines
from taskharbor.diagnosis import diagnose
from taskharbor.timeline import read_timeline
from taskharbor.views import attempt_view, log_view

router: Final = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)


@router.get(
    "/{job_id}/attempts",
    summary="List a job's attempts",
    **describe({200: (responses.Attempts, {"attempts": [openapi.ATTEMPT]})}, 404, 422),
)
@requires_scope("jobs:read")
async def attempts(request: ApiRequest, job_id: JobIdParam) -> Response:
    """List the recorded attempts of a job, oldest first: all but successful ones, and every requeue."""
    store = request.api.store
    await store.get(job_id)
    recorded = await store.call(store.inspector.attempts, [job_id])
    return json_response({"attempts": [attempt_view(each) for each in recorded]})


@router.get(
    "/{job_id}/timeline",
    summary="Get a job's timeline",
    **describe({200: (responses.Timeline, {"job_id": openapi.ID, "entries": openapi.TIMELINE})}, 404, 422),
)
@requires_scope("jobs:read")
async def timeline(request: ApiRequest, job_id: JobIdParam) -> Response:
    """Return what happened to a job, and who asked for it, oldest first.

    The entries are its creation, attempts with waits and runs, lost leases, calls of workers that were refused,
    deaths, requeues, cancels and other changes.
    """
    entries = await request.api.store.call(read_timeline, request.api.store.inspector, job_id)
    return json_response({"job_id": str(job_id), "entries": [entry.view() for entry in entries]})


@router.get(
    "/{job_id}/logs",
    summary="List the captured log lines of a job",
    **describe({200: (responses.Logs, {"logs": [openapi.LOG]})}, 404, 422),
)
@requires_scope("payload:read")
async def logs(request: ApiRequest, job_id: JobIdParam) -> Response:
    """List the captured log lines of a job's newest attempts, oldest first.

    There are none unless the task or its worker captures them. It needs the scope of payloads: handlers write what they
    work on to their log.
    """
    store = request.api.store
    await store.get(job_id)
    saved = await store.call(store.backend.driver.attempt_logs.read, [job_id])
    return reply_bytes(await store.compute(_logs_json, saved))


def _logs_json(saved: list[AttemptLines]) -> bytes:
    return json_bytes({"logs": [log_view(each) for each in saved]})


@router.get(
    "/{job_id}/why",
    summary="Explain a job's state",
    **describe({200: (responses.WhyShape, openapi.WHY)}, 404, 422),
)
@requires_scope("jobs:read")
async def why_job(request: ApiRequest, job_id: JobIdParam) -> Response:
    """Explain what a job is waiting for: its due time, its queue, a worker, the jobs ahead of it, or its message."""
    diagnosis = await request.api.store.call(diagnose, request.api.store.inspector, job_id)
    return json_response(diagnosis.view())
