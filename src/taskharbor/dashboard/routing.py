"""The request and route classes of the dashboard: they check the user, forms and scopes, and show errors as pages."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from functools import cached_property
from http import HTTPStatus
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from taskharbor.api.problems import HttpProblem, problem_of, request_line
from taskharbor.api.routing import PUBLIC, ApiRequest, ApiRoute, check_scope, local_caller
from taskharbor.api.sse import EventStream
from taskharbor.api.store import Caller
from taskharbor.core.errors import StoreUnavailable, TaskHarborError
from taskharbor.dashboard.forms import reject_form
from taskharbor.dashboard.sessions import (
    Cookies,
    caller_of,
    check_origin,
    check_token,
    form_token,
    is_cross_site_link,
    new_seed,
    signature,
)
from taskharbor.dashboard.shell import Look, Shell, read_shell

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from fastapi import Request

    from taskharbor.dashboard.queries import Reads
    from taskharbor.dashboard.state import UiState

_LOG: Final = logging.getLogger("taskharbor.api")
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
    "Cache-Control": "no-store",
}
MAX_FIELDS: Final = 2_000
NUL: Final = "\0"
"""No store can keep it, and PostgreSQL does not even compare with it."""
NOTE_SECONDS: Final = 30
_WRITES_NOTHING: Final = frozenset({"/ui/login", "/ui/logout", "/ui/look"})
"""Forms that are accepted in read-only mode, too: they change nothing but the session and the browser's own cookies."""


class LoginRequired(HttpProblem):
    """The request has no valid session."""

    def __init__(self) -> None:
        super().__init__(HTTPStatus.UNAUTHORIZED, "unauthorized", "log in to see this page")


class UiRequest(ApiRequest):
    """A request for a page: with the user's session, its form, and the functions that answer it."""

    session_text: str | None = None
    is_open: bool = False
    """Whether the API needs no keys, so that every client on this machine is the user."""
    _fields: Mapping[str, list[str]]

    @property
    def ui(self) -> UiState:
        """The state of the dashboard."""
        state: UiState = self.app.state.taskharbor_dashboard
        return state

    @property
    def reads(self) -> Reads:
        """The cached reads of the store."""
        return self.ui.reads

    @cached_property
    def names(self) -> Cookies:
        """The names of the cookies."""
        return Cookies(self.root)

    @property
    def base(self) -> str:
        """The path of the first page."""
        return f"{self.root}/ui"

    @property
    def part(self) -> str | None:
        """The live part of the page that the browser wants, if it wants only one."""
        return self.headers.get("x-part")

    @property
    def is_navigation(self) -> bool:
        """Whether the browser shows the answer as a page, and not a script or a stream."""
        return self.method == "GET" and self.part is None and "event-stream" not in self.headers.get("accept", "")

    @cached_property
    def look(self) -> Look:
        """The theme, times and density that the browser has chosen."""
        return Look.parse(self.cookies.get(self.names.look, ""))

    @property
    def is_read_only(self) -> bool:
        """Whether the dashboard changes nothing: its own option says so, or that of the application."""
        return self.ui.read_only or self.api.is_read_only

    def can(self, scope: str) -> bool:
        """Return whether the user may change what *scope* is for; False in read-only mode."""
        return self.may(scope) and not self.is_read_only

    async def check_caller(self) -> None:
        """Find the user and check their scope."""
        caller = await self.find_caller()
        if caller is None:
            raise LoginRequired
        self.caller = caller
        check_scope(self, self.needs)

    async def find_caller(self) -> Caller | None:
        """Return the user; None without a valid session."""
        if self.ui.authorize is not None:
            found = self.ui.authorize(self)
            person = await found if isawaitable(found) else found
            return None if person is None else Caller(person.name, frozenset(person.scopes))
        local = await local_caller(self)
        self.is_open = local is not None
        if local is not None:
            return local
        text = self.cookies.get(self.names.session)
        key = None if text is None else await self.ui.sessions.find(text)
        self.session_text = None if key is None else text
        return None if key is None else caller_of(key)

    @cached_property
    def _secret(self) -> tuple[str, bool]:
        """The cookie that form tokens are made from, and whether it must be set first."""
        known = self.session_text or self.cookies.get(self.names.seed)
        return (new_seed(), True) if known is None else (known, False)

    @property
    def token(self) -> str:
        """The token for the forms of the page."""
        return form_token(self._secret[0])

    async def read_form(self) -> None:
        """Read the urlencoded form, and reject it if it does not come from a page of this dashboard."""
        check_origin(self)
        body = (await self.body()).decode(errors="replace")
        try:
            fields = parse_qsl(body, keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            reject_form(f"the form has over {MAX_FIELDS:,} fields; nothing was changed")
        self._fields = {}
        for name, value in fields:
            self._fields.setdefault(name, []).append(value)
        if any(NUL in value for _, value in fields):
            reject_form("a field has a character that cannot be stored; nothing was changed")
        check_token(self.field("token"), self.session_text or self.cookies.get(self.names.seed))

    def field(self, name: str, default: str = "") -> str:
        """Return the value of a field of the form, without surrounding spaces."""
        return self._fields.get(name, [default])[-1].strip()

    def fields(self, name: str) -> list[str]:
        """Return all values of a field of the form, such as ticked rows."""
        return self._fields.get(name, [])

    async def page(
        self, template: str, *, status: int = HTTPStatus.OK, has_payload: bool = False, **context: Any
    ) -> Response:
        """Return a page, or the live part of it that the browser asked for. It has an ETag.

        One that *has_payload* is not kept for the time when the store does not answer: each look at it is recorded.
        """
        shell = await read_shell(self)
        text = self.ui.render(template, shell, context, part=self.part)
        # An answer to a form may have the text of a new key, which is shown once.
        is_kept = self.method == "GET" and self.part is None and status == HTTPStatus.OK
        if is_kept and not has_payload and self.caller.scopes:
            self.ui.last_pages.put(self, text)
        return self.finish(text, status)

    def finish(self, text: str, status: int) -> Response:
        mark = f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'
        if self.part is not None and self.headers.get("if-none-match") == mark:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": mark})
        response = HTMLResponse(text, status, {"ETag": mark})
        secret, is_new = self._secret
        if is_new and self.part is None:
            self.names.put(response, self.names.seed, secret, request=self)
        if self.part is None and self.names.note in self.cookies:
            self.names.drop(response, self.names.note)
        return response

    def redirect(self, path: str, message: str = "", *, undo: str = "") -> Response:
        """Answer a form: go to *path* of the dashboard and show *message* there.

        *undo* is the path of a form that undoes the change without further fields.
        """
        self.reads.forget()
        response = RedirectResponse(f"{self.base}{path}", HTTPStatus.SEE_OTHER)
        if message:
            text = json.dumps({"text": message, "undo": undo})
            note = quote(f"{signature(text, self._secret[0])} {text}")
            self.names.put(response, self.names.note, note, request=self, max_age=NOTE_SECONDS)
        return response

    @property
    def note(self) -> Mapping[str, str]:
        """The message of the form that led here, and the path that undoes it, if this dashboard has signed them."""
        signed, _, text = unquote(self.cookies.get(self.names.note, "")).partition(" ")
        if not hmac.compare_digest(signed.encode(), signature(text, self._secret[0]).encode()):
            return {}
        given: dict[str, str] = json.loads(text)
        return given


class UiRoute(ApiRoute):
    """A route of a page. It checks the user and forms, and shows errors as pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        scope = self.needs
        handle = APIRoute.get_route_handler(self)

        async def handler(original: Request) -> Response:
            request = UiRequest(original.scope, original.receive)
            request.needs, request.max_body = scope, request.api.max_body
            try:
                response = await _answer(request, handle)
            except (HTTPException, RequestValidationError, TaskHarborError) as error:
                response = await show_error(request, error)
            except Exception as error:  # noqa: BLE001  it is logged, and shown as a page
                _LOG.exception("%s failed", request_line(request))
                response = await show_error(request, error)
            for name, value in HEADERS.items():
                if name not in response.headers:
                    response.headers[name] = value
            return response

        return handler


async def _answer(request: UiRequest, handle: Callable[[Request], Coroutine[Any, Any, Response]]) -> Response:
    if NUL in request.url.path or NUL in unquote(request.url.query):
        raise HttpProblem(HTTPStatus.NOT_FOUND, "not-found", "there is no such page")
    if is_cross_site_link(request) and request.names.session not in request.cookies and request.ui.authorize is None:
        return HTMLResponse(request.ui.environment.get_template("refresh.html").render())
    if request.needs == PUBLIC:
        request.caller = Caller("", frozenset())
    else:
        await request.check_caller()
    if request.method == "POST":
        if request.needs == PUBLIC:
            await request.find_caller()
        await request.read_form()
        if request.is_read_only and request.scope["route"].path_format not in _WRITES_NOTHING:
            raise HttpProblem(HTTPStatus.FORBIDDEN, "read-only", "this dashboard is read-only; nothing was changed")
    return await handle(request)


async def show_error(request: UiRequest, error: Exception) -> Response:
    """Return the page for an error. Without a session, it leads to the login."""
    if isinstance(error, LoginRequired) and request.is_navigation and request.ui.authorize is None:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{request.base}/login?to={quote(path)}", HTTPStatus.SEE_OTHER)
    status, code, detail, scope = _describe(error)
    if not hasattr(request, "caller"):
        request.caller = Caller("", frozenset())
    is_away = isinstance(error, StoreUnavailable) or code in {"read-too-slow", "overloaded"}
    shell = Shell.without_store(request) if is_away or not request.caller.scopes else await _shell(request)
    old, age = request.ui.last_pages.get(request) if is_away else ("", 0.0)
    context = {"status": status, "code": code, "detail": detail, "scope": scope, "old": old, "age": age}
    text = request.ui.render("error.html", shell, context, part="main" if request.part is not None else None)
    response = HTMLResponse(text, status)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = "5"
    return response


async def _shell(request: UiRequest) -> Shell:
    try:
        return await read_shell(request)
    except (HTTPException, TaskHarborError):  # the error page must not need the store
        return Shell.without_store(request)


def _describe(error: Exception) -> tuple[int, str, str, str]:
    """Return the status, the code, the text and the missing scope of an error."""
    match error:
        case HttpProblem():
            return error.status_code, error.code, error.detail, str(error.more.get("scope", ""))
        case HTTPException():
            return error.status_code, "error", error.detail, ""
        case RequestValidationError():
            return HTTPStatus.NOT_FOUND, "not-found", "there is no such page", ""
        case _:
            found = problem_of(error)
            return found["status"], found["code"], found["detail"], ""


def ui_router() -> APIRouter:
    """Return a router for the endpoints of a page. They require a scope, and are not part of the OpenAPI document."""
    return APIRouter(prefix="/ui", route_class=UiRoute, include_in_schema=False)


def stream_headers(stream: EventStream) -> EventStream:
    """Return *stream* with the headers of pages."""
    for name, value in HEADERS.items():
        stream.headers[name] = value
    return stream
