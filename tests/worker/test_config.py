"""Worker options that are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor import MemoryDriver
from taskharbor.core.claims import UNHANDLED_AFTER
from taskharbor.core.errors import UsageError
from taskharbor.testing.simulation.queue_service import QueueService
from taskharbor.worker import Worker
from taskharbor.worker.config import UNKNOWN_TYPES, checked_visibility, unhandled_delay

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def _make(**options: Any) -> Worker:
    return Worker(MemoryDriver(), transport=QueueService(lambda: 0.0), **options)


@pytest.mark.parametrize(
    ("options", "given", "heartbeat"),
    [
        ({"visibility": 10 * SECOND}, "10 s", "10 s"),
        ({"visibility": SECOND, "heartbeat": 2 * SECOND}, "1 s", "2 s"),
        ({"visibility": timedelta(minutes=1), "lease": HOUR}, "60 s", "20 min"),
        ({"lease": 40 * HOUR}, "12 h", "13 h"),
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


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "a" * 201])
def test_a_name_and_a_type_that_a_store_cannot_hold_are_refused(text: str) -> None:
    worker = Worker(MemoryDriver(), name="a" * 200)

    with pytest.raises(UsageError, match=r"name is 'a.*must have at most 200 characters, all of them printable"):
        Worker(MemoryDriver(), name=text)
    with pytest.raises(UsageError, match=r"type is 'a.*must match"):
        worker.register(text, print)


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("dead-letter:5m", UNHANDLED_AFTER),
        ("dead-letter:1.5h", timedelta(minutes=90)),
        ("dead-letter", timedelta(0)),
        ("leave", None),
    ],
)
def test_unknown_types_says_how_long_jobs_without_a_handler_are_left(text: str, delay: timedelta | None) -> None:
    assert unhandled_delay(text) == delay


@pytest.mark.parametrize("text", ["", "leave:5m", "dead-letter:", "dead-letter:5", "dead_letter", "keep"])
def test_unknown_types_that_cannot_be_read_are_rejected_with_the_rule(text: str) -> None:
    with pytest.raises(UsageError, match=r"^unknown_types is .*: write dead-letter:5m .* or leave$"):
        Worker(MemoryDriver(), unknown_types=text)


def test_by_default_jobs_without_a_handler_are_left_for_five_minutes() -> None:
    assert unhandled_delay(UNKNOWN_TYPES) == UNHANDLED_AFTER == timedelta(minutes=5)
