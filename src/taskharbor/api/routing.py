"""The request and route classes of the API: they check the caller's key, its scopes, the query and the body."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, get_args
from urllib.parse import SplitResult, urlsplit

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from taskharbor.api.problems import HttpProblem, field_problem
from taskharbor.api.store import MIN_OFFLOAD_BYTES, Caller
from taskharbor.api_keys import SCOPES, is_allowed
from taskharbor.core.codec import strict_json
from taskharbor.core.errors import PayloadNotDecodable, StoreUnavailable
from taskharbor.core.json_limits import check_json_limits
from taskharbor.core.text import one_line
from taskharbor.core.trace_context import TraceContext, received_context

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator

    from fastapi import Response
    from fastapi.dependencies.models import Dependant

    from taskharbor.api.state import AppState

F = TypeVar("F", bound="Callable[..., Any]")
P = ParamSpec("P")
R = TypeVar("R")

PUBLIC: Final = "public"
METRICS: Final = "metrics:read"
SCRAPER_CHECK_SECONDS: Final = 2.0
"""How long the check of a known scraper's key may take. The gauges take as long as a call of the store, and Prometheus
waits ten seconds for both."""
ANY_KEY: Final = "any"
"""What an endpoint needs that every valid key may call."""
MAX_KEYS: Final = 10_000
MAX_VALUES: Final = 50_000
MAX_FIELDS: Final = 100
"""The maximum number of top-level fields in a body; each unknown one adds a line to the error response."""
BATCH_FACTOR: Final = 16
"""How much larger the body of a batch may be than that of a single job."""
MAX_SHOWN_CHARS: Final = 100
_TOO_MANY_FIELDS: Final = f"over {MAX_FIELDS:,} fields"
_PROXY_HEADERS: Final = frozenset({"forwarded", "via", "x-real-ip"})
_PROXY_PREFIX: Final = "x-forwarded-"
_JSON: Final = re.compile(r"application/([a-z0-9!#$&^_.-]+\+)?json", re.IGNORECASE)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_READ_ONLY: Final = "this API is read-only; send the request to one that is not"
_CREATE_A_KEY: Final = "create a key with 'taskharbor keys create'"
_LOCAL_CALLER: Final = Caller("anonymous", frozenset(SCOPES))


def requires_scope(scope: str, *, body_factor: int = 1) -> Callable[[F], F]:
    """Set the scope that an endpoint requires; every endpoint must have one.

    ``PUBLIC`` requires no key, and ``ANY_KEY`` a valid one.
    """

    def mark(endpoint: F) -> F:
        endpoint.needs = scope  # type: ignore[attr-defined]
        endpoint.body_factor = body_factor  # type: ignore[attr-defined]
        return endpoint

    return mark


class ApiRequest(Request):
    """A request with an authenticated caller and a body whose size is limited while it is read."""

    caller: Caller
    needs: str
    max_body: int

    @property
    def api(self) -> AppState:
        """The state of the application."""
        api: AppState = self.app.state.taskharbor
        return api

    @property
    def root(self) -> str:
        """The path at which the application is mounted."""
        return str(self.scope.get("root_path", ""))

    @property
    def trace_context(self) -> TraceContext | None:
        """The W3C trace context in the headers; None if there is none or it is malformed."""
        return received_context(self.headers.getlist("traceparent"), self.headers.getlist("tracestate"))

    def may(self, scope: str) -> bool:
        """Return whether the caller has *scope*."""
        return is_allowed(scope, self.caller.scopes)

    async def check_caller(self) -> None:
        """Authenticate the caller and check its scope. Long requests repeat this check periodically."""
        self.caller = await (_scraper(self) if self.needs == METRICS else _caller(self))
        check_scope(self, self.needs)

    def check_writable(self) -> None:
        """Reject a request that changes something if the application is read-only."""
        if self.api.is_read_only and self.method not in _SAFE_METHODS:
            raise HttpProblem(HTTPStatus.FORBIDDEN, "read-only", _READ_ONLY)

    async def is_still_allowed(self) -> bool:
        """Return whether the caller still has access; True if the store is unavailable, since it sends no data then."""
        try:
            await self.check_caller()
        except HttpProblem as refused:
            return refused.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        except StoreUnavailable:
            return True
        return True

    @property
    def shows_payload(self) -> bool:
        """Whether the caller may see payloads and results."""
        return self.may("payload:read")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in chunks; raise as soon as it exceeds the limit, or its client is gone."""
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.max_body:
            raise self._too_large()
        size = 0
        try:
            async for chunk in super().stream():
                size += len(chunk)
                if size > self.max_body:
                    raise self._too_large()
                yield chunk
        except ClientDisconnect:  # no error of ours; its response is not read
            raise HttpProblem(HTTPStatus.BAD_REQUEST, "malformed", "the body is incomplete") from None

    async def json(self) -> Any:
        """Return the body, parsed by the strict rules for payloads."""
        if not hasattr(self, "_strict"):
            body = await self.body()
            try:
                self._strict = await self.compute(len(body), _parsed, body)
            except PayloadNotDecodable as error:
                raise _malformed(error.reason) from None
        return self._strict

    async def compute(self, size: int, work: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Return the result of *work*; run it in another thread if it processes *size* bytes and that is large."""
        if size < MIN_OFFLOAD_BYTES:
            return work(*args, **options)
        return await self.api.store.compute(work, *args, **options)

    @property
    def size(self) -> int:
        """The size in bytes of the body that was read."""
        return len(getattr(self, "_body", b""))

    def _too_large(self) -> HttpProblem:
        detail = f"the body is larger than {self.max_body:,} bytes; store the data elsewhere and pass a reference"
        # The rest of the body is not read, so the connection cannot be reused.
        headers = {"Connection": "close"}
        return HttpProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large", detail, headers=headers)


class ApiRoute(APIRoute):
    """A route that checks the caller's scope and the names of query parameters."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        # "$" also matches before a trailing newline: "nightly\n" would match the route of "nightly".
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)

    @property
    def needs(self) -> str:
        """The scope that the route requires."""
        needed: str = self.endpoint.needs  # type: ignore[attr-defined]
        return needed

    @property
    def body_model(self) -> type[BaseModel] | None:
        """The model of the body that the route takes, if any."""
        given = None if self.body_field is None else self.body_field.field_info.annotation
        kinds = [each for each in (given, *get_args(given)) if isinstance(each, type)]
        return next((each for each in kinds if issubclass(each, BaseModel)), None)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        scope, factor = self.needs, self.endpoint.body_factor  # type: ignore[attr-defined]
        known = frozenset(_query_names(self.dependant))
        takes_body = self.body_field is not None
        handle = super().get_route_handler()

        async def handler(original: Request) -> Response:
            request = ApiRequest(original.scope, original.receive)
            request.max_body = request.api.max_body * factor
            request.needs = scope
            if scope != PUBLIC:
                await request.check_caller()
            request.check_writable()
            if request.scope["query_string"]:
                _check_names(request, known)
            if takes_body:
                await _check_media_type(request)
            return await handle(request)

        return handler


async def local_caller(request: ApiRequest) -> Caller | None:
    """Return the caller of an API that needs no keys, or None if it needs them. Other origins are rejected."""
    if await request.api.key_rule.needs_keys():
        return None
    _check_origin(request)
    return _LOCAL_CALLER


async def _caller(request: ApiRequest) -> Caller:
    local = await local_caller(request)
    if local is not None:
        return local
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    key = await request.api.store.key(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        detail = (
            "missing or invalid API key; send 'Authorization: Bearer thk_...' ('taskharbor keys create' creates a key)"
        )
        raise HttpProblem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
    return Caller(f"key:{key.id} {key.name}", frozenset(key.scopes), key.id)


async def _scraper(request: ApiRequest) -> Caller:
    """Return the caller. While the store is away, one that read the metrics before is the same one."""
    given, scrapers = request.headers.get("authorization", ""), request.api.scrapers
    known = scrapers.get(given)
    try:
        async with asyncio.timeout(None if known is None else SCRAPER_CHECK_SECONDS):
            caller = await _caller(request)
    except (StoreUnavailable, TimeoutError):
        if known is None:
            raise
        if known is _LOCAL_CALLER:
            _check_origin(request)
        return known
    except HttpProblem as refused:
        if refused.status_code == HTTPStatus.UNAUTHORIZED:
            scrapers.forget(given)
        raise
    scrapers.remember(given, caller)
    return caller


def check_scope(request: ApiRequest, scope: str) -> None:
    """Reject a caller that lacks *scope*."""
    if scope != ANY_KEY and not request.may(scope):
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        headers = {"WWW-Authenticate": challenge}
        detail = f"this request needs a key with the scope {scope} ('taskharbor keys create NAME --scope {scope}')"
        raise HttpProblem(HTTPStatus.FORBIDDEN, "missing-scope", detail, headers=headers, scope=scope)


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters of an endpoint and of what it depends on."""
    yield from (each.alias for each in dependant.query_params)
    for each in dependant.dependencies:
        yield from _query_names(each)


def _check_names(request: ApiRequest, known: frozenset[str]) -> None:
    """Reject unknown query parameters; otherwise a misspelled filter would list everything."""
    for name in request.query_params:
        if name not in known:
            field_problem(f"query: {name}", f"unknown parameter; known: {', '.join(sorted(known)) or 'none'}")


async def _check_media_type(request: ApiRequest) -> None:
    """Reject a body that is not declared as JSON.

    A browser sends a form or plain text to another site without asking that site, but asks before it sends JSON. So a
    page of another site cannot create jobs in an API without keys on this machine, whatever else protects it.
    """
    declared = request.headers.get("content-type", "")
    if _JSON.fullmatch(declared.partition(";")[0].strip()) or not await request.body():
        return
    given = f"its Content-Type is {one_line(declared, limit=MAX_SHOWN_CHARS)}" if declared else "it has no Content-Type"
    detail = (
        f"the body is not declared as JSON: {given}; send 'Content-Type: application/json', as in"
        " curl --json '{...}' URL or curl -H 'Content-Type: application/json' -d '{...}' URL"
    )
    headers = {"Accept": "application/json"}
    raise HttpProblem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail, headers=headers)


def _check_origin(request: ApiRequest) -> None:
    """Reject cross-origin requests to an API without keys, which any browser on this machine can reach."""
    host = request.headers.get("host", "")
    if request.api.only_local_hosts:
        _check_direct(request)
    if request.api.only_local_hosts and not is_local(url_parts(f"//{host}").hostname or ""):
        detail = f"without API keys, only localhost and loopback addresses are accepted as Host; {_CREATE_A_KEY}"
        raise HttpProblem(HTTPStatus.FORBIDDEN, "foreign-host", detail)
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    # A form of a page without a referrer has the origin "null"; that it is of this site, the browser says.
    is_own = site == "same-origin" or not origin or url_parts(origin).netloc == host
    if site == "cross-site" or not is_own:
        detail = (
            f"cross-origin request rejected: without API keys, pages of other sites have no access; {_CREATE_A_KEY}"
        )
        raise HttpProblem(HTTPStatus.FORBIDDEN, "foreign-origin", detail)


def _check_direct(request: ApiRequest) -> None:
    """Reject requests that came through a proxy: it may run on this machine, but its clients may be anywhere."""
    for name in request.headers:
        if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX):
            detail = (
                "without API keys, only requests from this machine are accepted, and a proxy sent this one"
                f" (header {name}); {_CREATE_A_KEY}"
            )
            raise HttpProblem(HTTPStatus.FORBIDDEN, "proxied-without-keys", detail)


def url_parts(url: str) -> SplitResult:
    """Return the parts of what a client sent as a URL; empty ones if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def is_local(host: str) -> bool:
    """Return whether *host* is a loopback address or ``localhost``."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(body: bytes) -> Any:
    check_json_limits(body, max_keys=MAX_KEYS, max_values=MAX_VALUES)
    value = strict_json(body)
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise PayloadNotDecodable(_TOO_MANY_FIELDS)
    return value


def _malformed(reason: str) -> HttpProblem:
    return HttpProblem(HTTPStatus.BAD_REQUEST, "malformed", f"the body is not strict JSON: {reason}")
