"""The example consumer of dead-letter events, with an HTTP endpoint."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from examples.dead_letter_alerts import VISIBILITY, Alerts, say
from taskharbor.core.retry import Never, RetryPolicy
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, OutgoingMessage, QueueSpec
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.sqs import EndpointFaults
from taskharbor.worker import Worker
from tests.support.transport_subjects import REGION
from tests.support.waiting import wait_until
from tests.support.worker_rig import enqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import Job
    from taskharbor.testing.sqs import Endpoint

NAME: Final = "taskharbor-dead-events"
NOW: Final = timedelta(0)
SECOND: Final = timedelta(seconds=1)
QUEUES: Final = [
    QueueSpec(name=name, visibility=SECOND, retention=100 * SECOND) for name in ("default", DEAD_EVENTS_QUEUE)
]


@pytest.fixture
def transport(endpoint: Endpoint) -> Iterator[SqsTransport]:
    with closing(SqsTransport(endpoint_url=endpoint.url, region=REGION, answer_within=SECOND)) as made:
        made.ensure_queues(QUEUES)
        yield made


def event(number: int) -> dict[str, Any]:
    return {
        "event_id": f"{number}:1",
        "job_id": str(number),
        "type": "mail",
        "queue": "default",
        "worker_id": "w",
        "attempt_count": 3,
        "max_attempts": 3,
        "error": "ValueError: no such user",
        "dead_at": "2026-11-15T12:00:00+00:00",
    }


def publish(transport: SqsTransport, *numbers: int) -> None:
    transport.send(DEAD_EVENTS_QUEUE, [OutgoingMessage(json.dumps(event(number))) for number in numbers])


def test_repeats_of_an_event_raise_one_alert_and_are_deleted(endpoint: Endpoint, transport: SqsTransport) -> None:
    raised: list[str] = []
    alerts = Alerts(transport, lambda event: raised.append(event["event_id"]))
    publish(transport, 1, 2, 1)
    first = alerts.tick(NOW)
    publish(transport, 1, 2, 3)
    second = alerts.tick(NOW)

    assert (first, second) == (2, 1)
    assert sorted(raised) == ["1:1", "2:1", "3:1"]
    assert endpoint.depth(NAME) == (0, 0, 0)


def test_a_message_whose_alert_failed_is_redelivered(endpoint: Endpoint, transport: SqsTransport) -> None:
    raised: list[str] = []

    def page(event: dict[str, Any]) -> None:
        assert sum(endpoint.depth(NAME)) == 1, "deleted before the alert"
        raised.append(event["event_id"])
        if len(raised) == 1:
            raise ConnectionError("the pager is unavailable")

    alerts = Alerts(transport, page)
    publish(transport, 1)
    with pytest.raises(ConnectionError):
        alerts.tick(NOW)
    left = endpoint.depth(NAME)
    endpoint.advance(VISIBILITY)
    alerts.tick(NOW)

    assert left == (0, 1, 0)
    assert raised == ["1:1", "1:1"]
    assert endpoint.depth(NAME) == (0, 0, 0)


def test_an_event_whose_message_could_not_be_deleted_raises_no_second_alert(
    endpoint: Endpoint, transport: SqsTransport
) -> None:
    raised: list[str] = []
    alerts = Alerts(transport, lambda event: raised.append(event["event_id"]))
    publish(transport, 1)
    endpoint.faults = EndpointFaults(reject=1, operations=frozenset({"DeleteMessageBatch"}))
    alerts.tick(NOW)
    endpoint.faults = EndpointFaults()
    endpoint.advance(VISIBILITY)

    assert alerts.tick(NOW) == 0
    assert raised == ["1:1"]
    assert endpoint.depth(NAME) == (0, 0, 0)


def test_a_job_that_dies_raises_an_alert(transport: SqsTransport, capsys: pytest.CaptureFixture[str]) -> None:
    driver = MemoryDriver()
    worker = Worker(driver, transport=transport, receive_wait=SECOND, overdue_after=timedelta(milliseconds=1))
    worker.register("mail", fail, policy=RetryPolicy(backoff=Never()))
    worker.start()
    try:
        job_id = enqueue(driver, "mail")
        alerts = Alerts(transport, say)
        wait_until(lambda: alerts.tick(SECOND) == 1)
    finally:
        worker.stop(NOW)

    output = capsys.readouterr().out
    assert output.startswith(f"job {job_id} (mail) died after 1 of 20 attempts: ")
    assert "no such user" in output


def fail(_job: Job) -> None:
    raise ValueError("no such user")
