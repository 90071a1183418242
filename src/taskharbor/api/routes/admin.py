"""Endpoints for the audit log, API keys, the health of the store, and the caller itself."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from taskharbor._version import __version__
from taskharbor.api import actions, admin_responses
from taskharbor.api.openapi import BODY_PROBLEMS, describe
from taskharbor.api.render import json_response
from taskharbor.api.requests import GivenId, Key, NewKeyBody
from taskharbor.api.routes.jobs import Limit
from taskharbor.api.routing import ANY_KEY, ApiRequest, ApiRoute, requires_scope
from taskharbor.api_keys import ADMIN
from taskharbor.audit_log import read_audit
from taskharbor.core.ids import Token
from taskharbor.views import key_view

router: Final = APIRouter(prefix="/v1", tags=["administration"], route_class=ApiRoute)

_AT: Final = "2030-01-01T12:00:00Z"
_ENTRY: Final = {
    "id": "01890a5d-ac96-774b-bcce-b302099a8057",
    "at": _AT,
    "actor": "key:1a2b3c4d5e6f ops",
    "action": "queues.pause",
    "target": "default",
    "detail": {"why": "the mail server is down"},
}
_KEY: Final[dict[str, Any]] = {
    "id": "1a2b3c4d5e6f",
    "name": "ops",
    "scopes": ["jobs:control", "jobs:read"],
    "created_at": _AT,
    "expires_at": None,
    "revoked_at": None,
    "used_at": None,
    "kind": "key",
    "parent": None,
}
_FINDING: Final = {
    "check": "queues",
    "level": "warn",
    "text": "queue 'mail' has 12 due jobs and no live worker",
    "remedy": "start a worker that serves it",
}
_ME: Final = {
    "name": "key:1a2b3c4d5e6f ops",
    "key_id": "1a2b3c4d5e6f",
    "scopes": ["jobs:control", "jobs:read"],
    "read_only": False,
    "versions": {"taskharbor": __version__, "app": "4f2c"},
}
_SECRET: Final = {"key": "thk_1a2b3c4d5e6f_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"}
KeyParam = Annotated[Key, Path(examples=["1a2b3c4d5e6f"])]


@router.get(
    "/audit",
    summary="Read the audit log",
    **describe({200: (admin_responses.AuditLog, {"entries": [_ENTRY], "next": None})}, 422),
)
@requires_scope(ADMIN)
async def audit(
    request: ApiRequest,
    *,
    target: Annotated[Key | None, Query(description="The id or name of what was changed.")] = None,
    actor: Annotated[Key | None, Query()] = None,
    action: Annotated[Key | None, Query(examples=["queues.pause"])] = None,
    cursor: Annotated[GivenId | None, Query(description="The *next* of the page before.")] = None,
    limit: Limit = 50,
) -> Response:
    """List who changed what, newest first. Entries are kept for 90 days.

    With several conditions, a page may be short, or even empty, although `next` is not null.
    """
    store = request.api.store
    before = None if cursor is None else Token(cursor)
    wanted = {"target": target, "actor": actor, "action": action}
    page = await store.call(read_audit, store.inspector, limit=limit, before=before, **wanted)
    return json_response(page.view())


@router.get("/keys", summary="List API keys", **describe({200: (admin_responses.Keys, {"keys": [_KEY]})}, 422))
@requires_scope(ADMIN)
async def list_keys(
    request: ApiRequest,
    *,
    sessions: Annotated[bool, Query(description="Whether to list also the sessions that were made from keys.")] = False,
) -> Response:
    """List API keys by id, with revoked and expired ones, without their texts. A use is recorded once a minute."""
    store = request.api.store
    found = await store.call(store.inspector.keys)
    return json_response({"keys": [key_view(each) for each in found.values() if sessions or each.parent is None]})


@router.post(
    "/keys",
    status_code=HTTPStatus.CREATED,
    summary="Create an API key",
    **describe(
        {201: (admin_responses.NewKey, _KEY | _SECRET)},
        *BODY_PROBLEMS,
        body={"name": "ci", "scopes": ["jobs:write"], "expires_in": 86_400},
    ),
)
@requires_scope(ADMIN)
async def create_key(request: ApiRequest, body: NewKeyBody) -> Response:
    """Create an API key. Its text (`key`) is in this response only; the store keeps a hash."""
    issued = await actions.create_key(request, body)
    return json_response({"key": issued.text} | key_view(issued.key), HTTPStatus.CREATED)


@router.post(
    "/keys/{key_id}/revoke", summary="Revoke an API key", **describe({200: (admin_responses.KeyShape, _KEY)}, 404, 422)
)
@requires_scope(ADMIN)
async def revoke_key(request: ApiRequest, key_id: KeyParam) -> Response:
    """Revoke a key, and the sessions that were made from it. It is rejected after at most five seconds."""
    return json_response(key_view(await actions.revoke_key(request, key_id)))


@router.get(
    "/health",
    summary="Check the store and its jobs",
    **describe(
        {200: (admin_responses.HealthShape, {"checked_at": _AT, "level": "warn", "findings": [_FINDING]})},
    ),
)
@requires_scope("jobs:read")
async def health(request: ApiRequest) -> Response:
    """Return what `taskharbor doctor` finds, with the cause and the remedy. The checks run at most every 30 seconds."""
    return json_response(await request.api.store.health())


@router.get("/me", summary="Get the caller", **describe({200: (admin_responses.Me, _ME)}))
@requires_scope(ANY_KEY)
async def me(request: ApiRequest) -> Response:
    """Return the name and the scopes of the key that is used, and the versions of TaskHarbor and of the app."""
    caller, backend = request.caller, request.api.store.backend
    view = {
        "name": caller.name,
        "key_id": caller.key_id,
        "scopes": sorted(caller.scopes),
        "read_only": request.api.is_read_only,
        "versions": {"taskharbor": __version__, "app": backend.version},
    }
    return json_response(view)
