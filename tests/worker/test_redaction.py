"""Texts of a handler's error are stored and logged as the user's `redact` returns them."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Harbor, MemoryDriver
from taskharbor.core.outcome import Cancel, DeadLetter
from taskharbor.core.states import Status
from tests.support.worker_rig import drained, enqueue, stored

if TYPE_CHECKING:
    from taskharbor.core.model import Job


def hide(text: str) -> str:
    return re.sub("hunter2", "***", text)


@pytest.mark.parametrize("error", [ValueError, DeadLetter, Cancel])
def test_a_secret_is_neither_stored_nor_logged(error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    def fail(_job: Job) -> None:
        secret = "hunter2"
        raise error(f"the password is {secret}")

    driver = MemoryDriver()
    job_id = enqueue(driver, "run", max_attempts=1)
    with caplog.at_level(logging.DEBUG, "taskharbor"):
        drained(driver, {"run": fail}, redact=hide)

    [attempt] = driver.inspector.attempts([job_id])
    texts = [repr(stored(driver, job_id)), repr(attempt), repr(driver.inspector.outbox([job_id])), caplog.text]
    assert "hunter2" not in "".join(texts)
    assert "the password is ***" in texts[1]
    assert "the password is ***" in caplog.text
    assert [record for record in caplog.records if record.exc_info] == []


def test_without_redact_an_error_is_stored_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_job: Job) -> None:
        raise ValueError("the password is hunter2")

    driver = MemoryDriver()
    enqueue(driver, "run", max_attempts=1)
    drained(driver, {"run": fail})

    assert "the password is hunter2" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_of_redact_hides_the_text_and_the_attempt_is_recorded(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_job: Job) -> None:
        raise LookupError("the password is hunter2")

    def refuse(_text: str) -> str:
        raise error

    driver = MemoryDriver()
    job_id = enqueue(driver, "run", max_attempts=1)
    drained(driver, {"run": fail}, redact=refuse)

    job = stored(driver, job_id)
    assert (job.status, job.last_error) == (Status.DEAD, f"LookupError: (not shown: redact raised {error.__name__})")
    assert "hunter2" not in caplog.text


def test_the_redact_of_a_harbor_is_that_of_its_workers() -> None:
    with Harbor("memory://", redact=hide) as harbor:

        @harbor.task(max_attempts=1)
        def log_in() -> Any:
            raise ValueError("hunter2")

        handle = log_in.enqueue()
        harbor.worker().drain()

        job = harbor.driver.inspector.get([handle.id])[handle.id]
    assert job.last_error == "ValueError: ***"
