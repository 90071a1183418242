"""Static files, and the answer to addresses that do not exist."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi.responses import RedirectResponse, Response

from taskharbor.api.problems import HttpProblem
from taskharbor.api.routing import PUBLIC, requires_scope
from taskharbor.dashboard.routing import UiRequest, ui_router

router: Final = ui_router()
ONE_YEAR: Final = "public, max-age=31536000, immutable"


@router.get("/static/{mark}/{name}")
@requires_scope(PUBLIC)
async def static(request: UiRequest, mark: str, name: str) -> Response:
    """Return a static file. An address with another hash is that of another version."""
    assets = request.ui.assets
    if mark != assets.mark or name not in assets.files:
        raise HttpProblem(HTTPStatus.NOT_FOUND, "not-found", "there is no such file")
    content, kind = assets.files[name]
    return Response(content, media_type=kind, headers={"Cache-Control": ONE_YEAR})


@router.get("")
@requires_scope(PUBLIC)
async def no_slash(request: UiRequest) -> Response:
    """Lead to the first page."""
    return RedirectResponse(f"{request.base}/", HTTPStatus.PERMANENT_REDIRECT)


@router.get("/{rest:path}")
@requires_scope("jobs:read")
async def missing(rest: str) -> Response:
    """Say that there is no such page."""
    raise HttpProblem(HTTPStatus.NOT_FOUND, "not-found", f"there is no page /{rest}")
