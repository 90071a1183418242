"""Many jobs in one call."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import ValidationError

from taskharbor.api import examples, shapes
from taskharbor.api.bodies import BatchBody, NewJobBody
from taskharbor.api.describing import WITH_BODY, described
from taskharbor.api.problems import Refusal, pointed, problem, problem_of, refuse_field
from taskharbor.api.replying import reply
from taskharbor.api.routing import BATCH_FACTOR, ApiRequest, ApiRoute, needs
from taskharbor.core.answers import Enqueued
from taskharbor.core.errors import EnqueueRefused, InvalidRequest, TaskHarborError
from taskharbor.core.request import JobRequest, check

router: Final = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=ApiRoute)
_PLACE: Final = re.compile(r"jobs\[(\d+)\]")
Outcome = Enqueued | dict[str, Any]


@router.post(
    "/batch",
    summary="Make many jobs",
    **described(
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
@needs("jobs:write", body_factor=BATCH_FACTOR)
async def create_many(request: ApiRequest, body: BatchBody) -> Response:
    """Store up to 1,000 jobs in one statement, and say of each what became of it, in order.

    A job that breaks a rule is answered by its problem, and the others are stored. With *atomic* it stops all of
    them, by 422; an idempotency key, which could be refused alone, is then not allowed.
    """
    if body.atomic:
        outcomes: list[Outcome] = [*await _store(request, _all_or_none(body.jobs))]
    else:
        outcomes = await _each(request, [_read(each) for each in body.jobs])
    new = [each for each in outcomes if isinstance(each, Enqueued) and not each.existed]
    if new:
        await request.api.store.record(
            request.caller, "jobs.enqueue-many", f"{len(new)} jobs", first=str(new[0].id), last=str(new[-1].id)
        )
    return reply({"stored": len(new), "results": [_shown(each) for each in outcomes]})


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
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=wrong)
    requests = [each for each in read if isinstance(each, JobRequest)]
    for place, each in enumerate(requests):
        if each.idempotency_key is not None:
            refuse_field(f"/jobs/{place}/idempotency_key", "an atomic batch takes no idempotency keys")
    return requests


def _read(given: Any) -> JobRequest | dict[str, Any]:
    """Return a job's request, or the problem with it."""
    try:
        request = NewJobBody.model_validate(given).request()
        check(request)
    except ValidationError as error:
        found = list(pointed({**each, "loc": ("body", *each["loc"])} for each in error.errors()))
        detail = "; ".join(f"{each['pointer']}: {each['detail']}" for each in found)
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", detail, errors=found)
    except InvalidRequest as error:
        return problem_of(error)
    return request


async def _each(request: ApiRequest, read: list[JobRequest | dict[str, Any]]) -> list[Outcome]:
    """Store what can be stored; what the codec refuses is set apart, and the rest goes out once more."""
    while True:
        places = [place for place, each in enumerate(read) if isinstance(each, JobRequest)]
        try:
            stored = await _store(request, [each for each in read if isinstance(each, JobRequest)])
        except EnqueueRefused as error:
            stored = [_answer(each) for each in error.answers]
        except InvalidRequest as error:
            for place, told in _refused(error).items():
                read[places[place]] = told
            continue
        filled = dict(zip(places, stored, strict=True))
        return [filled[place] if isinstance(each, JobRequest) else each for place, each in enumerate(read)]


async def _store(request: ApiRequest, requests: list[JobRequest]) -> list[Outcome]:
    return [*await request.api.store.backend.client.aenqueue_many(requests)] if requests else []


def _answer(answer: object) -> Outcome:
    if isinstance(answer, TaskHarborError):
        return problem_of(answer)
    assert isinstance(answer, Enqueued)  # noqa: S101  an answer is one or the other
    return answer


def _refused(error: InvalidRequest) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for each in error.problems:
        place = _PLACE.match(each.field)
        if place is None:
            raise error
        found[int(place[1])] = problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-request", str(each))
    return found


def _shown(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Enqueued):
        status = HTTPStatus.OK if outcome.existed else HTTPStatus.CREATED
        return {"status": int(status), "id": str(outcome.id), "existed": outcome.existed, "problem": None}
    return {"status": outcome["status"], "id": None, "existed": False, "problem": outcome}
