"""What one application holds on to."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from taskharbor.api.problems import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.api.backend import Store
    from taskharbor.api.feed import Feed

MAX_OPEN: Final = 2_000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The store, who may use it, and how much of it at once."""

    store: Store
    feed: Feed
    needs_keys: bool
    only_local_hosts: bool
    max_body: int
    open: Open = field(default_factory=Open)
