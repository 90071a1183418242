"""Many jobs in one call."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import ValidationError

from taskharbor.api import examples, shapes
from taskharbor.api.bodies import BatchBody, NewJobBody
from taskharbor.api.describing import WITH_BODY, describe
from taskharbor.api.problems import HttpProblem, field_problem, json_pointers, problem, problem_of
from taskharbor.api.replying import json_bytes, reply_bytes
from taskharbor.api.routing import BATCH_FACTOR, ApiRequest, ApiRoute, requires_scope
from taskharbor.client import Client
from taskharbor.core.answers import Enqueued
from taskharbor.core.errors import InvalidRequest, TaskHarborError
from taskharbor.core.model import NewJob
from taskharbor.core.request import JobRequest, validate

router: Final = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)
Outcome = Enqueued | dict[str, Any]


@router.post(
    "/batch",
    summary="Make many jobs",
    **describe(
        {
            200: (
                shapes.BatchResult,
                {"stored": 1, "results": [{"status": 201, "id": examples.ID, "existed": False, "problem": None}]},
            )
        },
        *WITH_BODY,
        body={"jobs": [examples.NEW_JOB], "atomic": False},
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
