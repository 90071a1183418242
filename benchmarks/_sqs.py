"""Shared helpers of the delivery benchmarks: test credentials, queues and counts."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.delivery.sqs import SqsTransport
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, QueueSpec
from tests.delivery.test_endpoint import control
from tests.support.transport_subjects import KEYS, REGION

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE: Final = "default"
NAME: Final = "taskharbor-default"
OPERATIONS: Final = ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")
TIMEOUT_SECONDS: Final = 300.0


@contextmanager
def credentials() -> Iterator[None]:
    """Set test credentials for this process and its children, and hide real ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_CONFIG_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true"}.items():
            patch.setenv(name, value)
        yield


@contextmanager
def transport_to(url: str, *, visibility: timedelta) -> Iterator[SqsTransport]:
    """Yield a transport for the endpoint at *url*, with all queues created."""
    with closing(SqsTransport(endpoint_url=url, region=REGION)) as transport:
        keep = timedelta(days=1)
        transport.ensure_queues(
            [QueueSpec(name=name, visibility=visibility, retention=keep) for name in (QUEUE, DEAD_EVENTS_QUEUE)]
        )
        yield transport


def depth(url: str) -> int:
    """Return how many job messages the endpoint holds."""
    counts: list[int] = control(url, {})["depths"][NAME]
    return sum(counts)


def asked(url: str) -> dict[str, Any]:
    """Return how often each operation was called, as counted by the endpoint."""
    counts: dict[str, Any] = control(url, {})["requests"]
    return counts


class Count:
    """Counts jobs without a lock, because all handlers run on one thread."""

    def __init__(self) -> None:
        self.count = self._goal = 0
        self._is_reached = threading.Event()

    async def handle(self, _job: Any) -> None:
        self.count += 1
        if self.count == self._goal:
            self._is_reached.set()

    def wait_for(self, goal: int) -> None:
        self._goal = goal
        if self.count < goal and not self._is_reached.wait(TIMEOUT_SECONDS):
            raise TimeoutError(f"{self.count:,} of {goal:,} jobs ran")
        self._is_reached.clear()
