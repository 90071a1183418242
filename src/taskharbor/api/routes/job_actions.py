"""Endpoints that change one job: cancel, requeue, reschedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, IF_MATCH, describe
from taskharbor.api.problems import field_problem
from taskharbor.api.render import check_if_match, job_response
from taskharbor.api.requests import RequeueBody, RescheduleBody, to_timedelta
from taskharbor.api.routes.jobs import JobIdParam
from taskharbor.api.routing import ApiRequest, ApiRoute, check_scope, requires_scope
from taskharbor.api.store import JobSnapshot
from taskharbor.core.errors import IllegalTransition, JobNotFound
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.results import Transitioned
from taskharbor.core.retry import DEFAULT_MAX_ATTEMPTS
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
    await _check(request, job_id)
    snapshot = await _transition(
        request, job_id, "jobs.cancel", partial(request.api.store.backend.driver.cancel, [job_id])
    )
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
    given = body or RequeueBody()
    _check_one_time(given)
    await _check(request, job_id)
    payload = await _payload(request, job_id, given) if "payload" in given.model_fields_set else None
    requeue_job = partial(
        request.api.store.backend.driver.requeue,
        [job_id],
        token=new_token(),
        budget=given.budget or DEFAULT_MAX_ATTEMPTS,
        by=request.caller.name,
        reason=given.reason,
        scheduled_for=given.scheduled_for,
        delay=to_timedelta(given.delay),
        payload=payload,
    )
    detail = {} if payload is None else {"payload": "replaced"}
    return await job_response(
        request, await _transition(request, job_id, "jobs.requeue", requeue_job, **detail), HTTPStatus.ACCEPTED
    )


@router.post(
    "/{job_id}/reschedule",
    summary="Reschedule a job",
    **describe(_JOB, *BODY_PROBLEMS, 404, 409, 412, body={"delay": 300, "priority": -5}, headers=(IF_MATCH,)),
)
@requires_scope("jobs:control")
async def reschedule(request: ApiRequest, job_id: JobIdParam, body: RescheduleBody) -> Response:
    """Change the due time or the priority of a waiting job; 409 for any other job."""
    _check_one_time(body)
    await _check(request, job_id)
    reschedule_job = partial(
        request.api.store.backend.driver.reschedule,
        [job_id],
        scheduled_for=body.scheduled_for,
        delay=to_timedelta(body.delay),
        priority=body.priority,
    )
    return await job_response(request, await _transition(request, job_id, "jobs.reschedule", reschedule_job))


async def _check(request: ApiRequest, job_id: JobId) -> None:
    """Check If-Match, if given. The transition itself checks the job's state in its own statement."""
    if "if-match" in request.headers:
        check_if_match(request, (await request.api.store.get(job_id)).job)


async def _payload(request: ApiRequest, job_id: JobId, body: RequeueBody) -> bytes:
    """Return the encoded new payload. It requires jobs:write because it is equivalent to creating a job."""
    check_scope(request, "jobs:write")
    store = request.api.store
    job = (await store.get(job_id)).job
    return await store.call(store.backend.client.encode, body.payload, job_id, job_type=job.type)


async def _transition(
    request: ApiRequest,
    job_id: JobId,
    action: str,
    change: Callable[[], list[Transitioned | IllegalTransition | JobNotFound]],
    **detail: str,
) -> JobSnapshot:
    """Change one job, write an audit entry, and return the job as it is afterwards."""
    store = request.api.store
    [result] = await store.call(change)
    if not isinstance(result, Transitioned):
        raise result
    await store.record_audit(request.caller, action, str(job_id), **detail)
    return await store.get(job_id, with_payload=request.shows_payload)


def _check_one_time(body: RequeueBody | RescheduleBody) -> None:
    if body.scheduled_for is not None and body.delay is not None:
        field_problem("/delay", "give scheduled_for or delay, not both")
