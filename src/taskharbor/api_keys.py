"""Issue and check API keys."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.model import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from taskharbor.drivers.base import Inspector

SCOPES: Final = (
    "admin",
    "jobs:control",
    "jobs:read",
    "jobs:write",
    "metrics:read",
    "payload:read",
    "queues:control",
    "schedules:write",
)
ADMIN: Final = "admin"
"""The scope that includes all others."""
MAX_NAME_CHARS: Final = 200
SESSION_LIFETIME: Final = timedelta(hours=12)
_KEY: Final = re.compile(r"thk_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})", re.ASCII)
_SESSION: Final = re.compile(r"ths_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})", re.ASCII)
_NO_KEY: Final = bytes(32)
_MAX_CACHED_KEYS: Final = 1_024


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. ``text`` is the key itself; it is shown once and never stored."""

    key: ApiKey
    text: str = field(repr=False)


def issue_key(
    name: str,
    scopes: Collection[str],
    *,
    now: datetime,
    expires_at: datetime | None = None,
    parent: str | None = None,
) -> IssuedKey:
    """Create a key with *scopes*. It is not valid until `Control.add_keys` has stored it.

    With *parent*, the id of a key, it is a session, which is revoked with that key.

    >>> from datetime import UTC, datetime
    >>> issued = issue_key("ci", ["jobs:write"], now=datetime(2030, 1, 1, tzinfo=UTC))
    >>> issued.text.startswith(f"thk_{issued.key.id}_")
    True
    """
    unknown = sorted({*scopes} - {*SCOPES})
    if unknown or not scopes:
        raise UsageError(
            Problem(field="scopes", value=", ".join(unknown) or "empty", rule=f"must be of {', '.join(SCOPES)}")
        )
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise UsageError(
            Problem(field="name", value=repr(name[:60]), rule=f"must have 1 to {MAX_NAME_CHARS} characters")
        )
    key_id = secrets.token_hex(6)
    text = f"thk_{key_id}_{secrets.token_urlsafe(32)}"
    key = ApiKey(
        id=key_id,
        name=name,
        digest=key_digest(text),
        scopes=tuple(sorted({*scopes})),
        created_at=now,
        expires_at=expires_at,
        parent=parent,
    )
    return IssuedKey(key, text)


def issue_session(parent: ApiKey, *, now: datetime, lifetime: timedelta = SESSION_LIFETIME) -> IssuedKey:
    """Create a session: a short key with the scopes of *parent*, valid while *parent* is, for *lifetime* at most.

    Its text begins with ``ths_``; the HTTP API does not accept it.
    """
    key_id = secrets.token_hex(6)
    text = f"ths_{key_id}_{secrets.token_urlsafe(32)}"
    key = ApiKey(
        id=key_id,
        name=parent.name,
        digest=key_digest(text),
        scopes=parent.scopes,
        created_at=now,
        expires_at=now + lifetime,
        parent=parent.id,
    )
    return IssuedKey(key, text)


def key_digest(text: str) -> bytes:
    """Return the stored digest of a key. A key has 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(text.encode()).digest()


def is_allowed(scope: str, scopes: Collection[str]) -> bool:
    """Return whether *scopes* include *scope*."""
    return scope in scopes or ADMIN in scopes


class KeyCache:
    """Finds keys and caches each result for *seconds*, for which a revoked key may still be accepted.

    With *sessions*, it finds sessions instead, and returns the key that a session was made from.
    """

    def __init__(
        self,
        inspector: Callable[[], Inspector],
        *,
        seconds: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
        sessions: bool = False,
    ) -> None:
        self._pattern = _SESSION if sessions else _KEY
        self._inspector = inspector  # called each time: the store may be opened later or reopened
        self._seconds = seconds
        self._monotonic = monotonic
        self._cached: OrderedDict[bytes, tuple[float, ApiKey | None]] = OrderedDict()
        self._lock = threading.Lock()

    def remembered(self, text: str) -> tuple[bool, ApiKey | None]:
        """Return whether the result is cached, and the cached key."""
        until, key = self._cached.get(key_digest(text), (0.0, None))
        return (True, key) if self._monotonic() < until else (False, None)

    def find(self, text: str) -> ApiKey | None:
        """Return the valid key with this *text* from the store; None if it is unknown, expired or revoked."""
        parts = self._pattern.fullmatch(text)
        if parts is None:
            return None
        given = key_digest(text)
        inspector = self._inspector()
        stored = inspector.keys([parts["id"]]).get(parts["id"])
        if stored is not None and (stored.parent is None) is (self._pattern is _SESSION):
            stored = None  # of the other kind, whatever its text: a session is checked with its parent
        # Compare even if there is no key, so that the time taken does not reveal which ids exist.
        is_same = hmac.compare_digest(given, _NO_KEY if stored is None else stored.digest)
        now, seconds = inspector.now(), self._seconds
        key = stored if stored is not None and is_same and is_valid(stored, now) else None
        ends = [] if key is None else [key.expires_at]
        if key is not None and self._pattern is _SESSION:
            key = _parent(inspector, key, now)
            ends += [] if key is None else [key.expires_at]
        seconds = min([seconds, *((end - now).total_seconds() for end in ends if end is not None)])
        self._cache(given, key, self._monotonic() + seconds)
        return key

    def forget(self, text: str) -> None:
        """Drop the cached result for *text*."""
        with self._lock:
            self._cached.pop(key_digest(text), None)

    def _cache(self, given: bytes, key: ApiKey | None, until: float) -> None:
        with self._lock:
            self._cached[given] = (until, key)
            self._cached.move_to_end(given)
            while len(self._cached) > _MAX_CACHED_KEYS:
                self._cached.popitem(last=False)


def _parent(inspector: Inspector, session: ApiKey, now: datetime) -> ApiKey | None:
    """Return the key that *session* was made from, if it is valid."""
    parent = None if session.parent is None else inspector.keys([session.parent]).get(session.parent)
    return parent if parent is not None and is_valid(parent, now) else None


def has_valid_key(inspector: Inspector) -> bool:
    """Return whether the store has a valid key that is no session."""
    now = inspector.now()
    return any(is_valid(key, now) and key.parent is None for key in inspector.keys().values())


def is_valid(key: ApiKey, now: datetime) -> bool:
    """Return whether the key is neither revoked nor expired at *now*."""
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
