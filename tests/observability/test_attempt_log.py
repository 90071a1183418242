"""The log lines of attempts: their level, their text, and the attributes of their records."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import MemoryDriver
from taskharbor.core.outcome import Cancel, DeadLetter, Retry, Snooze
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, drained, ended, enqueue, running_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.worker import Context

HOUR: Final = timedelta(hours=1)
TOOK: Final = r"[\d.]+ (ms|s)"


def raising(error: BaseException) -> Callable[[Job], None]:
    def handler(_job: Job) -> None:
        raise error

    return handler


def logged(
    caplog: pytest.LogCaptureFixture, handler: Callable[..., Any], *, level: int = logging.INFO, **fields: Any
) -> tuple[JobId, logging.LogRecord]:
    """Run a job, and return its id and the only record about it."""
    driver = MemoryDriver()
    job_id = enqueue(driver, "run", **fields)
    with caplog.at_level(level, "taskharbor"):
        drained(driver, {"run": handler})
    [record] = [each for each in caplog.records if str(job_id) in each.getMessage()]
    return job_id, record


def data(record: logging.LogRecord) -> dict[str, Any]:
    """Return the attributes that only records of attempts have."""
    of_all = {*vars(logging.makeLogRecord({})), "message", "asctime"}
    return {name: value for name, value in vars(record).items() if name not in of_all}


def test_a_success_is_info_with_its_duration(caplog: pytest.LogCaptureFixture) -> None:
    job_id, record = logged(caplog, lambda _job: "fine", queue="default", max_attempts=3)

    found = data(record)
    assert (record.levelname, record.name, record.exc_info) == ("INFO", "taskharbor.worker", None)
    assert re.fullmatch(rf"job {job_id} \(run\) attempt 1 of 3: succeeded in {TOOK}", record.getMessage())
    assert 0 <= found.pop("duration_ms") < LIMIT_SECONDS * 1_000
    assert found.pop("worker")
    assert found.pop("trace_id") is None
    assert found == {"job_id": str(job_id), "type": "run", "queue": "default", "attempt": 1, "max_attempts": 3}


def test_a_failure_is_a_warning_with_its_error_and_the_time_of_its_retry(caplog: pytest.LogCaptureFixture) -> None:
    began = datetime.now(UTC)
    job_id, record = logged(caplog, raising(Retry("no answer", after=HOUR)), level=logging.WARNING)

    text = rf"job {job_id} \(run\) attempt 1 of 20: failed after {TOOK}; retrying in 1 h: taskharbor.Retry: no answer"
    found = data(record)
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert re.fullmatch(text, record.getMessage())
    assert (found["error_class"], found["error"]) == ("taskharbor.Retry", "no answer")
    assert began + HOUR <= datetime.fromisoformat(found["retry_at"]) + timedelta(milliseconds=1)
    assert "traceback" not in found


def test_a_death_is_an_error_with_the_exception_and_its_message_once(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("no such user")
    job_id, record = logged(caplog, raising(error), level=logging.ERROR, max_attempts=1)

    head = (
        rf"job {job_id} \(run\) attempt 1 of 1: failed after {TOOK}; now a dead letter: attempts exhausted: ValueError"
    )
    text = logging.Formatter("%(message)s").format(record)
    assert (record.levelname, data(record)["error"]) == ("ERROR", "no such user")
    assert record.exc_info is not None
    assert record.exc_info[1] is error  # error trackers show its stack
    assert re.fullmatch(head, text.splitlines()[0])
    assert "\n    File " in text
    assert "in handler" in text
    assert text.endswith("\n  ValueError: no such user")
    assert text.count("no such user") == 1
    assert data(record)["traceback"].endswith("\nValueError: no such user\n")


def test_a_dead_letter_that_the_handler_raised_has_its_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    _, record = logged(caplog, raising(DeadLetter("no such address")))

    text = logging.Formatter("%(message)s").format(record)
    assert record.getMessage().endswith("; now a dead letter: taskharbor.DeadLetter")
    assert text.count(": no such address") == 1


def test_a_death_without_an_exception_has_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    _, record = logged(caplog, lambda _job: object())

    assert (record.levelname, record.exc_info) == ("ERROR", None)
    assert "; now a dead letter: its result cannot be stored: $: " in record.getMessage()
    assert data(record)["error"].startswith("its result cannot be stored: $: ")


def test_a_timeout_is_named_with_its_duration(caplog: pytest.LogCaptureFixture) -> None:
    def wait(_job: Job, ctx: Context) -> None:
        wait_until(lambda: ctx.is_cancelled)

    driver = MemoryDriver()
    with caplog.at_level(logging.WARNING, "taskharbor"), running_worker(driver, {"run": wait}):
        job_id = enqueue(driver, "run", timeout=timedelta(milliseconds=50), max_attempts=1)
        ended(driver, job_id)
        wait_until(lambda: "dead letter" in caplog.text)

    [line] = [each for each in caplog.messages if "dead letter" in each]
    assert re.fullmatch(
        rf"job {job_id} \(run\) attempt 1 of 1: timed out after {TOOK}; now a dead letter: attempts exhausted", line
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Snooze(HOUR), rf"snoozed after {TOOK}; due again in 1 h"),
        (Cancel("no longer wanted"), rf"canceled after {TOOK}: no longer wanted"),
        (Cancel(), rf"canceled after {TOOK}"),
    ],
)
def test_a_snooze_and_a_cancel_are_one_line_each(error: Exception, text: str, caplog: pytest.LogCaptureFixture) -> None:
    job_id, record = logged(caplog, raising(error))

    assert record.levelname == "INFO"
    assert re.fullmatch(rf"job {job_id} \(run\) attempt 1 of 20: {text}", record.getMessage())


def test_a_release_at_a_stop_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def wait(_job: Job, ctx: Context) -> None:
        began.append(True)
        wait_until(lambda: ctx.is_cancelled)
        ctx.raise_if_cancelled()

    driver, began = MemoryDriver(), list[bool]()
    with caplog.at_level(logging.INFO, "taskharbor"), running_worker(driver, {"run": wait}):
        job_id = enqueue(driver, "run")
        wait_until(lambda: began != [])

    [line] = [each for each in caplog.messages if str(job_id) in each]
    assert re.fullmatch(rf"job {job_id} \(run\) attempt 1 of 20: released after {TOOK}; due again now", line)


def test_a_handlers_text_cannot_forge_a_line_or_steer_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    forged = "no\x1b[2J\n2030-01-01 INFO all\x9b is well\u202e\u2028"
    _, canceled = logged(caplog, raising(Cancel(forged)))
    _, dead = logged(caplog, raising(ValueError(forged)), max_attempts=1)

    lines = logging.Formatter("%(message)s").format(dead).splitlines()
    assert canceled.getMessage().isprintable()
    assert canceled.getMessage().endswith(r"no\x1b[2J 2030-01-01 INFO all\x9b is well\u202e")
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])


def test_a_long_reason_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    _, record = logged(caplog, raising(Cancel("\x1b" * 10_000)))

    assert len(record.getMessage()) < 400


def test_a_level_that_is_off_costs_no_line(caplog: pytest.LogCaptureFixture) -> None:
    driver = MemoryDriver()
    enqueue(driver, "run")
    with caplog.at_level(logging.ERROR, "taskharbor"):
        drained(driver, {"run": raising(ValueError("boom"))})

    assert caplog.messages == []
