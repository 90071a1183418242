"""Endpoints that create jobs, one or many, and read them."""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import Response
from pydantic import ValidationError

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, IDEMPOTENCY_KEY, KEY_PATTERN, TRACE_CONTEXT, describe
from taskharbor.api.problems import HttpProblem, field_problem, invalid, json_pointers, problem_of
from taskharbor.api.render import job_response, json_bytes, json_response, page_json, reply_bytes
from taskharbor.api.requests import (
    TAG_PATTERN,
    BatchBody,
    GivenId,
    Key,
    NewJobBody,
    QueueName,
    ScheduleName,
    Timestamp,
    TypeName,
)
from taskharbor.api.routing import BATCH_FACTOR, ApiRequest, ApiRoute, requires_scope
from taskharbor.api.sse import run_until_disconnected
from taskharbor.api.store import StoreGateway
from taskharbor.client import Client
from taskharbor.core.errors import IdempotencyConflict, InvalidRequest, ResultTimeout, TaskHarborError
from taskharbor.core.ids import JobId
from taskharbor.core.model import NewJob
from taskharbor.core.request import JobRequest, validate
from taskharbor.core.results import Enqueued, JobFilter, Page
from taskharbor.core.states import Status
from taskharbor.core.trace_context import TRACEPARENT, context_entries, stored_context, with_context
from taskharbor.diagnosis import diagnose_all
from taskharbor.job_counts import MAX_COUNT, count_jobs
from taskharbor.task_requests import request_for

router: Final = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)
Outcome = Enqueued | dict[str, Any]
_Build = Callable[..., JobRequest]
MAX_PAGE: Final = 200
MAX_WAIT_SECONDS: Final = 60
MIN_PREFIX_CHARS: Final = 8
Fingerprint = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$")]
JobIdParam = Annotated[GivenId, Path(examples=[openapi.ID])]
Cursor = Annotated[
    str, Query(pattern="^[A-Za-z0-9_-]{22}$", description="Where to continue: `next` of the previous page.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Tag = Annotated[str, Query(pattern=TAG_PATTERN, description="`key=value` that the metadata must contain.")]
_JOB: Final = {200: (responses.JobShape, openapi.JOB)}


@router.post(
    "/batch",
    summary="Create many jobs",
    **describe(
        {
            200: (
                responses.BatchResult,
                {"stored": 1, "results": [{"status": 201, "id": openapi.ID, "existed": False, "problem": None}]},
            )
        },
        *BODY_PROBLEMS,
        body={"jobs": [openapi.NEW_JOB], "atomic": False},
        headers=TRACE_CONTEXT,
    ),
)
@requires_scope("jobs:write", body_factor=BATCH_FACTOR)
async def create_many(request: ApiRequest, body: BatchBody) -> Response:
    """Store up to 1,000 jobs in one statement, and return one result per job, in order.

    An invalid job gets a problem as its result, and the others are stored. With *atomic*, one invalid job rejects
    all of them with 422, and idempotency keys are not allowed, because a conflict would reject a single job.
    """
    # In a thread whatever the size: 1,000 small jobs take 30 ms.
    client, compute = request.api.store.backend.client, request.api.store.compute
    build = _builder(request)
    if body.atomic:
        jobs = await compute(lambda: client.prepare_many(_read_all(body.jobs, build)))
        _keep_context(request, jobs)
        outcomes = [_outcome(each) for each in await client.astore(jobs)]
    else:
        prepared = await compute(lambda: [_prepare(client, each, build) for each in body.jobs])
        _keep_context(request, [each for each in prepared if isinstance(each, NewJob)])
        outcomes = await _store_valid(client, prepared)
    new = [each for each in outcomes if isinstance(each, Enqueued) and not each.existed]
    if new:
        await request.api.store.record_audit(
            request.caller, "jobs.enqueue-many", f"{len(new)} jobs", first=str(new[0].id), last=str(new[-1].id)
        )
    return reply_bytes(await compute(_batch_json, len(new), outcomes))


def _builder(request: ApiRequest) -> _Build:
    """Return a function that makes the request of a job from its body, with the options of its task."""
    tasks, accept_unknown = request.api.store.backend.tasks, request.api.accepts_unknown

    def build(body: NewJobBody, key: str | None = None) -> JobRequest:
        return request_for(tasks, body.type, body.payload, body.options(key), accept_unknown=accept_unknown)

    return build


def _keep_context(request: ApiRequest, jobs: list[NewJob]) -> None:
    """Store the trace context of the request with *jobs*, or else that of their metadata. A malformed one is dropped.

    After the validation: it does not count as one of the metadata entries that a job may have.
    """
    context = request.trace_context
    entries = {} if context is None else context_entries(context)
    for job in jobs:
        if entries or (TRACEPARENT in job.metadata and stored_context(job.metadata) is None):
            job.use_metadata(with_context(job.metadata, entries))


def _read_all(jobs: list[Any], build: _Build) -> list[JobRequest]:
    """Return the requests of an atomic batch, or raise all their errors as one problem."""
    read = [_read(each, build) for each in jobs]
    invalid = [
        {"pointer": f"/jobs/{index}{each['pointer']}", "detail": each["detail"]}
        for index, refused in enumerate(read)
        if isinstance(refused, dict)
        for each in refused["errors"]
    ]
    if invalid:
        first = f"{invalid[0]['pointer']}: {invalid[0]['detail']}"
        detail = f"no job was stored; the first of {len(invalid)} errors is {first}"
        raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=invalid)
    requests = [each for each in read if isinstance(each, JobRequest)]
    for index, each in enumerate(requests):
        if each.idempotency_key is not None:
            field_problem(f"/jobs/{index}/idempotency_key", "not allowed in an atomic batch")
    return requests


def _read(given: Any, build: _Build) -> JobRequest | dict[str, Any]:
    """Return the request of a job, or a problem if it is invalid."""
    try:
        request = build(NewJobBody.model_validate(given))
        validate(request)
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        return invalid(json_pointers(found, NewJobBody), whole="job")
    except InvalidRequest as error:
        return problem_of(error)
    return request


def _prepare(client: Client, given: Any, build: _Build) -> NewJob | dict[str, Any]:
    """Return a job that is ready to be stored, or a problem if it is invalid."""
    request = _read(given, build)
    if not isinstance(request, JobRequest):
        return request
    try:
        return client.prepare(request)
    except InvalidRequest as error:
        return problem_of(error)


async def _store_valid(client: Client, prepared: list[NewJob | dict[str, Any]]) -> list[Outcome]:
    """Store the valid jobs, and return the outcome of each."""
    jobs = [each for each in prepared if isinstance(each, NewJob)]
    results = iter(await client.astore(jobs) if jobs else [])
    return [_outcome(next(results)) if isinstance(each, NewJob) else each for each in prepared]


def _outcome(result: object) -> Outcome:
    if isinstance(result, TaskHarborError):
        return problem_of(result)
    assert isinstance(result, Enqueued)  # noqa: S101  a result is one or the other
    return result


def _batch_json(stored: int, outcomes: list[Outcome]) -> bytes:
    return json_bytes({"stored": stored, "results": [_outcome_view(each) for each in outcomes]})


def _outcome_view(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Enqueued):
        status = HTTPStatus.OK if outcome.existed else HTTPStatus.CREATED
        return {"status": int(status), "id": str(outcome.id), "existed": outcome.existed, "problem": None}
    return {"status": outcome["status"], "id": None, "existed": False, "problem": outcome}


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    summary="Create a job",
    **describe(
        {201: (responses.JobShape, openapi.JOB), 200: (responses.JobShape, openapi.JOB)},
        *BODY_PROBLEMS,
        body=openapi.NEW_JOB,
        headers=(IDEMPOTENCY_KEY, *TRACE_CONTEXT),
    ),
)
@requires_scope("jobs:write")
async def create(request: ApiRequest, body: NewJobBody) -> Response:
    """Store a job. It is committed before the response is sent.

    With an idempotency key, as a header or in the body, a repeat does not create a second job: it returns
    200, the first job, and `Idempotency-Replayed: true`. The same key with another type or payload is 422.

    If the server was started with an app, a type that none of its tasks has is 422, and so is a payload that does not
    match the parameters of the task.
    """
    store = request.api.store
    client = store.backend.client
    build, key = _builder(request), _key(request, body)
    job = await request.compute(request.size, lambda: client.prepare(build(body, key)))
    _keep_context(request, [job])
    [enqueued] = await client.astore([job])
    if isinstance(enqueued, IdempotencyConflict):
        raise enqueued
    if enqueued.existed:
        snapshot = await store.get(enqueued.id, with_payload=request.shows_payload)
        return await job_response(request, snapshot, HTTPStatus.OK, {"Idempotency-Replayed": "true"})
    snapshot = await store.get_created(
        request.caller, enqueued.id, with_payload=request.shows_payload, type=job.type, queue=job.queue
    )
    location = f"{request.root}/v1/jobs/{enqueued.id}"
    return await job_response(request, snapshot, HTTPStatus.CREATED, {"Location": location})


def _job_filter(
    *,
    status: Annotated[list[Status] | None, Query(max_length=len(Status))] = None,
    queue: Annotated[QueueName | None, Query()] = None,
    type: Annotated[TypeName | None, Query()] = None,
    worker: Annotated[Key | None, Query(description="The worker that holds the job or ran it last.")] = None,
    schedule: Annotated[ScheduleName | None, Query(description="The schedule that created the job.")] = None,
    fingerprint: Fingerprint | None = None,
    since: Annotated[Timestamp | None, Query()] = None,
    until: Annotated[Timestamp | None, Query()] = None,
    tag: Tag | None = None,
) -> JobFilter:
    return JobFilter(
        queue=queue,
        type=type,
        statuses=frozenset(status) if status else None,
        since=since,
        until=until,
        tag=tag_of(tag),
        worker=worker,
        schedule=schedule,
        fingerprint=fingerprint,
    )


Wanted = Annotated[JobFilter, Depends(_job_filter)]


@router.get(
    "",
    summary="List jobs",
    **describe({200: (responses.JobPage, {"jobs": [openapi.JOB], "next": None, "looked_back_to": None})}, 422),
)
@requires_scope("jobs:read")
async def list_jobs(
    request: ApiRequest,
    wanted: Wanted,
    *,
    q: Annotated[
        Key | None,
        Query(
            description="A job's id, or at least 8 of its first digits, or an idempotency key. Not allowed with other "
            "filters."
        ),
    ] = None,
    explain: Annotated[bool, Query(description="Whether each job has a `why`.")] = False,
    cursor: Cursor | None = None,
    limit: Limit = 50,
) -> Response:
    """List jobs, newest first, without their payloads. All filters are exact.

    A request examines a limited number of jobs, so that a page may have fewer jobs than *limit*, even none, although
    there are more: `next` continues. With *since*, jobs whose ids are an hour older are not examined.
    """
    if q is None:
        return await reply_page(request, wanted, cursor, limit, explain=explain)
    if wanted != JobFilter() or cursor is not None:
        field_problem("query: q", "cannot be combined with other filters; it matches at most one job per queue")
    store = request.api.store
    return reply_bytes(await store.page(_named_bytes, store, q, limit=limit, root=request.root, explain=explain))


@router.get(
    "/count",
    summary="Count jobs",
    **describe({200: (responses.JobCountShape, {"count": 3, "is_exact": True, "looked_back_to": None})}, 422),
)
@requires_scope("jobs:read")
async def count(
    request: ApiRequest,
    wanted: Wanted,
    cap: Annotated[int, Query(ge=1, le=MAX_COUNT, description="Stop counting here.")] = MAX_COUNT,
) -> Response:
    """Count the jobs that match. *count* is at most *cap*, and 20,000 jobs are examined at most."""
    store = request.api.store
    counted = await store.page(count_jobs, store.inspector, wanted, cap=cap)
    return json_response(counted.view())


@router.get("/{job_id}", summary="Get a job", **describe(_JOB, 404, 422, 429))
@requires_scope("jobs:read")
async def get(
    request: ApiRequest,
    job_id: JobIdParam,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False, description="Seconds to wait.")] = 0,
) -> Response:
    """Return a job. With *wait*, return it when it has ended, or after that many seconds."""
    store = request.api.store
    if wait and not (await store.get(job_id)).job.status.is_final:
        await _until_final(request, job_id, timedelta(seconds=wait))
        await request.check_caller()  # the key may have been revoked while waiting
    return await job_response(request, await store.get(job_id, with_payload=request.shows_payload))


async def reply_page(
    request: ApiRequest, wanted: JobFilter, cursor: str | None, limit: int, *, explain: bool = False
) -> Response:
    """Return a response with a page of jobs and the cursor of the next page."""
    store = request.api.store
    after = None if cursor is None else JobId(UUID(bytes=urlsafe_b64decode(cursor + "==")))
    options: dict[str, Any] = {"limit": limit, "after": after, "root": request.root, "explain": explain}
    return reply_bytes(await store.page(_page_bytes, store, wanted, **options))


def _page_bytes(
    store: StoreGateway, wanted: JobFilter, *, limit: int, after: JobId | None, root: str, explain: bool
) -> bytes:
    """Read a page and encode it as JSON. Runs in a thread, so that it does not block the event loop."""
    page = store.inspector.find(wanted, limit=limit, after=after)
    return _encoded(store, page, root=root, explain=explain)


def _encoded(store: StoreGateway, page: Page, *, root: str, explain: bool) -> bytes:
    following = None if page.after is None else urlsafe_b64encode(page.after.bytes).decode().rstrip("=")
    whys = diagnose_all(store.inspector, page.jobs) if explain else None
    return page_json(page, following=following, now=store.clock.now(), root=root, whys=whys)


def _named_bytes(store: StoreGateway, q: str, *, limit: int, root: str, explain: bool) -> bytes:
    """Read the jobs that *q* names and encode them as JSON."""
    inspector = store.inspector
    jobs = [*inspector.summaries(inspector.find_by_key(q)).values()]
    digits = q.strip().lower().replace("-", "")
    if re.fullmatch(rf"[0-9a-f]{{{MIN_PREFIX_CHARS},32}}", digits):
        jobs = [*inspector.find(JobFilter(id_prefix=digits), limit=limit).jobs, *jobs]
    unique = {job.id: job for job in jobs}
    return _encoded(store, Page(tuple(unique.values())[:limit], None), root=root, explain=explain)


def tag_of(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, _, value = text.partition("=")
    return key, value


async def _until_final(request: ApiRequest, job_id: JobId, max_wait: timedelta) -> None:
    """Return when the job has ended, *max_wait* has passed, the client disconnects, or the server stops."""
    stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    leave = request.api.open.enter(stopped.cancel, request.caller.key_id)
    final = asyncio.ensure_future(request.api.store.backend.watcher.await_end(job_id, max_wait))
    disconnected = asyncio.ensure_future(run_until_disconnected(request.receive))
    try:
        ends: list[asyncio.Future[Any]] = [final, disconnected, stopped]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if final.done():
            with suppress(ResultTimeout):
                final.result()
    finally:
        leave()
        final.cancel()
        disconnected.cancel()


def _key(request: ApiRequest, body: NewJobBody) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not re.fullmatch(KEY_PATTERN, key):
        field_problem("header: Idempotency-Key", "must have 1 to 255 visible ASCII characters")
    if body.idempotency_key not in {None, key}:
        field_problem("/idempotency_key", "differs from the Idempotency-Key header; send only one of them")
    return key
