"""What one application holds on to."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from taskharbor.api.problems import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.api.backend import Store
    from taskharbor.api.feed import Feed

MAX_OPEN: Final = 2_000


class Open:
    """Counts the waits and streams that are open: each is cheap, but not free."""

    def __init__(self, most: int = MAX_OPEN) -> None:
        self._most = most
        self.count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more while inside, or refuse it."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        if self.count >= self._most:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, "too-many-open", f"{self._most:,} waits and streams are open")
        self.count += 1

    def leave(self) -> None:
        self.count -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The store, who may use it, and how much of it at once."""

    store: Store
    feed: Feed
    needs_keys: bool
    only_local_hosts: bool
    max_body: int
    open: Open = field(default_factory=Open)
