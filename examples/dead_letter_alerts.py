"""Raises an alert for every dead letter: a consumer of the events that workers with SQS publish.

python -m examples.dead_letter_alerts     until Ctrl-C; credentials and region as boto3 finds them

Events come at least once, and in any order; a repeat carries the same ``event_id``. Of a real
consumer the ids that were seen belong into a database, with the alert.
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
REMEMBERED: Final = 10_000
PAUSE: Final = 5.0  # seconds, while the queue service is away


class Alerts:
    """Passes each event on once, and deletes its message only after that."""

    def __init__(self, transport: Transport, raise_alert: Callable[[dict[str, Any]], None]) -> None:
        self._transport = transport
        self._raise_alert = raise_alert
        self._seen: dict[str, None] = {}

    def tick(self, wait: timedelta = WAIT) -> int:
        """Take what there is, and return how many events were new."""
        deliveries = self._transport.receive(DEAD_EVENTS_QUEUE, most=10, wait=wait, visibility=VISIBILITY)
        new = sum(self._take(event) for delivery in deliveries if (event := read(delivery.body)) is not None)
        self._transport.delete(DEAD_EVENTS_QUEUE, [delivery.receipt_handle for delivery in deliveries])
        return new

    def _take(self, event: dict[str, Any]) -> bool:
        if event["event_id"] in self._seen:
            return False
        self._raise_alert(event)
        self._seen[event["event_id"]] = None
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True


def read(body: str) -> dict[str, Any] | None:
    """Return the event, or None where somebody else's message came this way: it is dropped."""
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
                threading.Event().wait(PAUSE)


if __name__ == "__main__":
    main()
