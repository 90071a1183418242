"""A thread that calls a function repeatedly, with pauses."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.observability.failure_log import FailureLog

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG: Final = logging.getLogger("taskharbor.runtime")
ERROR_PAUSE: Final = timedelta(seconds=1)


class LoopPause(Protocol):
    """What a loop does between two ticks."""

    def wait(self, pause: timedelta) -> None:
        """Wait for *pause* or a wake since the last wait. Called after each tick, in the thread of the loop."""

    def wake(self) -> None:
        """End the current wait, or else the next one. May be called from any thread."""


class EventPause:
    """A pause that only a wake ends early."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait(self, pause: timedelta) -> None:
        if pause:
            self._woken.wait(pause.total_seconds())
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()


class ThreadLoop:
    """A thread that calls a tick repeatedly. An error in a tick is logged, and the loop continues after a second."""

    def __init__(self, name: str, tick: Callable[[], timedelta | None], between: LoopPause) -> None:
        self._name = name
        self._tick = tick
        self._between = between
        self._failures = FailureLog(_LOG)
        self._after_error = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"taskharbor-{name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._between.wake()

    def join(self, timeout: timedelta) -> bool:
        self._thread.join(timeout.total_seconds())
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (pause := self._next_pause()) is not None:
            self._wait(pause)

    def _wait(self, pause: timedelta) -> None:
        try:
            self._between.wait(pause)
        except Exception as error:  # noqa: BLE001  of a driver's listener: the loop continues without it
            self._failures.unexpected(f"pause of the {self._name} loop", error)
            self._after_error.wait(ERROR_PAUSE.total_seconds())

    def _next_pause(self) -> timedelta | None:
        try:
            return self._tick()
        except BaseException as error:  # noqa: BLE001  even a hook's SystemExit must not end the loop
            self._failures.unexpected(f"{self._name} loop", error)
            return ERROR_PAUSE
