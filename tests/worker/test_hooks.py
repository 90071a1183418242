"""Log lines about attempts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from taskharbor import MemoryDriver
from taskharbor.core.outcome import Cancel
from tests.support.worker_rig import drained, enqueue

if TYPE_CHECKING:
    import pytest

    from taskharbor.core.model import Job


def test_a_handlers_reason_cannot_forge_a_line_or_steer_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    driver = MemoryDriver()
    job_id = enqueue(driver, "stop")

    def handler(_job: Job) -> None:
        raise Cancel("no\x1b[2J\n2030-01-01 INFO all\x9b is well\u202e\u2028")

    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        drained(driver, {"stop": handler})

    [line] = [each for each in caplog.messages if f"job {job_id}" in each]
    assert line.isprintable()
    assert r"no\x1b[2J 2030-01-01 INFO all\x9b is well\u202e" in line


def test_a_long_reason_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    driver = MemoryDriver()
    enqueue(driver, "stop")

    def handler(_job: Job) -> Any:
        raise Cancel("\x1b" * 10_000)

    with caplog.at_level(logging.INFO, "taskharbor.worker"):
        drained(driver, {"stop": handler})

    assert max(map(len, caplog.messages)) < 400
