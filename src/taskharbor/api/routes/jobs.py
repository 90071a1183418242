"""Endpoints that create jobs, one or many, and read them."""

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
from pydantic import ValidationError

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, IDEMPOTENCY_KEY, KEY_PATTERN, describe
from taskharbor.api.problems import HttpProblem, field_problem, json_pointers, problem, problem_of
from taskharbor.api.render import job_response, json_bytes, json_response, page_json, reply_bytes
from taskharbor.api.requests import BatchBody, GivenId, Key, NewJobBody, QueueName, Timestamp, TypeName
from taskharbor.api.routing import BATCH_FACTOR, ApiRequest, ApiRoute, requires_scope
from taskharbor.api.sse import run_until_disconnected
from taskharbor.api.store import JobSnapshot, StoreGateway
from taskharbor.client import Client
from taskharbor.core.errors import IdempotencyConflict, InvalidRequest, ResultTimeout, TaskHarborError
from taskharbor.core.ids import JobId
from taskharbor.core.model import NewJob
from taskharbor.core.request import JobRequest, validate
from taskharbor.core.results import Enqueued, JobFilter
from taskharbor.core.states import Status
from taskharbor.diagnosis import diagnose
from taskharbor.views import attempt_view, job_view

router: Final = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)
Outcome = Enqueued | dict[str, Any]
MAX_PAGE: Final = 200
MAX_WAIT_SECONDS: Final = 60
JobIdParam = Annotated[GivenId, Path(examples=[openapi.ID])]
Cursor = Annotated[
    str, Query(pattern="^[A-Za-z0-9_-]{22}$", description="Where to continue: `next` of the previous page.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Tag = Annotated[
    str, Query(pattern=r"^[^=\x00]{1,64}=[^\x00]{0,1024}$", description="`key=value` that the metadata must contain.")
]
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
    if body.atomic:
        jobs = await compute(lambda: client.prepare_many(_read_all(body.jobs)))
        outcomes = [_outcome(each) for each in await client.astore(jobs)]
    else:
        prepared = await compute(lambda: [_prepare(client, each) for each in body.jobs])
        outcomes = await _store_valid(client, prepared)
    new = [each for each in outcomes if isinstance(each, Enqueued) and not each.existed]
    if new:
        await request.api.store.record_audit(
            request.caller, "jobs.enqueue-many", f"{len(new)} jobs", first=str(new[0].id), last=str(new[-1].id)
        )
    return reply_bytes(await compute(_batch_json, len(new), outcomes))


def _read_all(jobs: list[Any]) -> list[JobRequest]:
    """Return the requests of an atomic batch, or raise all their errors as one problem."""
    read = [_read(each) for each in jobs]
    invalid = [
        {"pointer": f"/jobs/{index}{each['pointer']}", "detail": each["detail"]}
        for index, refused in enumerate(read)
        if isinstance(refused, dict)
        for each in refused["errors"]
    ]
    if invalid:
        detail = f"{len(invalid)} errors; no job was stored"
        raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=invalid)
    requests = [each for each in read if isinstance(each, JobRequest)]
    for index, each in enumerate(requests):
        if each.idempotency_key is not None:
            field_problem(f"/jobs/{index}/idempotency_key", "not allowed in an atomic batch")
    return requests


def _read(given: Any) -> JobRequest | dict[str, Any]:
    """Return the request of a job, or a problem if it is invalid."""
    try:
        request = NewJobBody.model_validate(given).request()
        validate(request)
    except ValidationError as error:
        found = list(json_pointers({**each, "loc": ("body", *each["loc"])} for each in error.errors()))
        detail = "; ".join(f"{each['pointer']}: {each['detail']}" for each in found)
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=found)
    except InvalidRequest as error:
        return problem_of(error)
    return request


def _prepare(client: Client, given: Any) -> NewJob | dict[str, Any]:
    """Return a job that is ready to be stored, or a problem if it is invalid."""
    request = _read(given)
    if not isinstance(request, JobRequest):
        return request
    try:
        return client.prepare(request)
    except InvalidRequest as error:
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", str(error.problems[-1]))


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
        headers=(IDEMPOTENCY_KEY,),
    ),
)
@requires_scope("jobs:write")
async def create(request: ApiRequest, body: NewJobBody) -> Response:
    """Store a job. It is committed before the response is sent.

    With an idempotency key, as a header or in the body, a repeat does not create a second job: it returns
    200, the first job, and `Idempotency-Replayed: true`. The same key with another type or payload is 422.
    """
    store = request.api.store
    client = store.backend.client
    job = await request.compute(request.size, client.prepare, body.request(_key(request, body)))
    [enqueued] = await client.astore([job])
    if isinstance(enqueued, IdempotencyConflict):
        raise enqueued
    if enqueued.existed:
        snapshot = await store.get(enqueued.id, with_payload=request.shows_payload)
        return await job_response(request, snapshot, HTTPStatus.OK, {"Idempotency-Replayed": "true"})
    snapshot = await store.get_created(
        request.caller, enqueued.id, with_payload=request.shows_payload, type=body.type, queue=body.queue
    )
    location = f"{request.root}/v1/jobs/{enqueued.id}"
    return await job_response(request, snapshot, HTTPStatus.CREATED, {"Location": location})


@router.get(
    "",
    summary="List jobs",
    **describe({200: (responses.JobPage, {"jobs": [openapi.JOB], "next": None})}, 422),
)
@requires_scope("jobs:read")
async def list_jobs(
    request: ApiRequest,
    *,
    status: Annotated[list[Status] | None, Query(max_length=len(Status))] = None,
    queue: Annotated[QueueName | None, Query()] = None,
    type: Annotated[TypeName | None, Query()] = None,
    since: Annotated[Timestamp | None, Query()] = None,
    until: Annotated[Timestamp | None, Query()] = None,
    tag: Tag | None = None,
    q: Annotated[
        Key | None, Query(description="A job's id, or an idempotency key. Not allowed with other filters.")
    ] = None,
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
        field_problem("query: q", "cannot be combined with other filters; it matches at most one job per queue")
    jobs = await request.api.store.call(_find_named, request.api.store, q)
    return json_response({"jobs": [_summary_view(request, each) for each in jobs[:limit]], "next": None})


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
    "/{job_id}/why",
    summary="Explain a job's state",
    **describe({200: (responses.WhyShape, openapi.WHY)}, 404, 422),
)
@requires_scope("jobs:read")
async def why_job(request: ApiRequest, job_id: JobIdParam) -> Response:
    """Explain what a job is waiting for: its due time, its queue, a worker, the jobs ahead of it, or its message."""
    diagnosis = await request.api.store.call(diagnose, request.api.store.inspector, job_id)
    return json_response(diagnosis.view())


async def reply_page(request: ApiRequest, wanted: JobFilter, cursor: str | None, limit: int) -> Response:
    """Return a response with a page of jobs and the cursor of the next page."""
    store = request.api.store
    after = None if cursor is None else JobId(UUID(bytes=urlsafe_b64decode(cursor + "==")))
    return reply_bytes(await store.page(_page_bytes, store, wanted, limit=limit, after=after, root=request.root))


def _page_bytes(store: StoreGateway, wanted: JobFilter, *, limit: int, after: JobId | None, root: str) -> bytes:
    """Read a page and encode it as JSON. Runs in a thread, so that it does not block the event loop."""
    page = store.inspector.find(wanted, limit=limit, after=after)
    following = None if page.after is None else urlsafe_b64encode(page.after.bytes).decode().rstrip("=")
    return page_json(page.jobs, following=following, now=store.clock.now(), root=root)


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


def _find_named(store: StoreGateway, q: str) -> list[JobSnapshot]:
    inspector = store.inspector
    ids = inspector.find_by_key(q)
    with suppress(ValueError):
        ids = [JobId(UUID(q)), *ids]
    return [JobSnapshot(job, None, store.clock.now()) for job in inspector.summaries(list(dict.fromkeys(ids))).values()]


def _summary_view(request: ApiRequest, snapshot: JobSnapshot) -> dict[str, Any]:
    return job_view(snapshot.job, now=snapshot.now, root=request.root)
