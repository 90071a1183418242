"""What one application holds on to."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from taskharbor.api.problems import HttpProblem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from taskharbor.api.sse import EventFeed
    from taskharbor.api.store import StoreGateway

_LOG: Final = logging.getLogger("taskharbor.api")
MAX_OPEN: Final = 2_000
MAX_OPEN_PER_KEY: Final = 500
"""Of those, what one key may have open: so one client leaves places for the others."""
KEYS_CHECK_SECONDS: Final = 3.0
"""How long an API that was started without keys may answer without one after the first was made."""


class OpenStreams:
    """The waits and streams that are open: each is cheap, but not free, and each must end when the server does."""

    def __init__(self, most: int = MAX_OPEN, most_per_key: int = MAX_OPEN_PER_KEY) -> None:
        self.most = most
        self.most_per_key = most_per_key
        self._ends: dict[object, Callable[[], object]] = {}
        self._by_key: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._ends)

    def enter(self, end: Callable[[], object], key_id: str | None) -> Callable[[], object]:
        """Count one more of a key, which *end* ends, or refuse it; return what is to be called when it is over."""
        if self.count >= self.most:
            raise HttpProblem(
                HTTPStatus.TOO_MANY_REQUESTS, "too-many-open", f"{self.most:,} waits and streams are open"
            )
        if key_id is not None and self._by_key[key_id] >= self.most_per_key:
            detail = f"this key has {self.most_per_key:,} waits and streams open"
            raise HttpProblem(HTTPStatus.TOO_MANY_REQUESTS, "too-many-open", detail)
        place = object()
        self._ends[place] = end
        if key_id is not None:
            self._by_key[key_id] += 1
        return partial(self._leave, place, key_id)

    def _leave(self, place: object, key_id: str | None) -> None:
        if self._ends.pop(place, None) is None or key_id is None:
            return
        self._by_key[key_id] -= 1
        if not self._by_key[key_id]:
            del self._by_key[key_id]  # or keys that are gone would be counted until the process ends

    def close(self) -> None:
        """End all of them."""
        for end in [*self._ends.values()]:
            end()


class KeyRule:
    """Whether requests need a key: always, never, or (None) from the time on that the store has a good one.

    Once they do, they do until the process ends, whatever becomes of that key.
    """

    def __init__(self, needs_keys: bool | None, has_keys: Callable[[], Awaitable[bool]]) -> None:  # noqa: FBT001  three
        self._needs_keys = needs_keys
        self._has_keys = has_keys
        self._check_at = 0.0

    async def needs_keys(self) -> bool:
        """Return whether a request needs a key now. The store is asked at most every few seconds."""
        if self._needs_keys is None and time.monotonic() >= self._check_at:
            has_keys = await self._has_keys()
            self._check_at = time.monotonic() + KEYS_CHECK_SECONDS
            if has_keys and self._needs_keys is None:
                self._needs_keys = True
                _LOG.warning("there is an API key now: every request needs one")
        return bool(self._needs_keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """The store, who may use it, and how much of it at once."""

    store: StoreGateway
    feed: EventFeed
    key_rule: KeyRule
    only_local_hosts: bool
    max_body: int
    open: OpenStreams = field(default_factory=OpenStreams)
