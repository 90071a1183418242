"""The hooks of docs/hooks.md report to Sentry, through a transport that keeps what would be sent."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import sentry_sdk
from sentry_sdk.integrations import logging as sentry_logging
from sentry_sdk.transport import Transport

from taskharbor import Fixed, Harbor, RetryPolicy, Status
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentry_sdk.envelope import Envelope

    from taskharbor.core.hooks import Hook

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "hooks.md"
MIN_DELAY: Final = timedelta(microseconds=1)
DSN: Final = "https://key@sentry.invalid/1"


class KeptEvents(Transport):
    """A transport that sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture(scope="module", autouse=True)
def patched_loggers() -> Iterator[None]:
    """Undo what Sentry does to all loggers, once for a process, when its integration is first used."""
    call_handlers = logging.Logger.callHandlers
    yield
    logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]


@pytest.fixture
def sentry(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptEvents]:
    monkeypatch.setattr(sentry_logging, "_IGNORED_LOGGERS", {*sentry_logging._IGNORED_LOGGERS})  # noqa: SLF001  global
    kept = KeptEvents()
    # Of the default integrations only the one that sees log lines: the others would change this process for good.
    integrations = [sentry_logging.LoggingIntegration()]
    sentry_sdk.init(dsn=DSN, transport=kept, shutdown_timeout=0, default_integrations=False, integrations=integrations)
    yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.init(default_integrations=False)


def hook_of_the_page(name: str) -> Hook:
    [block] = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)  # an example of the documentation
    hook: Hook = names[name]
    return hook


def test_sentry_gets_deaths_only(sentry: KeptEvents) -> None:
    run_worker_until_dead(hook_of_the_page("report_deaths"))

    [event] = sentry.events
    assert event["tags"] == {"taskharbor.type": "divide", "taskharbor.queue": "mail"}
    assert event["contexts"]["job"]["reason"] == "attempts exhausted"
    [raised] = event["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ZeroDivisionError", "division by zero")
    assert raised["stacktrace"]["frames"][-1]["function"] == "divide"


def test_sentry_gets_every_failed_attempt(sentry: KeptEvents) -> None:
    run_worker_until_dead(hook_of_the_page("report_failures"))

    assert len(sentry.events) == 2
    assert {each["exception"]["values"][-1]["type"] for each in sentry.events} == {"ZeroDivisionError"}


def test_sentry_gets_a_redacted_death_as_a_message(sentry: KeptEvents) -> None:
    run_worker_until_dead(hook_of_the_page("report_deaths"), redact=lambda _text: "redacted")

    [event] = sentry.events
    assert "exception" not in event
    assert (event["level"], event["message"]) == ("error", "divide: redacted")


def run_worker_until_dead(hook: Hook, **options: Any) -> None:
    """Run a job that succeeds, and one whose two attempts fail."""
    harbor = Harbor("memory://", hooks=[hook], **options)

    @harbor.task(max_attempts=2, queue="mail", retry=RetryPolicy(backoff=Fixed(MIN_DELAY)))
    def divide(by: int) -> float:
        return 1 / by

    divide.enqueue(1)
    dead = divide.enqueue(0)
    worker = harbor.worker()
    worker.start()
    try:
        wait_until(lambda: dead.status() is Status.DEAD)
    finally:
        worker.stop()
