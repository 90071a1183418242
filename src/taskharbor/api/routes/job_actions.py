"""Endpoints that change one job: cancel, requeue, reschedule."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import actions, openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, IF_MATCH, describe
from taskharbor.api.render import job_response
from taskharbor.api.requests import RequeueBody, RescheduleBody
from taskharbor.api.routes.jobs import JobIdParam
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.core.states import Status

router: Final = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)

_JOB: Final = {200: (responses.JobShape, openapi.JOB)}


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    **describe(_JOB | {202: (responses.JobShape, openapi.JOB)}, 404, 409, 412, 422, headers=(IF_MATCH,)),
)
@requires_scope("jobs:control")
async def cancel(request: ApiRequest, job_id: JobIdParam) -> Response:
    """Cancel a job: 200 if it was waiting and is canceled; 202 if it is running and was asked to stop."""
    snapshot = await actions.cancel_job(request, job_id, if_match=request.headers.get("if-match"))
    is_running = snapshot.job.status is Status.PROCESSING
    return await job_response(request, snapshot, HTTPStatus.ACCEPTED if is_running else HTTPStatus.OK)


@router.post(
    "/{job_id}/requeue",
    status_code=HTTPStatus.ACCEPTED,
    summary="Requeue a job",
    **describe(
        {202: (responses.JobShape, openapi.JOB)},
        *(*BODY_PROBLEMS, 404, 409, 412),
        body={"budget": 5, "reason": "the address was mistyped", "payload": {"to": "ada@example.com"}},
        headers=(IF_MATCH,),
    ),
)
@requires_scope("jobs:control")
async def requeue(request: ApiRequest, job_id: JobIdParam, body: RequeueBody | None = None) -> Response:
    """Requeue a dead or canceled job with new attempts; 409 for any other job.

    A payload replaces the job's payload and also requires the scope jobs:write. The idempotency key still
    belongs to the original payload: a repeat of the request that created the job returns this job.
    """
    if_match = request.headers.get("if-match")
    snapshot = await actions.requeue_job(request, job_id, body or RequeueBody(), if_match=if_match)
    return await job_response(request, snapshot, HTTPStatus.ACCEPTED)


@router.post(
    "/{job_id}/reschedule",
    summary="Reschedule a job",
    **describe(_JOB, *BODY_PROBLEMS, 404, 409, 412, body={"delay": 300, "priority": -5}, headers=(IF_MATCH,)),
)
@requires_scope("jobs:control")
async def reschedule(request: ApiRequest, job_id: JobIdParam, body: RescheduleBody) -> Response:
    """Change the due time or the priority of a waiting job; 409 for any other job."""
    snapshot = await actions.reschedule_job(request, job_id, body, if_match=request.headers.get("if-match"))
    return await job_response(request, snapshot)
