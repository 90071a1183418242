"""API keys and sessions: the list, creating and revoking one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import Path
from fastapi.responses import Response

from taskharbor.api import actions
from taskharbor.api.problems import not_found
from taskharbor.api.requests import Key, NewKeyBody
from taskharbor.api.routing import requires_scope
from taskharbor.api_keys import ADMIN
from taskharbor.core.model import ApiKey
from taskharbor.dashboard import forms
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.dashboard.texts import SCOPE_TEXTS

router: Final = ui_router()
KeyParam = Annotated[Key, Path()]


@router.get("/keys")
@requires_scope(ADMIN)
async def keys(request: UiRequest) -> Response:
    """Show the keys, and the sessions that were made from them."""
    found = await request.reads.fresh(lambda inspector: list(inspector.keys().values()))
    now = await request.reads.now()
    listed = [each for each in found if each.parent is None]
    sessions = [each for each in found if each.parent is not None and not _is_over(each, now)]
    return await request.page("keys.html", keys=listed, sessions=sessions, names={each.id: each.name for each in found})


@router.get("/keys/new")
@requires_scope(ADMIN)
async def ask_new(request: UiRequest) -> Response:
    """Show the form of a new key."""
    return await request.page("key_new.html", scopes=SCOPE_TEXTS)


@router.post("/keys/new")
@requires_scope(ADMIN)
async def create(request: UiRequest) -> Response:
    """Create a key and show its text, once."""
    expires = forms.duration(request.field("expires_in"), "expires in")
    given: dict[str, object] = {"name": request.field("name"), "scopes": request.fields("scope")}
    if expires is not None:
        given["expires_in"] = expires.total_seconds()
    issued = await actions.create_key(request, forms.checked(NewKeyBody, given))
    return await request.page("key_created.html", key=issued.key, text=issued.text)


@router.get("/keys/{key_id}/revoke")
@requires_scope(ADMIN)
async def ask_revoke(request: UiRequest, key_id: KeyParam) -> Response:
    """Show what revoking a key would do."""
    found = await request.reads.fresh(lambda inspector: inspector.keys([key_id]))
    if key_id not in found:
        raise not_found("key", key_id)
    return await request.page("key_revoke.html", key=found[key_id])


@router.post("/keys/{key_id}/revoke")
@requires_scope(ADMIN)
async def revoke(request: UiRequest, key_id: KeyParam) -> Response:
    """Revoke a key and its sessions."""
    if request.field("typed") != key_id:
        forms.reject_form(f"type the id of the key, {key_id}, to revoke it; nothing was changed")
    found = await actions.revoke_key(request, key_id)
    return request.redirect("/keys", f"Key {found.name} is revoked. It is rejected after at most 5 s.")


def _is_over(key: ApiKey, now: datetime) -> bool:
    return key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now)
