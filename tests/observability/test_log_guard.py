"""Log handlers and filters of the user that raise."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import taskharbor
from taskharbor import MemoryDriver, Status
from taskharbor.observability.line_handler import LineHandler, line_handlers
from taskharbor.observability.log_guard import LOGGERS, guard_loggers
from tests.support.worker_rig import ended, enqueue, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import Job


class Raising(logging.Handler):
    """A user's handler that does not catch its own errors."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(f"cannot log {record.name}")


class RaisingFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise RuntimeError(f"cannot filter {record.name}")


@pytest.fixture(params=["handler", "filter"])
def raising_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let each record of TaskHarbor raise an error in the thread that logs it."""
    handler, log_filter = Raising(), RaisingFilter()
    for log in map(logging.getLogger, LOGGERS):
        if request.param == "handler":
            log.addHandler(handler)
        else:
            log.addFilter(log_filter)
    yield
    for log in map(logging.getLogger, LOGGERS):
        log.removeHandler(handler)
        log.removeFilter(log_filter)


def _fail(_job: Job) -> None:
    raise ValueError("bad")


async def _fail_async(_job: Job) -> None:
    raise ValueError("bad")


@pytest.mark.usefixtures("raising_logs")
def test_a_log_handler_that_raises_stops_no_loop_and_no_job(capfd: pytest.CaptureFixture[str]) -> None:
    driver = MemoryDriver()
    handlers: dict[str, Any] = {"sync": _fail, "async": _fail_async, "good": lambda _job: None}

    with running_worker(driver, handlers, concurrency=1, unknown_types="dead-letter") as worker:
        first = [ended(driver, enqueue(driver, job_type, max_attempts=1)) for job_type in ("sync", "async", "unknown")]
        second = [ended(driver, enqueue(driver, job_type)) for job_type in ("good", "good")]
        worker.stop()

    assert [job.status for job in first] == [Status.DEAD] * 3
    assert [job.status for job in second] == [Status.SUCCEEDED] * 2
    assert "RuntimeError: cannot" in capfd.readouterr().err


def test_every_logger_of_a_service_is_guarded() -> None:
    source = Path(taskharbor.__file__).parent
    found = {
        name
        for file in source.rglob("*.py")
        for name in re.findall(r'_LOG: Final = logging.getLogger\("(.+)"\)', file.read_text())
    }

    assert found == set(LOGGERS)


def test_a_guarded_logger_still_writes_batches() -> None:
    log = logging.getLogger("taskharbor.worker")
    handler = LineHandler(logging.Formatter(), lambda _: [])
    log.addHandler(handler)
    log.propagate = False
    try:
        guard_loggers()
        guarded = line_handlers(log)
        log.makeRecord = log.makeRecord  # type: ignore[method-assign]
        replaced = line_handlers(log)
    finally:
        vars(log).pop("makeRecord", None)
        log.propagate = True
        log.removeHandler(handler)

    assert (guarded, replaced) == ([handler], None)
