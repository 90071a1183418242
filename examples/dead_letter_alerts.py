"""Raise an alert for every dead letter: a consumer of the events that workers publish to SQS.

python -m examples.dead_letter_alerts     until Ctrl-C; boto3 finds the credentials and the region

Events are delivered at least once and in any order. A repeated event has the same ``event_id``.
A real consumer should store the seen ids in a database, together with the alert.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import closing, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.delivery.sqs import PREFIX, SqsTransport
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, TransportUnavailable
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.delivery.transport import Transport

WAIT: Final = timedelta(seconds=20)
VISIBILITY: Final = timedelta(minutes=1)
MAX_SEEN: Final = 10_000
PAUSE_SECONDS: Final = 5.0  # while the queue service is unavailable


class Alerts:
    """Raises each alert once, and deletes its message afterwards."""

    def __init__(self, transport: Transport, raise_alert: Callable[[dict[str, Any]], None]) -> None:
        self._transport = transport
        self._raise_alert = raise_alert
        self._seen: dict[str, None] = {}

    def tick(self, wait: timedelta = WAIT) -> int:
        """Receive a batch of events and return how many were new."""
        deliveries = self._transport.receive(DEAD_EVENTS_QUEUE, most=10, wait=wait, visibility=VISIBILITY)
        new = sum(self._handle(event) for delivery in deliveries if (event := read(delivery.body)) is not None)
        self._transport.delete(DEAD_EVENTS_QUEUE, [delivery.receipt_handle for delivery in deliveries])
        return new

    def _handle(self, event: dict[str, Any]) -> bool:
        if event["event_id"] in self._seen:
            return False
        self._raise_alert(event)
        self._seen[event["event_id"]] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return True


def read(body: str) -> dict[str, Any] | None:
    """Return the event, or None for a message that is not an event and is dropped."""
    try:
        event = json.loads(body)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event_id" in event else None


def say(event: dict[str, Any]) -> None:
    attempts = f"{event['attempt_count']} of {event['max_attempts']} attempts"
    print(f"job {event['job_id']} ({event['type']}) died after {attempts}: {event['error']}", flush=True)


def main() -> None:
    settings = Settings.from_env()
    transport = SqsTransport(prefix=settings.sqs_prefix or PREFIX, region=settings.aws_region)
    with closing(transport), suppress(KeyboardInterrupt):
        alerts = Alerts(transport, say)
        while True:
            try:
                alerts.tick()
            except TransportUnavailable as error:
                print(f"{error}; trying again", file=sys.stderr, flush=True)
                threading.Event().wait(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
