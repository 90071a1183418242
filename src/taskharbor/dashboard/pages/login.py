"""Login with an API key, logout, and the choices of the browser."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi.responses import RedirectResponse, Response

from taskharbor.api.problems import HttpProblem
from taskharbor.api.routing import PUBLIC, requires_scope
from taskharbor.dashboard.routing import UiRequest, ui_router
from taskharbor.dashboard.sessions import local_path
from taskharbor.dashboard.shell import Look

router: Final = ui_router()
LOOK_SECONDS: Final = 31_536_000


@router.get("/login")
@requires_scope(PUBLIC)
async def form(request: UiRequest, to: str = "") -> Response:
    """Show the login, or lead on if the user is logged in or needs no login."""
    if await request.find_caller() is not None:
        return RedirectResponse(local_path(to, request.base), HTTPStatus.SEE_OTHER)
    _check_login(request)
    return await request.page("login.html", to=to, problem="")


@router.post("/login")
@requires_scope(PUBLIC)
async def log_in(request: UiRequest) -> Response:
    """Make a session from an API key."""
    _check_login(request)
    key = await request.api.store.key(request.field("key"))
    if key is None:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        problem = "This is not a valid API key: it is unknown, expired or revoked."
        return await request.page("login.html", status=status, to=request.field("to"), problem=problem)
    request.ui.sessions.check_proxy(request)
    text = await request.ui.sessions.create(key)
    response = RedirectResponse(local_path(request.field("to"), request.base), HTTPStatus.SEE_OTHER)
    request.names.put_session(response, text, request=request)
    return response


@router.post("/logout")
@requires_scope(PUBLIC)
async def log_out(request: UiRequest) -> Response:
    """End the session."""
    caller = await request.find_caller()
    if caller is not None and request.session_text is not None:
        await request.ui.sessions.end(request.session_text, caller)
    response = RedirectResponse(f"{request.base}/login", HTTPStatus.SEE_OTHER)
    request.names.drop(response, request.names.session)
    return response


@router.post("/look")
@requires_scope(PUBLIC)
async def look(request: UiRequest) -> Response:
    """Store the theme, the form of times and the density that the browser has chosen."""
    before = request.look
    given = (request.field(name, getattr(before, name)) for name in ("theme", "times", "density"))
    response = RedirectResponse(local_path(request.field("to"), request.base), HTTPStatus.SEE_OTHER)
    chosen = str(Look.parse(".".join(given)))
    request.names.put(response, request.names.look, chosen, request=request, max_age=LOOK_SECONDS)
    return response


def _check_login(request: UiRequest) -> None:
    if request.ui.authorize is not None:
        detail = "log in to the application that this dashboard is part of"
        raise HttpProblem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail)
