"""Endpoints for dead letters: list, group by error, requeue in bulk."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from taskharbor.api import openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, describe
from taskharbor.api.problems import field_problem, problem_of
from taskharbor.api.render import json_response
from taskharbor.api.requests import BulkRequeueBody, DeadFilter, QueueName, Timestamp, TypeName
from taskharbor.api.routes.jobs import Cursor, Fingerprint, Limit, Tag, reply_page, tag_of
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.api.store import Caller, StoreGateway
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.results import JobFilter, Transitioned
from taskharbor.core.states import Status
from taskharbor.dead_letters import paced_batches
from taskharbor.drivers.base import Inspector
from taskharbor.statistics import read_groups

router: Final = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"], route_class=ApiRoute)

DEAD: Final = frozenset({Status.DEAD})
FIND_BATCH: Final = 200


@router.get(
    "",
    summary="List dead letters",
    **describe({200: (responses.JobPage, {"jobs": [openapi.JOB], "next": None, "looked_back_to": None})}, 422),
)
@requires_scope("jobs:read")
async def list_dead(
    request: ApiRequest,
    *,
    queue: Annotated[QueueName | None, Query()] = None,
    type: Annotated[TypeName | None, Query()] = None,
    fingerprint: Fingerprint | None = None,
    since: Annotated[Timestamp | None, Query()] = None,
    until: Annotated[Timestamp | None, Query()] = None,
    tag: Tag | None = None,
    cursor: Cursor | None = None,
    limit: Limit = 50,
) -> Response:
    """List dead letters, newest first, without their payloads."""
    wanted = JobFilter(
        queue=queue,
        type=type,
        statuses=DEAD,
        since=since,
        until=until,
        tag=tag_of(tag),
        fingerprint=fingerprint,
    )
    return await reply_page(request, wanted, cursor, limit)


@router.get(
    "/groups",
    summary="Group dead letters by their error",
    **describe({200: (responses.Groups, {"groups": [openapi.GROUP]})}, 422),
)
@requires_scope("jobs:read")
async def groups(
    request: ApiRequest, queue: Annotated[QueueName | None, Query()] = None, limit: Limit = 50
) -> Response:
    """Return dead letters grouped by queue, type and error, the largest group first.

    `hours` has the deaths of the last 8 days. `first_version` is the version of the application at the first one.
    """
    store = request.api.store
    found = await store.call(read_groups, store.inspector, limit=limit, queue=queue)
    return json_response({"groups": found})


@router.post(
    "/requeue",
    summary="Requeue many dead letters",
    **describe(
        {
            200: (
                responses.BulkResult,
                {"matched": 1, "requeued": 1, "dry_run": False, "more": False, "ids": [openapi.ID], "refused": []},
            )
        },
        *BODY_PROBLEMS,
        body={"filter": {"type": "email.send"}, "dry_run": True, "rate": 10},
    ),
)
@requires_scope("jobs:control")
async def requeue_many(request: ApiRequest, body: BulkRequeueBody) -> Response:
    """Requeue dead letters by their ids, or those that match a filter, up to *limit* of them.

    With *dry_run*, only return the jobs that would be requeued. If *more* is true, call again.
    """
    if (body.ids is None) == (body.filter is None):
        field_problem("/filter", "give either ids or a filter")
    store = request.api.store
    result = await store.call(_requeue, store, body, request.caller)
    if result["requeued"]:
        target = f"{result['requeued']} jobs"
        await store.record_audit(request.caller, "dead-letters.requeue", target, why=body.reason)
    return json_response(result, HTTPStatus.OK)


def _requeue(store: StoreGateway, body: BulkRequeueBody, caller: Caller) -> dict[str, Any]:
    """Select dead letters, requeue them, and return the result."""
    driver = store.backend.driver
    ids, more = _select(store.inspector, body)
    refused: list[dict[str, Any]] = []
    for batch, delay in () if body.dry_run else paced_batches(ids, body.rate):
        results = driver.requeue(
            batch,
            token=new_token(),
            budget=body.budget,
            by=caller.name,
            reason=body.reason,
            delay=delay,
        )
        refused += [
            {"id": str(job_id), "problem": problem_of(result)}
            for job_id, result in zip(batch, results, strict=True)
            if not isinstance(result, Transitioned)
        ]
    return {
        "matched": len(ids),
        "requeued": 0 if body.dry_run else len(ids) - len(refused),
        "dry_run": body.dry_run,
        "more": more,
        "ids": [str(each) for each in ids],
        "refused": refused,
    }


def _select(inspector: Inspector, body: BulkRequeueBody) -> tuple[list[JobId], bool]:
    """Return the ids of the selected jobs, oldest first, and whether there are more."""
    if body.ids is not None:
        return list(dict.fromkeys(body.ids)), False
    wanted = _filter(body.filter or DeadFilter())
    found: list[JobId] = []
    after: JobId | None = None
    while len(found) < body.limit:
        page = inspector.find(wanted, limit=min(FIND_BATCH, body.limit - len(found)), after=after)
        found += [job.id for job in page.jobs]
        after = page.after
        if after is None:
            break
    return found[::-1], after is not None


def _filter(given: DeadFilter) -> JobFilter:
    return JobFilter(
        queue=given.queue,
        type=given.type,
        fingerprint=given.fingerprint,
        since=given.since,
        until=given.until,
        statuses=DEAD,
    )
