"""What one application holds on to."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from taskharbor.api.problems import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from taskharbor.api.backend import Store
    from taskharbor.api.feed import Feed

_LOG: Final = logging.getLogger(__name__)
MAX_OPEN: Final = 2_000
KEYS_CHECK_SECONDS: Final = 3.0
"""How long an API that was started without keys may answer without one after the first was made."""


class Open:
    """The waits and streams that are open: each is cheap, but not free, and each must end when the server does."""

    def __init__(self, most: int = MAX_OPEN) -> None:
        self.most = most
        self._ends: dict[object, Callable[[], object]] = {}

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._ends)

    def enter(self, end: Callable[[], object]) -> Callable[[], object]:
        """Count one more, which *end* ends, or refuse it; return what is to be called when it is over."""
        if self.count >= self.most:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "too-many-open", f"{self.most:,} waits and streams are open")
        place = object()
        self._ends[place] = end
        return partial(self._ends.pop, place, None)

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
class Api:
    """The store, who may use it, and how much of it at once."""

    store: Store
    feed: Feed
    key_rule: KeyRule
    only_local_hosts: bool
    max_body: int
    open: Open = field(default_factory=Open)
