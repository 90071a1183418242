"""API keys: who may use the API, and for what."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
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
    "payload:read",
    "queues:control",
    "schedules:write",
)
ADMIN: Final = "admin"
"""Opens everything."""
MAX_NAME: Final = 200
_KEY: Final = re.compile(r"thk_(?P<id>[0-9a-f]{12})_(?P<secret>[A-Za-z0-9_-]{43})", re.ASCII)
_NO_KEY: Final = bytes(32)
_REMEMBERED: Final = 1_024


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. ``text`` is shown once, to whoever asked for it, and stored nowhere."""

    key: ApiKey
    text: str = field(repr=False)


def issue_key(name: str, scopes: Collection[str], *, now: datetime, expires_at: datetime | None = None) -> IssuedKey:
    """Make a key that opens *scopes*. It is of no use before `Control.add_keys` stored it.

    >>> from datetime import UTC, datetime
    >>> issued = issue_key("ci", ["jobs:write"], now=datetime(2030, 1, 1, tzinfo=UTC))
    >>> issued.text.startswith(f"thk_{issued.key.id}_")
    True
    """
    unknown = sorted({*scopes} - {*SCOPES})
    if unknown or not scopes:
        raise UsageError(Problem(field="scopes", value=", ".join(unknown) or "empty", rule=f"take {', '.join(SCOPES)}"))
    if not 0 < len(name) <= MAX_NAME:
        raise UsageError(Problem(field="name", value=repr(name[:60]), rule=f"must have 1 to {MAX_NAME} characters"))
    key_id = secrets.token_hex(6)
    text = f"thk_{key_id}_{secrets.token_urlsafe(32)}"
    key = ApiKey(
        id=key_id,
        name=name,
        digest=key_digest(text),
        scopes=tuple(sorted({*scopes})),
        created_at=now,
        expires_at=expires_at,
    )
    return IssuedKey(key, text)


def key_digest(text: str) -> bytes:
    """Return what is stored of a key. It has 256 random bits, so that a slow hash would add nothing."""
    return hashlib.sha256(text.encode()).digest()


def is_allowed(scope: str, scopes: Collection[str]) -> bool:
    """Tell whether *scopes* open what *scope* stands for."""
    return scope in scopes or ADMIN in scopes


class KeyCache:
    """Knows which keys are good, and remembers each answer for *seconds*: so late may a revoked key still open."""

    def __init__(
        self,
        inspector: Callable[[], Inspector],
        *,
        seconds: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inspector = inspector  # asked for each time: a store may be opened late, and anew
        self._seconds = seconds
        self._monotonic = monotonic
        self._known: OrderedDict[bytes, tuple[float, ApiKey | None]] = OrderedDict()
        self._changing = threading.Lock()

    def remembered(self, text: str) -> tuple[bool, ApiKey | None]:
        """Return whether there is an answer without asking the store, and the answer."""
        until, key = self._known.get(key_digest(text), (0.0, None))
        return (True, key) if self._monotonic() < until else (False, None)

    def find(self, text: str) -> ApiKey | None:
        """Ask the store, and return the key that *text* is; None where it is none, or opens nothing any more."""
        parts = _KEY.fullmatch(text)
        if parts is None:
            return None
        given = key_digest(text)
        inspector = self._inspector()
        stored = inspector.keys([parts["id"]]).get(parts["id"])
        # Compared in any case, so that the time taken does not tell which ids there are.
        is_same = hmac.compare_digest(given, _NO_KEY if stored is None else stored.digest)
        now, seconds = inspector.now(), self._seconds
        key = stored if stored is not None and is_same and is_valid(stored, now) else None
        if key is not None and key.expires_at is not None:
            seconds = min(seconds, (key.expires_at - now).total_seconds())
        self._remember(given, key, self._monotonic() + seconds)
        return key

    def _remember(self, given: bytes, key: ApiKey | None, until: float) -> None:
        with self._changing:
            self._known[given] = (until, key)
            self._known.move_to_end(given)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)


def has_valid_key(inspector: Inspector) -> bool:
    """Tell whether the store has a key that opens anything now."""
    now = inspector.now()
    return any(is_valid(key, now) for key in inspector.keys().values())


def is_valid(key: ApiKey, now: datetime) -> bool:
    """Tell whether the key opens anything at *now*."""
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
