"""The state of one API application: open streams, the rule for API keys, the store and its event feed."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from taskharbor.api.problems import HttpProblem
from taskharbor.api_keys import key_digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from prometheus_client import CollectorRegistry

    from taskharbor.api.sse import EventFeed
    from taskharbor.api.store import Caller, StoreGateway

UnknownTypes = Literal["refuse", "accept"]
"""What to do with new jobs of types that no task of the app has."""
_LOG: Final = logging.getLogger("taskharbor.api")
MAX_OPEN: Final = 2_000
MAX_OPEN_PER_KEY: Final = 500
"""How many of them one key may have open, so that one client cannot use them all."""
SCRAPER_SECONDS: Final = 86_400.0
MAX_SCRAPERS: Final = 100
KEYS_CHECK_SECONDS: Final = 3.0
"""How long an API that was started without keys may accept requests without a key after the first key is created."""


class OpenStreams:
    """The open waits and streams: limits their number, and ends them when the server stops."""

    def __init__(self, max_open: int = MAX_OPEN, max_per_key: int = MAX_OPEN_PER_KEY) -> None:
        self.max_open = max_open
        self.max_per_key = max_per_key
        self._ends: dict[object, Callable[[], object]] = {}
        self._by_key: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """The number of open waits and streams."""
        return len(self._ends)

    def enter(self, end: Callable[[], object], key_id: str | None) -> Callable[[], object]:
        """Register a stream that *end* closes, or reject it; return a function to call when the stream has ended."""
        if self.count >= self.max_open:
            detail = f"the server has {self.max_open:,} waits and streams open, its limit; try again"
            raise HttpProblem(HTTPStatus.TOO_MANY_REQUESTS, "too-many-open", detail)
        if key_id is not None and self._by_key[key_id] >= self.max_per_key:
            detail = f"this key has {self.max_per_key:,} waits and streams open, its limit; close one, or try again"
            raise HttpProblem(HTTPStatus.TOO_MANY_REQUESTS, "too-many-open", detail)
        entry = object()
        self._ends[entry] = end
        if key_id is not None:
            self._by_key[key_id] += 1
        return partial(self._leave, entry, key_id)

    def _leave(self, entry: object, key_id: str | None) -> None:
        if self._ends.pop(entry, None) is None or key_id is None:
            return
        self._by_key[key_id] -= 1
        if not self._by_key[key_id]:
            del self._by_key[key_id]  # otherwise the counter would keep every key ever used

    def close(self) -> None:
        """End all open waits and streams."""
        for end in [*self._ends.values()]:
            end()


class KeyRule:
    """Whether requests need a key: always, never, or (None) as soon as the store has a valid key.

    Once keys are required, they stay required until the process ends, even if that key is revoked.
    """

    def __init__(self, needs_keys: bool | None, has_keys: Callable[[], Awaitable[bool]]) -> None:  # noqa: FBT001  three
        self._needs_keys = needs_keys
        self._has_keys = has_keys
        self._check_at = 0.0

    async def needs_keys(self) -> bool:
        """Return whether a request needs a key now. The store is queried at most once every three seconds."""
        if self._needs_keys is None and time.monotonic() >= self._check_at:
            has_keys = await self._has_keys()
            self._check_at = time.monotonic() + KEYS_CHECK_SECONDS
            if has_keys and self._needs_keys is None:
                self._needs_keys = True
                _LOG.warning("an API key was created; requests without a key are now rejected")
        return bool(self._needs_keys)


class KnownScrapers:
    """Who has read the metrics within a day, by the digest of what they sent to authenticate themselves.

    Their keys cannot be checked while the store is away, and then a scrape must not fail: it reports that the store is
    away. A key that was revoked meanwhile may read metrics until the store is back.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    def get(self, given: str) -> Caller | None:
        until, caller = self._known.get(key_digest(given), (0.0, None))
        return caller if self._monotonic() < until else None

    def remember(self, given: str, caller: Caller) -> None:
        self._known[key_digest(given)] = (self._monotonic() + SCRAPER_SECONDS, caller)
        self._known.move_to_end(key_digest(given))
        while len(self._known) > MAX_SCRAPERS:
            self._known.popitem(last=False)

    def forget(self, given: str) -> None:
        self._known.pop(key_digest(given), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """The state that the requests of one application share: store, event feed, key rule, limits and metrics."""

    store: StoreGateway
    feed: EventFeed
    key_rule: KeyRule
    only_local_hosts: bool
    max_body: int
    accepts_unknown: bool
    metrics: CollectorRegistry | None
    is_read_only: bool = False
    open: OpenStreams = field(default_factory=OpenStreams)
    scrapers: KnownScrapers = field(default_factory=KnownScrapers)
