"""Who uses the dashboard: sessions made from API keys, the host's own users, and protection against forged requests."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from taskharbor.api.problems import HttpProblem
from taskharbor.api.routing import url_parts
from taskharbor.api.store import Caller, StoreThreads
from taskharbor.api_keys import SESSION_LIFETIME, KeyCache, issue_session, key_digest

if TYPE_CHECKING:
    from fastapi import Request, Response

    from taskharbor.api.store import StoreGateway
    from taskharbor.core.model import ApiKey
    from taskharbor.drivers.base import Driver

_LOG: Final = logging.getLogger("taskharbor.api")
SESSION_CACHE_SECONDS: Final = 2.0
"""For how long a page may be shown after its key was revoked. Streams check as often."""
SESSION_THREADS: Final = 2
MAX_TEXT_CHARS: Final = 200
_SEED_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Person:
    """A user of the dashboard, as the host application knows them. *scopes* are those of API keys."""

    name: str
    scopes: Collection[str]


Authorize = Callable[["Request"], "Person | Awaitable[Person | None] | None"]
"""Returns the user of a request, or None without a login. It must not block: make it async if it reads."""


class Sessions:
    """Creates, finds and ends sessions. A session is a key of its own; only its digest is stored."""

    def __init__(self, store: StoreGateway) -> None:
        self._store = store
        self._has_warned = False
        self._threads = StoreThreads(SESSION_THREADS)
        self._cache = KeyCache(lambda: store.backend.driver.inspector, seconds=SESSION_CACHE_SECONDS, sessions=True)

    def check_proxy(self, request: Request) -> None:
        """Log once that cookies are not secure because the proxy that serves https is not believed."""
        claimed = request.headers.get("x-forwarded-proto", "")
        if self._has_warned or claimed != "https" or request.url.scheme == "https":
            return
        self._has_warned = True
        proxy = "a proxy" if request.client is None else f"the proxy {request.client.host}"
        _LOG.warning(
            "%s says that it serves https, and is not trusted; cookies are not Secure: start the API with "
            "--forwarded-allow-ips, or set FORWARDED_ALLOW_IPS, to the address of the proxy",
            proxy,
        )

    async def find(self, text: str) -> ApiKey | None:
        """Return the key that the session *text* was made from, if both are valid."""
        is_known, key = self._cache.remembered(text)
        return key if is_known else await self._threads(self._cache.find, text)

    async def create(self, parent: ApiKey) -> str:
        """Store a session of *parent* and return its text."""
        text = await self._threads(_create, self._store.backend.driver, parent)
        await self._store.record_audit(caller_of(parent), "sessions.create", text.split("_")[1])
        return text

    async def end(self, text: str, caller: Caller) -> None:
        """Revoke a session."""
        session_id = text.split("_")[1]
        await self._threads(self._store.backend.driver.control.revoke_keys, [session_id])
        self._cache.forget(text)
        await self._store.record_audit(caller, "sessions.end", session_id)


def _create(driver: Driver, parent: ApiKey) -> str:
    issued = issue_session(parent, now=driver.inspector.now())
    driver.control.add_keys([issued.key])
    return issued.text


def caller_of(key: ApiKey) -> Caller:
    return Caller(f"key:{key.id} {key.name}", frozenset(key.scopes), key.id)


class Cookies:
    """The cookies of one mount: their names contain a hash of its path, so that two mounts do not share them."""

    def __init__(self, root: str) -> None:
        mark = hashlib.sha256(root.encode()).hexdigest()[:8]
        self.path = f"{root}/ui"
        self.session = f"taskharbor_{mark}"
        self.seed = f"taskharbor_seed_{mark}"
        self.look = f"taskharbor_look_{mark}"
        self.note = f"taskharbor_note_{mark}"

    def put(self, response: Response, name: str, value: str, *, request: Request, max_age: int | None = None) -> None:
        """Set a cookie that scripts cannot read and that requests from other sites do not carry."""
        response.set_cookie(
            name,
            value,
            max_age=max_age,
            path=self.path,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def put_session(self, response: Response, text: str, *, request: Request) -> None:
        seconds = int(SESSION_LIFETIME.total_seconds())
        self.put(response, self.session, text, request=request, max_age=seconds)

    def drop(self, response: Response, name: str) -> None:
        response.delete_cookie(name, path=self.path)


def new_seed() -> str:
    """Return a value for the cookie from which tokens of forms are made if there is no session."""
    return secrets.token_urlsafe(_SEED_BYTES)


def form_token(secret: str) -> str:
    """Return the token that forms carry. *secret* is a cookie's value, which no other site can read."""
    return hmac.new(key_digest(secret), b"csrf", hashlib.sha256).hexdigest()


def signature(text: str, secret: str) -> str:
    """Return the signature of *text*. A site of the same domain can set our cookies, but cannot sign them."""
    return hmac.new(key_digest(secret), text.encode(), hashlib.sha256).hexdigest()


def check_origin(request: Request) -> None:
    """Reject a change that does not come from a page of this site."""
    site = request.headers.get("sec-fetch-site")
    if site is None:
        origin = request.headers.get("origin")
        is_own = origin is not None and url_parts(origin).netloc == request.headers.get("host")
    else:
        is_own = site == "same-origin"
    if not is_own:
        raise HttpProblem(HTTPStatus.FORBIDDEN, "foreign-origin", "this form was sent from another site")


def check_token(given: str, secret: str | None) -> None:
    """Reject a change whose form has no valid token."""
    if secret is None or not hmac.compare_digest(given.encode(), form_token(secret).encode()):
        detail = "the form is too old, or your session has ended; go back, reload the page and try again"
        raise HttpProblem(HTTPStatus.FORBIDDEN, "invalid-token", detail)


def is_cross_site_link(request: Request) -> bool:
    """Return whether this is a link from another site, such as a chat, which carries no strict cookie."""
    headers = request.headers
    is_link = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate"
    return is_link and request.method == "GET"


def local_path(given: str, base: str) -> str:
    """Return *given* if it is a path of the dashboard at *base*, else the first page."""
    is_own = given == base or given.startswith((f"{base}/", f"{base}?"))
    return given if is_own and "\\" not in given and given.isprintable() else f"{base}/"
