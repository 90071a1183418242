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
from pydantic import ValidationError

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import IDEMPOTENCY_KEY, KEY_PATTERN, WITH_BODY, describe
from taskharbor.api.problems import HttpProblem, field_problem, json_pointers, problem, problem_of
from taskharbor.api.render import job_response, json_bytes, json_response, page_json, reply_bytes
from taskharbor.api.requests import BatchBody, GivenId, Key, Moment, NewJobBody, QueueName, TypeName
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
MAX_WAIT: Final = 60
ThatJob = Annotated[GivenId, Path(examples=[openapi.ID])]
Cursor = Annotated[str, Query(pattern="^[A-Za-z0-9_-]{22}$", description="Where to go on: `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
Tag = Annotated[
    str, Query(pattern=r"^[^=\x00]{1,64}=[^\x00]{0,1024}$", description="`key=value` that the metadata must have.")
]
_JOB: Final = {200: (responses.JobShape, openapi.JOB)}


@router.post(
    "/batch",
    summary="Make many jobs",
    **describe(
        {
            200: (
                responses.BatchResult,
                {"stored": 1, "results": [{"status": 201, "id": openapi.ID, "existed": False, "problem": None}]},
            )
        },
        *WITH_BODY,
        body={"jobs": [openapi.NEW_JOB], "atomic": False},
    ),
)
@requires_scope("jobs:write", body_factor=BATCH_FACTOR)
async def create_many(request: ApiRequest, body: BatchBody) -> Response:
    """Store up to 1,000 jobs in one statement, and say of each what became of it, in order.

    A job that breaks a rule is answered by its problem, and the others are stored. With *atomic* it stops all of
    them, by 422; an idempotency key, which could be refused alone, is then not allowed.
    """
    client, compute = request.api.store.backend.client, request.api.store.compute  # 1,000 small jobs are 30 ms, too
    if body.atomic:
        jobs = await compute(lambda: client.prepare_many(_all_or_none(body.jobs)))
        outcomes = [_answer(each) for each in await client.astore(jobs)]
    else:
        prepared = await compute(lambda: [_prepared(client, each) for each in body.jobs])
        outcomes = await _each(client, prepared)
    new = [each for each in outcomes if isinstance(each, Enqueued) and not each.existed]
    if new:
        await request.api.store.record_audit(
            request.caller, "jobs.enqueue-many", f"{len(new)} jobs", first=str(new[0].id), last=str(new[-1].id)
        )
    return reply_bytes(await compute(_batch_answer, len(new), outcomes))


def _all_or_none(jobs: list[Any]) -> list[JobRequest]:
    read = [_read(each) for each in jobs]
    wrong = [
        {"pointer": f"/jobs/{place}{each['pointer']}", "detail": each["detail"]}
        for place, refused in enumerate(read)
        if isinstance(refused, dict)
        for each in refused["errors"]
    ]
    if wrong:
        detail = f"{len(wrong)} rules are broken, and nothing was stored"
        raise HttpProblem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=wrong)
    requests = [each for each in read if isinstance(each, JobRequest)]
    for place, each in enumerate(requests):
        if each.idempotency_key is not None:
            field_problem(f"/jobs/{place}/idempotency_key", "an atomic batch takes no idempotency keys")
    return requests


def _read(given: Any) -> JobRequest | dict[str, Any]:
    """Return a job's request, or the problem with it."""
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


def _prepared(client: Client, given: Any) -> NewJob | dict[str, Any]:
    """Return a job that can be stored, or the problem with it."""
    request = _read(given)
    if not isinstance(request, JobRequest):
        return request
    try:
        return client.prepare(request)
    except InvalidRequest as error:
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", str(error.problems[-1]))


async def _each(client: Client, prepared: list[NewJob | dict[str, Any]]) -> list[Outcome]:
    """Store what can be stored, and return what became of each."""
    jobs = [each for each in prepared if isinstance(each, NewJob)]
    answers = iter(await client.astore(jobs) if jobs else [])
    return [_answer(next(answers)) if isinstance(each, NewJob) else each for each in prepared]


def _answer(answer: object) -> Outcome:
    if isinstance(answer, TaskHarborError):
        return problem_of(answer)
    assert isinstance(answer, Enqueued)  # noqa: S101  an answer is one or the other
    return answer


def _batch_answer(stored: int, outcomes: list[Outcome]) -> bytes:
    return json_bytes({"stored": stored, "results": [_shown(each) for each in outcomes]})


def _shown(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Enqueued):
        status = HTTPStatus.OK if outcome.existed else HTTPStatus.CREATED
        return {"status": int(status), "id": str(outcome.id), "existed": outcome.existed, "problem": None}
    return {"status": outcome["status"], "id": None, "existed": False, "problem": outcome}


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    summary="Make a job",
    **describe(
        {201: (responses.JobShape, openapi.JOB), 200: (responses.JobShape, openapi.JOB)},
        *WITH_BODY,
        body=openapi.NEW_JOB,
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
    **describe({200: (responses.JobPage, {"jobs": [openapi.JOB], "next": None})}, 422),
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
    **describe({200: (responses.Attempts, {"attempts": [openapi.ATTEMPT]})}, 404, 422),
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
    **describe({200: (responses.WhyShape, openapi.WHY)}, 404, 422),
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
