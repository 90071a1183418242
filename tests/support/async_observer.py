"""An observer of coroutines that keeps what it gets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class AsyncObservations:
    """The cancel callbacks of suspended coroutines, and the keys of those that did not run."""

    def __init__(self) -> None:
        self.cancels: dict[Any, Callable[[], None]] = {}
        self.is_suspended = threading.Event()
        self.unstarted_keys: list[Any] = []

    def suspended(self, key: Any, cancel: Callable[[], None]) -> None:
        self.cancels[key] = cancel
        self.is_suspended.set()

    def unstarted(self, key: Any) -> None:
        self.unstarted_keys.append(key)
