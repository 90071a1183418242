"""The stream of changes that open pages follow, and the navigation with its numbers."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Query
from fastapi.responses import Response

from taskharbor.api.routing import requires_scope
from taskharbor.api.sse import EventStream, StreamBuffer
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.dashboard.sessions import SESSION_CACHE_SECONDS
from taskharbor.dashboard.shell import read_shell

router: Final = ui_router()


@router.get("/nav")
@requires_scope("jobs:read")
async def navigation(request: UiRequest, at: Annotated[str, Query(max_length=300)] = "/") -> Response:
    """Return a part of the shell: the navigation of the page *at*, with its present numbers, or the strips."""
    shell = replace(await read_shell(request), at=at)
    return request.finish(request.ui.render("nav.html", shell, {}, part=request.part or "nav"), HTTPStatus.OK)


@router.get("/events")
@requires_scope("jobs:read")
async def events(request: UiRequest) -> Response:
    """Send what has changed each second. All pages share one poll of the store."""
    api, buffer = request.api, StreamBuffer()
    leave = api.open.enter(buffer.end, request.caller.key_id)
    api.feed.join(buffer, topics=True)

    def closed() -> None:
        leave()
        api.feed.leave(buffer)

    is_allowed = request.is_still_allowed
    return EventStream(buffer, closed, is_allowed=is_allowed, beat_seconds=SESSION_CACHE_SECONDS)
