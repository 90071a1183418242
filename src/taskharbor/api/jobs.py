"""Making jobs, looking at them, and steering one."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final, ParamSpec
from uuid import UUID

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from taskharbor.api import examples, shapes
from taskharbor.api.backend import Seen, Store
from taskharbor.api.bodies import (
    GivenId,
    Key,
    Moment,
    NewJobBody,
    QueueName,
    RequeueBody,
    RescheduleBody,
    TypeName,
    span,
)
from taskharbor.api.describing import IDEMPOTENCY_KEY, IF_MATCH, WITH_BODY, described
from taskharbor.api.problems import refuse_field
from taskharbor.api.replying import check_match, reply, reply_job
from taskharbor.api.routing import ApiRequest, ApiRoute, needs
from taskharbor.core.answers import JobFilter, Moved
from taskharbor.core.errors import IllegalTransition, JobNotFound, ResultTimeout
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.request import MAX_KEY
from taskharbor.core.retry import DEFAULT_MAX_ATTEMPTS
from taskharbor.core.states import Status
from taskharbor.core.text import is_storable
from taskharbor.views import attempt_view, job_view
from taskharbor.why import why

P = ParamSpec("P")

router: Final = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)

MAX_PAGE: Final = 200
MAX_WAIT: Final = 60
ThatJob = Annotated[GivenId, Path(examples=[examples.ID])]
Cursor = Annotated[str, Query(pattern="^[A-Za-z0-9_-]{22}$", description="Where to go on: `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Tag = Annotated[
    str, Query(pattern=r"^[^=\x00]{1,64}=[^\x00]{0,1024}$", description="`key=value` that the metadata must have.")
]
_JOB: Final = {200: (shapes.JobShape, examples.JOB)}


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    summary="Make a job",
    **described(
        {201: (shapes.JobShape, examples.JOB), 200: (shapes.JobShape, examples.JOB)},
        *WITH_BODY,
        body=examples.NEW_JOB,
        headers=(IDEMPOTENCY_KEY,),
    ),
)
@needs("jobs:write")
async def create(request: ApiRequest, body: NewJobBody) -> Response:
    """Store a job; when this answers, it is committed.

    With an idempotency key, as a header or in the body, a repeat makes no second job: it is answered with
    200, the first one, and `Idempotency-Replayed: true`. The same key with another type or payload is 422.
    """
    store = request.api.store
    enqueued = await store.backend.client.aenqueue(body.request(_key(request, body)))
    if enqueued.existed:
        seen = await _found(store, enqueued.id)
        return reply_job(request, seen, HTTPStatus.OK, {"Idempotency-Replayed": "true"})
    seen, _ = await asyncio.gather(
        _found(store, enqueued.id),
        store.record(request.caller, "jobs.enqueue", str(enqueued.id), type=body.type, queue=body.queue),
    )
    location = f"{request.root}/v1/jobs/{enqueued.id}"
    return reply_job(request, seen, HTTPStatus.CREATED, {"Location": location})


@router.get(
    "",
    summary="List jobs",
    **described({200: (shapes.JobPage, {"jobs": [examples.JOB], "next": None})}, 422),
)
@needs("jobs:read")
async def list_jobs(
    request: ApiRequest,
    *,
    status: Annotated[list[Status] | None, Query(max_length=len(Status))] = None,
    queue: Annotated[QueueName | None, Query()] = None,
    type: Annotated[TypeName | None, Query()] = None,
    since: Annotated[Moment | None, Query()] = None,
    until: Annotated[Moment | None, Query()] = None,
    tag: Tag | None = None,
    q: Annotated[Key | None, Query(description="A job's id, or an idempotency key; without other filters.")] = None,
    cursor: Cursor | None = None,
    limit: Limit = 50,
) -> Response:
    """List jobs, newest first, without their payloads. All filters are exact."""
    wanted = JobFilter(
        queue=queue,
        type=type,
        statuses=frozenset(status) if status else None,
        since=since,
        until=until,
        tag=tag_of(tag),
    )
    if q is None:
        return await reply_page(request, wanted, cursor, limit)
    if wanted != JobFilter() or cursor is not None:
        refuse_field("query: q", "goes with no other filter: it names at most one job for each queue")
    jobs = await request.api.store.call(_named, request.api.store, q)
    return reply({"jobs": [_listed(request, each) for each in jobs[:limit]], "next": None})


@router.get("/{job_id}", summary="Get a job", **described(_JOB, 404, 422, 429))
@needs("jobs:read")
async def get(
    request: ApiRequest,
    job_id: ThatJob,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, allow_inf_nan=False, description="Seconds to wait.")] = 0,
) -> Response:
    """Return a job as it is now; with *wait*, as soon as it has ended, or after so many seconds as it is then."""
    store = request.api.store
    seen = await _found(store, job_id)
    if wait and not seen.job.status.is_final:
        with request.api.open.one(), suppress(ResultTimeout):
            await store.backend.watcher.await_final(job_id, timedelta(seconds=wait))
        seen = await _found(store, job_id)
    return reply_job(request, seen)


@router.get(
    "/{job_id}/attempts",
    summary="List a job's attempts",
    **described({200: (shapes.Attempts, {"attempts": [examples.ATTEMPT]})}, 404, 422),
)
@needs("jobs:read")
async def attempts(request: ApiRequest, job_id: ThatJob) -> Response:
    """List what is recorded of a job, oldest first: every attempt but a plain success, and every requeue."""
    store = request.api.store
    await _found(store, job_id)
    recorded = await store.call(store.backend.driver.inspector.attempts, [job_id])
    return reply({"attempts": [attempt_view(each) for each in recorded]})


@router.get(
    "/{job_id}/why",
    summary="Say why a job stands where it does",
    **described({200: (shapes.WhyShape, examples.WHY)}, 404, 422),
)
@needs("jobs:read")
async def why_job(request: ApiRequest, job_id: ThatJob) -> Response:
    """Say what a job waits for: its time, its queue, a worker, the jobs before it, or its message."""
    answer = await request.api.store.call(why, request.api.store.backend.driver.inspector, job_id)
    return reply(answer.view())


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    **described(_JOB | {202: (shapes.JobShape, examples.JOB)}, 404, 409, 412, 422, headers=(IF_MATCH,)),
)
@needs("jobs:control")
async def cancel(request: ApiRequest, job_id: ThatJob) -> Response:
    """Call a job off: 200, a waiting one is canceled; 202, a running one is asked to stop."""
    await _check(request, job_id)
    seen = await _moved(request, job_id, "jobs.cancel", request.api.store.backend.driver.cancel, [job_id])
    is_asked = seen.job.status is Status.PROCESSING
    return reply_job(request, seen, HTTPStatus.ACCEPTED if is_asked else HTTPStatus.OK)


@router.post(
    "/{job_id}/requeue",
    status_code=HTTPStatus.ACCEPTED,
    summary="Give a job a new life",
    **described(
        {202: (shapes.JobShape, examples.JOB)},
        *(*WITH_BODY, 404, 409, 412),
        body={"budget": 5, "reason": "the mail server is back"},
        headers=(IF_MATCH,),
    ),
)
@needs("jobs:control")
async def requeue(request: ApiRequest, job_id: ThatJob, body: RequeueBody | None = None) -> Response:
    """Give a dead or canceled job a fresh set of attempts; 409 for any other."""
    given = body or RequeueBody()
    _check_one_time(given)
    await _check(request, job_id)
    seen = await _moved(
        request,
        job_id,
        "jobs.requeue",
        request.api.store.backend.driver.requeue,
        [job_id],
        token=new_token(),
        budget=given.budget or DEFAULT_MAX_ATTEMPTS,
        by=request.caller.name,
        why=given.reason,
        scheduled_for=given.scheduled_for,
        delay=span(given.delay),
    )
    return reply_job(request, seen, HTTPStatus.ACCEPTED)


@router.post(
    "/{job_id}/reschedule",
    summary="Reschedule a job",
    **described(_JOB, *WITH_BODY, 404, 409, 412, body={"delay": 300, "priority": -5}, headers=(IF_MATCH,)),
)
@needs("jobs:control")
async def reschedule(request: ApiRequest, job_id: ThatJob, body: RescheduleBody) -> Response:
    """Let a waiting job be due at another time, or be more or less urgent; 409 for any other."""
    _check_one_time(body)
    await _check(request, job_id)
    seen = await _moved(
        request,
        job_id,
        "jobs.reschedule",
        request.api.store.backend.driver.reschedule,
        [job_id],
        scheduled_for=body.scheduled_for,
        delay=span(body.delay),
        priority=body.priority,
    )
    return reply_job(request, seen)


async def reply_page(request: ApiRequest, wanted: JobFilter, cursor: str | None, limit: int) -> Response:
    """Answer with a page of jobs and the cursor of the next."""
    store = request.api.store
    after = None if cursor is None else JobId(UUID(bytes=urlsafe_b64decode(cursor + "==")))
    page, now = await store.read(store.backend.driver.inspector.find, wanted, limit=limit, after=after)
    following = None if page.after is None else urlsafe_b64encode(page.after.bytes).decode().rstrip("=")
    jobs = [job_view(each, now=now, root=request.root) for each in page.jobs]
    return reply({"jobs": jobs, "next": following})


def tag_of(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, _, value = text.partition("=")
    return key, value


async def _found(store: Store, job_id: JobId) -> Seen:
    seen = await store.job(job_id)
    if seen is None:
        raise JobNotFound(job_id)
    return seen


async def _check(request: ApiRequest, job_id: JobId) -> None:
    """Hold If-Match against the job. The move itself is guarded by the job's state, in its own statement."""
    if "if-match" in request.headers:
        check_match(request, (await _found(request.api.store, job_id)).job)


async def _moved(
    request: ApiRequest,
    job_id: JobId,
    action: str,
    verb: Callable[P, list[Moved | IllegalTransition | JobNotFound]],
    *args: P.args,
    **options: P.kwargs,
) -> Seen:
    """Run a verb on one job, write down who asked, and return the job as it is then."""
    store = request.api.store
    [answer] = await store.call(verb, *args, **options)
    if not isinstance(answer, Moved):
        raise answer
    await store.record(request.caller, action, str(job_id))
    return await _found(store, job_id)


def _check_one_time(body: RequeueBody | RescheduleBody) -> None:
    if body.scheduled_for is not None and body.delay is not None:
        refuse_field("/delay", "give scheduled_for or delay, not both")


def _key(request: ApiRequest, body: NewJobBody) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= MAX_KEY or not is_storable(key):
        refuse_field("header: Idempotency-Key", f"must have 1 to {MAX_KEY} characters")
    if body.idempotency_key not in {None, key}:
        refuse_field("/idempotency_key", "is not that of the header: give one of them")
    return key


def _named(store: Store, q: str) -> list[Seen]:
    inspector = store.backend.driver.inspector
    ids = inspector.by_key(q)
    with suppress(ValueError):
        ids = [JobId(UUID(q)), *ids]
    return [Seen(job, None, store.clock.now()) for job in inspector.get(list(dict.fromkeys(ids))).values()]


def _listed(request: ApiRequest, seen: Seen) -> dict[str, Any]:
    return job_view(seen.job, now=seen.now, root=request.root)
