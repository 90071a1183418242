"""Endpoints for bulk operations: preview, create, list, get, stop."""

from __future__ import annotations

import re
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from taskharbor import operations
from taskharbor.api import actions, openapi, responses
from taskharbor.api.openapi import BODY_PROBLEMS, IDEMPOTENCY_KEY, KEY_PATTERN, describe
from taskharbor.api.problems import field_problem
from taskharbor.api.render import json_response
from taskharbor.api.requests import GivenId, OperationBody, to_timedelta
from taskharbor.api.routes.jobs import Limit, tag_of
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.core.operations import Operation, OperationId, OperationKind, OperationOptions
from taskharbor.core.results import JobFilter
from taskharbor.operations import OperationRequest
from taskharbor.views import job_view, operation_view

router: Final = APIRouter(prefix="/v1/operations", tags=["operations"], route_class=ApiRoute)

OperationParam = Annotated[GivenId, Path(examples=[openapi.OPERATION["id"]])]
_OPERATION: Final = {200: (responses.OperationShape, openapi.OPERATION)}
_PREVIEW: Final = {"dry_run": True, "matched": 38, "is_capped": False, "sample": [openapi.JOB]}


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    summary="Change many jobs",
    **describe(
        {
            200: (responses.OperationOrPreview, _PREVIEW),
            202: (responses.OperationShape, openapi.OPERATION),
        },
        *BODY_PROBLEMS,
        body={"kind": "requeue", "filter": {"type": "email.send"}, "rate": 10, "reason": "the mail server is back"},
        headers=(IDEMPOTENCY_KEY,),
    ),
)
@requires_scope("jobs:control")
async def create(request: ApiRequest, body: OperationBody) -> Response:
    """Requeue, cancel, reschedule or purge the jobs of a filter, or of a list of ids, at a rate.

    The operation is stored. It starts after *start_in* seconds, and any worker or janitor performs it. Until it starts,
    stopping it undoes it. Jobs that come later than the operation are left out. A purge also requires the scope admin.
    With *dry_run*, only count the jobs. A repeat with the same idempotency key returns the first operation, with 200.
    """
    wanted = _request(request, body)
    found = await actions.preview_operation(request, wanted)
    if body.dry_run:
        now = request.api.store.clock.last()
        sample = [job_view(job, now=now, root=request.root) for job in found.sample]
        return json_response(
            {"dry_run": True, "matched": found.matched, "is_capped": found.is_capped, "sample": sample}
        )
    starts_in = timedelta(seconds=body.start_in)
    operation, is_new = await actions.create_operation(request, wanted, found, starts_in=starts_in)
    view = operation_view(operation, root=request.root)
    if not is_new:
        return json_response(view, headers={"Idempotency-Replayed": "true"})
    return json_response(view, HTTPStatus.ACCEPTED, headers={"Location": view["links"]["self"]})


@router.get(
    "",
    summary="List operations",
    **describe({200: (responses.OperationPage, {"operations": [openapi.OPERATION], "next": None})}, 422),
)
@requires_scope("jobs:read")
async def list_operations(
    request: ApiRequest,
    cursor: Annotated[GivenId | None, Query(description="The *next* of the page before.")] = None,
    limit: Limit = 50,
) -> Response:
    """List bulk operations, newest first. Those that ended more than 30 days ago are removed."""
    store = request.api.store
    before = None if cursor is None else OperationId(cursor)
    found = await store.call(store.backend.driver.operations.recent, limit=limit + 1, before=before)
    following = str(found[limit - 1].id) if len(found) > limit else None
    views = [operation_view(each, root=request.root) for each in found[:limit]]
    return json_response({"operations": views, "next": following})


@router.get("/{operation_id}", summary="Get an operation", **describe(_OPERATION, 404, 422))
@requires_scope("jobs:read")
async def get(request: ApiRequest, operation_id: OperationParam) -> Response:
    """Return a bulk operation and its progress."""
    store = request.api.store
    return _reply(request, await store.call(operations.get, store.backend.driver, OperationId(operation_id)))


@router.post("/{operation_id}/stop", summary="Stop an operation", **describe(_OPERATION, 404, 422))
@requires_scope("jobs:control")
async def stop(request: ApiRequest, operation_id: OperationParam) -> Response:
    """Stop a bulk operation: no job is changed after the response. One that has ended stays as it is."""
    return _reply(request, await actions.stop_operation(request, OperationId(operation_id)))


def _reply(request: ApiRequest, operation: Operation) -> Response:
    return json_response(operation_view(operation, root=request.root))


def _request(request: ApiRequest, body: OperationBody) -> OperationRequest:
    key = request.headers.get("idempotency-key")
    if key is not None and not re.fullmatch(KEY_PATTERN, key):
        field_problem("header: Idempotency-Key", "must have 1 to 255 visible ASCII characters")
    options = OperationOptions(
        budget=body.budget,
        delay=to_timedelta(body.delay),
        scheduled_for=body.scheduled_for,
        priority=body.priority,
        older_than=to_timedelta(body.older_than),
        gives_up=body.unpublished,
        rate=body.rate,
    )
    wanted = OperationRequest(
        kind=OperationKind(body.kind),
        by=request.caller.name,
        reason=body.reason,
        filter=_filter(body),
        job_ids=None if body.ids is None else tuple(body.ids),
        options=options,
        key=key,
    )
    wanted.validate()
    return wanted


def _filter(body: OperationBody) -> JobFilter | None:
    given = body.filter
    if given is None:
        return None
    return JobFilter(
        queue=given.queue,
        type=given.type,
        statuses=None if given.statuses is None else frozenset(given.statuses),
        since=given.since,
        until=given.until,
        tag=tag_of(given.tag),
        fingerprint=given.fingerprint,
    )
