"""Making jobs, looking at them, and steering one."""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from taskharbor.api import examples, shapes
from taskharbor.api.backend import JobSnapshot, StoreGateway
from taskharbor.api.bodies import (
    GivenId,
    Key,
    Moment,
    NewJobBody,
    QueueName,
    TypeName,
)
from taskharbor.api.describing import IDEMPOTENCY_KEY, KEY_PATTERN, WITH_BODY, describe
from taskharbor.api.pages import page_json
from taskharbor.api.problems import field_problem
from taskharbor.api.replying import job_response, json_response, reply_bytes
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.api.streaming import run_until_disconnected
from taskharbor.core.answers import JobFilter
from taskharbor.core.errors import IdempotencyConflict, ResultTimeout
from taskharbor.core.ids import JobId
from taskharbor.core.states import Status
from taskharbor.views import attempt_view, job_view
from taskharbor.why import diagnose

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
    **describe(
        {201: (shapes.JobShape, examples.JOB), 200: (shapes.JobShape, examples.JOB)},
        *WITH_BODY,
        body=examples.NEW_JOB,
        headers=(IDEMPOTENCY_KEY,),
    ),
)
@requires_scope("jobs:write")
async def create(request: ApiRequest, body: NewJobBody) -> Response:
    """Store a job; when this answers, it is committed.

    With an idempotency key, as a header or in the body, a repeat makes no second job: it is answered with
    200, the first one, and `Idempotency-Replayed: true`. The same key with another type or payload is 422.
    """
    store = request.api.store
    client = store.backend.client
    job = await request.compute(request.size, client.prepare, body.request(_key(request, body)))
    [enqueued] = await client.astore([job])
    if isinstance(enqueued, IdempotencyConflict):
        raise enqueued
    if enqueued.existed:
        seen = await store.get(enqueued.id, with_payload=request.shows_payload)
        return await job_response(request, seen, HTTPStatus.OK, {"Idempotency-Replayed": "true"})
    seen = await store.get_made(
        request.caller, enqueued.id, with_payload=request.shows_payload, type=body.type, queue=body.queue
    )
    location = f"{request.root}/v1/jobs/{enqueued.id}"
    return await job_response(request, seen, HTTPStatus.CREATED, {"Location": location})


@router.get(
    "",
    summary="List jobs",
    **describe({200: (shapes.JobPage, {"jobs": [examples.JOB], "next": None})}, 422),
)
@requires_scope("jobs:read")
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
        field_problem("query: q", "goes with no other filter: it names at most one job for each queue")
    jobs = await request.api.store.call(_named, request.api.store, q)
    return json_response({"jobs": [_listed(request, each) for each in jobs[:limit]], "next": None})


@router.get("/{job_id}", summary="Get a job", **describe(_JOB, 404, 422, 429))
@requires_scope("jobs:read")
async def get(
    request: ApiRequest,
    job_id: ThatJob,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, allow_inf_nan=False, description="Seconds to wait.")] = 0,
) -> Response:
    """Return a job as it is now; with *wait*, as soon as it has ended, or after so many seconds as it is then."""
    store = request.api.store
    if wait and not (await store.get(job_id)).job.status.is_final:
        await _until_final(request, job_id, timedelta(seconds=wait))
        await request.check_caller()  # the key may have been revoked meanwhile
    return await job_response(request, await store.get(job_id, with_payload=request.shows_payload))


@router.get(
    "/{job_id}/attempts",
    summary="List a job's attempts",
    **describe({200: (shapes.Attempts, {"attempts": [examples.ATTEMPT]})}, 404, 422),
)
@requires_scope("jobs:read")
async def attempts(request: ApiRequest, job_id: ThatJob) -> Response:
    """List what is recorded of a job, oldest first: every attempt but a plain success, and every requeue."""
    store = request.api.store
    await store.get(job_id)
    recorded = await store.call(store.inspector.attempts, [job_id])
    return json_response({"attempts": [attempt_view(each) for each in recorded]})


@router.get(
    "/{job_id}/why",
    summary="Say why a job stands where it does",
    **describe({200: (shapes.WhyShape, examples.WHY)}, 404, 422),
)
@requires_scope("jobs:read")
async def why_job(request: ApiRequest, job_id: ThatJob) -> Response:
    """Say what a job waits for: its time, its queue, a worker, the jobs before it, or its message."""
    answer = await request.api.store.call(diagnose, request.api.store.inspector, job_id)
    return json_response(answer.view())


async def reply_page(request: ApiRequest, wanted: JobFilter, cursor: str | None, limit: int) -> Response:
    """Answer with a page of jobs and the cursor of the next."""
    store = request.api.store
    after = None if cursor is None else JobId(UUID(bytes=urlsafe_b64decode(cursor + "==")))
    return reply_bytes(await store.page(_page_answer, store, wanted, limit=limit, after=after, root=request.root))


def _page_answer(store: StoreGateway, wanted: JobFilter, *, limit: int, after: JobId | None, root: str) -> bytes:
    """Read a page and write it as JSON, in one thread: the loop has others to serve meanwhile."""
    page = store.inspector.find(wanted, limit=limit, after=after)
    following = None if page.after is None else urlsafe_b64encode(page.after.bytes).decode().rstrip("=")
    return page_json(page.jobs, following=following, now=store.clock.now(), root=root)


def tag_of(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, _, value = text.partition("=")
    return key, value


async def _until_final(request: ApiRequest, job_id: JobId, longest: timedelta) -> None:
    """Return when the job has ended, its time is over, nobody waits any more, or the server stops."""
    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    leave = request.api.open.enter(stopped.cancel, request.caller.key_id)
    final = asyncio.ensure_future(request.api.store.backend.watcher.await_end(job_id, longest))
    gone = asyncio.ensure_future(run_until_disconnected(request.receive))
    try:
        ends: list[asyncio.Future[Any]] = [final, gone, stopped]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if final.done():
            with suppress(ResultTimeout):
                final.result()
    finally:
        leave()
        final.cancel()
        gone.cancel()


def _key(request: ApiRequest, body: NewJobBody) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not re.fullmatch(KEY_PATTERN, key):
        field_problem("header: Idempotency-Key", "must have 1 to 255 visible characters of ASCII")
    if body.idempotency_key not in {None, key}:
        field_problem("/idempotency_key", "is not that of the header: give one of them")
    return key


def _named(store: StoreGateway, q: str) -> list[JobSnapshot]:
    inspector = store.inspector
    ids = inspector.find_by_key(q)
    with suppress(ValueError):
        ids = [JobId(UUID(q)), *ids]
    return [JobSnapshot(job, None, store.clock.now()) for job in inspector.summaries(list(dict.fromkeys(ids))).values()]


def _listed(request: ApiRequest, seen: JobSnapshot) -> dict[str, Any]:
    return job_view(seen.job, now=seen.now, root=request.root)
