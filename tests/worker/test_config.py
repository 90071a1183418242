"""Worker options that are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor import MemoryDriver
from taskharbor.core.errors import UsageError
from taskharbor.testing.simulation.queue_service import QueueService
from taskharbor.worker import Worker
from taskharbor.worker.config import checked_visibility

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def _make(**options: Any) -> Worker:
    return Worker(MemoryDriver(), transport=QueueService(lambda: 0.0), **options)


@pytest.mark.parametrize(
    ("options", "given", "heartbeat"),
    [
        ({"visibility": 10 * SECOND}, "0:00:10", "0:00:10"),
        ({"visibility": SECOND, "heartbeat": 2 * SECOND}, "0:00:01", "0:00:02"),
        ({"visibility": timedelta(minutes=1), "lease": HOUR}, "0:01:00", "0:20:00"),
        ({"lease": 40 * HOUR}, "12:00:00", "13:20:00"),
    ],
    ids=[
        "equal to the heartbeat",
        "shorter than a given heartbeat",
        "shorter than a third of the lease",
        "at its limit",
    ],
)
def test_a_visibility_not_longer_than_the_heartbeat_is_refused(
    options: dict[str, Any], given: str, heartbeat: str
) -> None:
    with pytest.raises(UsageError) as refused:
        _make(**options)

    text = str(refused.value)
    assert "visibility" in text
    assert given in text
    assert f"longer than the heartbeat ({heartbeat})" in text
    assert "raise visibility, or shorten heartbeat or lease" in text


def test_a_visibility_longer_than_the_heartbeat_is_accepted() -> None:
    _make(visibility=10 * SECOND + timedelta.resolution)


def test_a_long_lease_lengthens_the_default_visibility() -> None:
    _make(lease=HOUR)

    assert checked_visibility(None, HOUR, HOUR / 3) == HOUR
    assert checked_visibility(None, SECOND, SECOND / 3) == timedelta(minutes=1)


def test_a_worker_without_messages_has_no_visibility_to_check() -> None:
    Worker(MemoryDriver(), visibility=SECOND)
