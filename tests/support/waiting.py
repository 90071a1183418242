"""Waiting for what comes true by itself, but not for ever."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT: Final = 30.0  # seconds; far more than anything waited for takes
_PAUSE: Final = 0.01  # seconds between two looks


def wait_until(is_true: Callable[[], bool], *, limit: float = LIMIT) -> float:
    """Return how many seconds it took, or fail."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() < start + limit, "it never came true"
        threading.Event().wait(_PAUSE)
    return time.monotonic() - start
