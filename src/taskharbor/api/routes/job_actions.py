"""Steering one job: cancel, requeue, reschedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import IF_MATCH, WITH_BODY, describe
from taskharbor.api.problems import field_problem
from taskharbor.api.render import check_if_match, job_response
from taskharbor.api.requests import RequeueBody, RescheduleBody, to_timedelta
from taskharbor.api.routes.jobs import ThatJob
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
async def cancel(request: ApiRequest, job_id: ThatJob) -> Response:
    """Call a job off: 200, a waiting one is canceled; 202, a running one is asked to stop."""
    await _check(request, job_id)
    seen = await _moved(request, job_id, "jobs.cancel", partial(request.api.store.backend.driver.cancel, [job_id]))
    is_asked = seen.job.status is Status.PROCESSING
    return await job_response(request, seen, HTTPStatus.ACCEPTED if is_asked else HTTPStatus.OK)


@router.post(
    "/{job_id}/requeue",
    status_code=HTTPStatus.ACCEPTED,
    summary="Give a job a new life",
    **describe(
        {202: (responses.JobShape, openapi.JOB)},
        *(*WITH_BODY, 404, 409, 412),
        body={"budget": 5, "reason": "the address was mistyped", "payload": {"to": "ada@example.com"}},
        headers=(IF_MATCH,),
    ),
)
@requires_scope("jobs:control")
async def requeue(request: ApiRequest, job_id: ThatJob, body: RequeueBody | None = None) -> Response:
    """Give a dead or canceled job a fresh set of attempts; 409 for any other.

    With a payload, which needs the scope jobs:write too, it has that from now on. Its idempotency key still
    stands for the first one: a repeat of the call that made the job finds it.
    """
    given = body or RequeueBody()
    _check_one_time(given)
    await _check(request, job_id)
    payload = await _payload(request, job_id, given) if "payload" in given.model_fields_set else None
    requeued = partial(
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
        request, await _moved(request, job_id, "jobs.requeue", requeued, **detail), HTTPStatus.ACCEPTED
    )


@router.post(
    "/{job_id}/reschedule",
    summary="Reschedule a job",
    **describe(_JOB, *WITH_BODY, 404, 409, 412, body={"delay": 300, "priority": -5}, headers=(IF_MATCH,)),
)
@requires_scope("jobs:control")
async def reschedule(request: ApiRequest, job_id: ThatJob, body: RescheduleBody) -> Response:
    """Let a waiting job be due at another time, or be more or less urgent; 409 for any other."""
    _check_one_time(body)
    await _check(request, job_id)
    rescheduled = partial(
        request.api.store.backend.driver.reschedule,
        [job_id],
        scheduled_for=body.scheduled_for,
        delay=to_timedelta(body.delay),
        priority=body.priority,
    )
    return await job_response(request, await _moved(request, job_id, "jobs.reschedule", rescheduled))


async def _check(request: ApiRequest, job_id: JobId) -> None:
    """Hold If-Match against the job. The move itself is guarded by the job's state, in its own statement."""
    if "if-match" in request.headers:
        check_if_match(request, (await request.api.store.get(job_id)).job)


async def _payload(request: ApiRequest, job_id: JobId, body: RequeueBody) -> bytes:
    """Return the new payload as the store keeps it. Who may give one could as well make a job."""
    check_scope(request, "jobs:write")
    store = request.api.store
    job = (await store.get(job_id)).job
    return await store.call(store.backend.client.encode, body.payload, job_id, job_type=job.type)


async def _moved(
    request: ApiRequest,
    job_id: JobId,
    action: str,
    move: Callable[[], list[Transitioned | IllegalTransition | JobNotFound]],
    **detail: str,
) -> JobSnapshot:
    """Move one job, write down who asked, and return the job as it is then."""
    store = request.api.store
    [answer] = await store.call(move)
    if not isinstance(answer, Transitioned):
        raise answer
    await store.record_audit(request.caller, action, str(job_id), **detail)
    return await store.get(job_id, with_payload=request.shows_payload)


def _check_one_time(body: RequeueBody | RescheduleBody) -> None:
    if body.scheduled_for is not None and body.delay is not None:
        field_problem("/delay", "give scheduled_for or delay, not both")
