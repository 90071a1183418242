"""What the benchmarks of delivery share: credentials for no real account, and queues."""

from __future__ import annotations

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


@contextmanager
def credentials() -> Iterator[None]:
    """Let this process and its children find keys that are worth nothing, and no others."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_CONFIG_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true"}.items():
            patch.setenv(name, value)
        yield


@contextmanager
def transport_to(url: str, *, visibility: timedelta) -> Iterator[SqsTransport]:
    """Give a transport to the endpoint at *url*, where all queues are made."""
    with closing(SqsTransport(endpoint_url=url, region=REGION)) as transport:
        keep = timedelta(days=1)
        transport.ensure_queues(
            [QueueSpec(name=name, visibility=visibility, retention=keep) for name in (QUEUE, DEAD_EVENTS_QUEUE)]
        )
        yield transport


def depth(url: str) -> int:
    """Return how many messages for jobs there are, seen by the endpoint itself."""
    counts: list[int] = control(url, {})["depths"][NAME]
    return sum(counts)


def asked(url: str) -> dict[str, Any]:
    """Return how often each operation was called, by the endpoint's own count."""
    counts: dict[str, Any] = control(url, {})["requests"]
    return counts
