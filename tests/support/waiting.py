"""Wait for a condition, with a time limit."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import signal
    import subprocess
    from collections.abc import Callable

    from tests.support.cli_processes import Started

LIMIT_SECONDS: Final = 30.0  # far more than anything waited for takes
_PAUSE_SECONDS: Final = 0.01  # between two checks


def wait_until(is_true: Callable[[], bool], *, limit: float = LIMIT_SECONDS) -> float:
    """Wait until *is_true* returns true, and return how many seconds that took. Fail after *limit* seconds."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() < start + limit, "the condition did not become true in time"
        threading.Event().wait(_PAUSE_SECONDS)
    return time.monotonic() - start


def quickest(measure: Callable[[], float], *, enough: float, tries: int = 5) -> float:
    """Measure until a result is below *enough*, at most *tries* times, and return the smallest one.

    Another process may hold the processor for a while, but not each time.
    """
    results = [measure()]
    while min(results) >= enough and len(results) < tries:
        results.append(measure())
    return min(results)


async def wait_until_async(is_true: Callable[[], bool]) -> None:
    """Let other coroutines run until *is_true* returns true. Fail after `LIMIT_SECONDS`."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not is_true():  # noqa: ASYNC110  no event signals it
            await asyncio.sleep(_PAUSE_SECONDS)


def is_running(pid: int) -> bool:
    """Return whether there is a process with this pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def has_ended_by(process: subprocess.Popen[Any] | Started, number: signal.Signals) -> bool:
    """Send a signal and return whether *process* has ended. Signals that arrive together count once: call it again."""
    process.send_signal(number)
    return process.poll() is not None
