"""Saying that a worker is alive, and what it runs."""

from __future__ import annotations

import logging
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.model import WorkerRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.hand import ExecutionSlots

_LOG: Final = logging.getLogger(__name__)
PERIOD: Final = timedelta(seconds=10)


def new_worker_id() -> str:
    """Return a name for a worker, by which people find its process."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_token().hex[:8]}"


class WorkerHeartbeat:
    """Writes a worker's record again and again; whoever is silent for minutes is forgotten."""

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        executions: ExecutionSlots,
        *,
        worker: str,
        queues: Sequence[str],
        types: Callable[[], tuple[str, ...]],
    ) -> None:
        self._driver = driver
        self._slots = executions
        self._worker = worker
        self._queues = tuple(queues)
        self._types = types
        self._started_at = runtime.now()

    def tick(self) -> timedelta:
        record = WorkerRecord(
            id=self._worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._queues,
            types=self._types(),
            concurrency=self._slots.concurrency,
            lost_slots=self._slots.lost_slots,
            started_at=self._started_at,
        )
        try:
            self._driver.maintenance.record_worker(record)
        except StoreUnavailable as error:
            _LOG.warning("cannot say that this worker is alive: %s", error)
        return PERIOD
