"""Storing how far handlers are, now and then, for people who watch."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.model import Progress
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.hand import Execution

_LOG: Final = logging.getLogger(__name__)
WRITE_INTERVAL: Final = timedelta(milliseconds=250)
IDLE: Final = timedelta(seconds=60)


class ProgressWriter:
    """Keeps the last word of each handler, and stores all of them in one statement, at most once in a while."""

    def __init__(self, runtime: Runtime, driver: Driver, *, wake: Callable[[], None]) -> None:
        self._driver = driver
        self._wake = wake
        self._lock = runtime.lock()
        self._said: dict[Execution, Progress] = {}
        self._rests = False

    def save(self, execution: Execution, progress: Progress) -> None:
        with self._lock:
            self._said[execution] = progress
            rests, self._rests = self._rests, True
        if not rests:
            self._wake()

    def tick(self) -> timedelta:
        with self._lock:
            said, self._said = self._said, {}
            self._rests = bool(said)
        if not said:
            return IDLE
        try:
            self._driver.save_progress([(execution.claim.lease, progress) for execution, progress in said.items()])
        except StoreUnavailable as error:
            _LOG.warning("cannot store how far %d jobs are: %s", len(said), error)
        return WRITE_INTERVAL
