"""Checks that a worker has the codec that wrote the payloads in its store."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.client import agree_on_codec
from taskharbor.core.errors import CodecMismatch, SchemaOutOfDate, StoreRefused, StoreUnavailable
from taskharbor.observability.failure_log import STORE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskharbor.core.codec import Codec
    from taskharbor.drivers.base import Driver
    from taskharbor.observability.failure_log import FailureLog
    from taskharbor.worker.stop_request import StopRequest

_LOG: Final = logging.getLogger("taskharbor.worker")
RETRY_PAUSE: Final = timedelta(seconds=1)


class CodecCheck:
    """Prevents claims until the worker's codec was compared with the store's.

    Otherwise every job that a worker with another codec claims would fail as not decodable.
    """

    def __init__(self, driver: Driver, codec: Codec, stop: StopRequest, failures: FailureLog) -> None:
        self._driver, self._codec = driver, codec
        self._stop, self._failures = stop, failures
        self._is_done = False
        self.refusal: CodecMismatch | SchemaOutOfDate | None = None

    def begin(self) -> None:
        """Check now. If the store is unavailable, the claiming ticks check again.

        Raises `CodecMismatch`, `SchemaOutOfDate`, and `StoreRefused`.
        """
        try:
            agree_on_codec(self._driver, self._codec)
        except StoreRefused:
            raise
        except StoreUnavailable as error:
            self._failures.unavailable(STORE, error)
        else:
            self._is_done = True

    def guarded(self, ticks: Mapping[str, Callable[[], timedelta]]) -> Mapping[str, Callable[[], timedelta]]:
        """Return the claiming *ticks*, changed so that they claim only after the check."""
        return ticks if self._is_done else {name: self._guarded(tick) for name, tick in ticks.items()}

    def raise_refusal(self) -> None:
        """Raise the error that was found after the start and stopped the worker, if any."""
        if self.refusal is not None:
            raise self.refusal

    def _guarded(self, tick: Callable[[], timedelta]) -> Callable[[], timedelta]:
        return lambda: tick() if self._is_done or self._stop.is_set or self._check() else RETRY_PAUSE

    def _check(self) -> bool:
        try:
            self.begin()
        except StoreRefused as error:  # not at the start: it may be reconfigured meanwhile
            self._failures.unavailable(STORE, error)
        except (CodecMismatch, SchemaOutOfDate) as error:
            _LOG.error("stopping worker: %s", error)
            self.refusal = error
            self._stop.set()
            return True  # run the tick once more: it sees the stop request
        return self._is_done
