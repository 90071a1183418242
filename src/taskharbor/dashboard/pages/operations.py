"""Bulk operations: the list, one of them with its progress, and stopping it."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path
from fastapi.responses import Response

from taskharbor import operations as bulk
from taskharbor.api import actions
from taskharbor.api.requests import GivenId
from taskharbor.api.routing import requires_scope
from taskharbor.core.operations import Operation, OperationId, OperationState, sort_refusals
from taskharbor.core.text import plural
from taskharbor.dashboard.replays import read_result
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.views import operation_view

router: Final = ui_router()
PAGE: Final = 50
OperationParam = Annotated[GivenId, Path()]
REFUSALS: Final = {
    "not_found": "no longer exist",
    "not_allowed": "are in another state",
    "later": "came later than the operation",
    "unpublished": "wait for their dead-letter event",
}


@router.get("/operations")
@requires_scope("jobs:read")
async def operations(request: UiRequest) -> Response:
    """Show the operations, newest first."""
    store = request.api.store
    before = _id(request.query_params.get("cursor", ""))
    found = await store.call(store.backend.driver.operations.recent, limit=PAGE + 1, before=before)
    rows = [_shown(each) for each in found[:PAGE]]
    after = found[PAGE - 1].id if len(found) > PAGE else None
    return await request.page("operations.html", rows=rows, after=after)


@router.get("/operations/{operation_id}")
@requires_scope("jobs:read")
async def operation(request: UiRequest, operation_id: OperationParam) -> Response:
    """Show an operation."""
    store = request.api.store
    found = await store.call(bulk.get, store.backend.driver, OperationId(operation_id))
    result = await request.reads.fresh(lambda inspector: read_result(inspector, found))
    return await request.page("operation.html", **_shown(found), refusals=REFUSALS, result=result)


@router.post("/operations/{operation_id}/stop")
@requires_scope("jobs:control")
async def stop(request: UiRequest, operation_id: OperationParam) -> Response:
    """Stop an operation."""
    found = await actions.stop_operation(request, OperationId(operation_id))
    if found.state is not OperationState.STOPPED:
        message = f"The {found.kind} had ended already."
    else:
        message = "Undone: nothing was changed." if not found.done else f"Stopped after {plural(found.done, 'job')}."
    return request.redirect(f"/operations/{operation_id}", message)


def _shown(found: Operation) -> dict[str, Any]:
    view = operation_view(found)
    handled = found.done + sum(found.refused.values())
    return {"operation": found, "view": view, "handled": handled, "refused": sort_refusals(found.refused)}


def _id(text: str) -> OperationId | None:
    try:
        return OperationId(UUID(text))
    except ValueError:
        return None
