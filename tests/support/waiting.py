"""Wait for a condition, with a time limit."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_SECONDS: Final = 30.0  # far more than anything waited for takes
_PAUSE_SECONDS: Final = 0.01  # between two checks


def wait_until(is_true: Callable[[], bool], *, limit: float = LIMIT_SECONDS) -> float:
    """Wait until *is_true* returns true, and return how many seconds that took. Fail after *limit* seconds."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() < start + limit, "the condition did not become true in time"
        threading.Event().wait(_PAUSE_SECONDS)
    return time.monotonic() - start
