"""What every route does before its endpoint runs: who asks, may they, and is the body fit to be read."""

from __future__ import annotations

import re
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from urllib.parse import SplitResult, urlsplit

from fastapi import Request
from fastapi.routing import APIRoute

from taskharbor.api.problems import HttpProblem, field_problem
from taskharbor.api.store import LARGE_BYTES, Caller
from taskharbor.api_keys import SCOPES, is_allowed
from taskharbor.core.codec import strict_json
from taskharbor.core.errors import PayloadNotDecodable, StoreUnavailable
from taskharbor.core.json_limits import check_json_limits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from fastapi import Response

    from taskharbor.api.state import AppState

F = TypeVar("F", bound="Callable[..., Any]")
P = ParamSpec("P")
R = TypeVar("R")

PUBLIC: Final = "public"
MAX_KEYS: Final = 10_000
MAX_VALUES: Final = 50_000
MAX_FIELDS: Final = 100
"""The most fields of a body itself; each unknown one would be a line of the answer."""
BATCH_FACTOR: Final = 16
"""How many times as large as a single job's the body of a batch may be."""
_TOO_MANY_FIELDS: Final = f"over {MAX_FIELDS:,} fields"
_PROXY_HEADERS: Final = frozenset({"forwarded", "via", "x-real-ip"})
_PROXY_PREFIX: Final = "x-forwarded-"
_LOCAL_CALLER: Final = Caller("anonymous", frozenset(SCOPES))


def requires_scope(scope: str, *, body_factor: int = 1) -> Callable[[F], F]:
    """Say which scope an endpoint needs: a route without that is not built. ``PUBLIC`` needs none."""

    def mark(endpoint: F) -> F:
        endpoint.needs = scope  # type: ignore[attr-defined]
        endpoint.body_factor = body_factor  # type: ignore[attr-defined]
        return endpoint

    return mark


class ApiRequest(Request):
    """A request whose caller is known, and whose body is limited while it streams in."""

    caller: Caller
    needs: str
    max_body: int

    @property
    def api(self) -> AppState:
        """What the application stands on."""
        api: AppState = self.app.state.taskharbor
        return api

    @property
    def root(self) -> str:
        """The path under which the application lies."""
        return str(self.scope.get("root_path", ""))

    def may(self, scope: str) -> bool:
        """Tell whether the caller's key opens *scope*."""
        return is_allowed(scope, self.caller.scopes)

    async def check_caller(self) -> None:
        """Find out who asks, and refuse who may not. A request that lasts is checked again and again."""
        self.caller = await _caller(self)
        check_scope(self, self.needs)

    async def is_still_allowed(self) -> bool:
        """Return whether the caller may still be answered; if the store cannot tell, it has nothing to show either."""
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
        """Give the body piece by piece, and stop at the first byte too many."""
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.max_body:
            raise self._too_large()
        size = 0
        async for chunk in super().stream():
            size += len(chunk)
            if size > self.max_body:
                raise self._too_large()
            yield chunk

    async def json(self) -> Any:
        """Return the body by the strict rules of payloads."""
        if not hasattr(self, "_strict"):
            body = await self.body()
            try:
                self._strict = await self.compute(len(body), _parsed, body)
            except PayloadNotDecodable as error:
                raise _malformed(error.reason) from None
        return self._strict

    async def compute(self, size: int, work: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Return what *work* returns; it takes time by *size* in bytes, and if that is large runs in another thread."""
        if size < LARGE_BYTES:
            return work(*args, **options)
        return await self.api.store.compute(work, *args, **options)

    @property
    def size(self) -> int:
        """How many bytes the body has that was read."""
        return len(getattr(self, "_body", b""))

    def _too_large(self) -> HttpProblem:
        detail = f"the body is over {self.max_body:,} bytes: store it elsewhere and pass a reference"
        # What was not read is not wanted: the connection ends with the answer.
        headers = {"Connection": "close"}
        return HttpProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large", detail, headers=headers)


class ApiRoute(APIRoute):
    """A route that knows which scope it needs."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        # A line's end is a character like any other, or "nightly" would answer for "nightly\n".
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)

    @property
    def needs(self) -> str:
        """The scope without which nobody gets in."""
        needed: str = self.endpoint.needs  # type: ignore[attr-defined]
        return needed

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        scope, factor = self.needs, self.endpoint.body_factor  # type: ignore[attr-defined]
        known = frozenset(each.alias for each in self.dependant.query_params)
        handle = super().get_route_handler()

        async def handler(plain: Request) -> Response:
            request = ApiRequest(plain.scope, plain.receive)
            request.max_body = request.api.max_body * factor
            request.needs = scope
            if scope != PUBLIC:
                await request.check_caller()
            if request.scope["query_string"]:
                _check_names(request, known)
            return await handle(request)

        return handler


async def _caller(request: ApiRequest) -> Caller:
    if not await request.api.key_rule.needs_keys():
        _check_origin(request)
        return _LOCAL_CALLER
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    key = await request.api.store.key(text.strip()) if kind.lower() == "bearer" else None
    if key is None:
        detail = "send a key that is good: 'Authorization: Bearer thk_...'; 'taskharbor keys create' makes one"
        raise HttpProblem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})
    return Caller(f"key:{key.id} {key.name}", frozenset(key.scopes), key.id)


def check_scope(request: ApiRequest, scope: str) -> None:
    """Refuse a caller whose key does not open *scope*."""
    if not request.may(scope):
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        headers = {"WWW-Authenticate": challenge}
        raise HttpProblem(
            HTTPStatus.FORBIDDEN, "missing-scope", f"this needs the scope {scope}", headers=headers, scope=scope
        )


def _check_names(request: ApiRequest, known: frozenset[str]) -> None:
    """Refuse a parameter that nobody knows: a filter that is misspelt would otherwise list everything."""
    for name in request.query_params:
        if name not in known:
            field_problem(
                f"query: {name}", f"there is no such parameter; there are {', '.join(sorted(known)) or 'none'}"
            )


def _check_origin(request: ApiRequest) -> None:
    """Keep the pages of strangers out of an API without keys, which any browser on this machine can reach."""
    host = request.headers.get("host", "")
    if request.api.only_local_hosts:
        _check_direct(request)
    if request.api.only_local_hosts and not is_local(_parts(f"//{host}").hostname or ""):
        raise HttpProblem(
            HTTPStatus.FORBIDDEN, "foreign-host", "without keys this answers to names of this machine only"
        )
    origin = request.headers.get("origin")
    if request.headers.get("sec-fetch-site") == "cross-site" or (origin and _parts(origin).netloc != host):
        raise HttpProblem(HTTPStatus.FORBIDDEN, "foreign-origin", "another site's page may not use this")


def _check_direct(request: ApiRequest) -> None:
    """Refuse what came through a proxy: that may be on this machine, and its clients anywhere."""
    for name in request.headers:
        if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIX):
            detail = (
                f"without keys this answers to this machine only, and a proxy sent this request (header {name});"
                " make a key: 'taskharbor keys create'"
            )
            raise HttpProblem(HTTPStatus.FORBIDDEN, "proxied-without-keys", detail)


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # an address that is none
        return urlsplit("")


def is_local(host: str) -> bool:
    """Tell whether *host* is this machine, by a name or address that nobody else can use."""
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
