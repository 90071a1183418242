"""Telling the world of jobs that died: from the outbox to a queue of their own."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.answers import Published, Unpublished
from taskharbor.core.errors import StoreUnavailable, TaskHarborError
from taskharbor.core.messages import resend_interval
from taskharbor.core.text import storable
from taskharbor.delivery.transport import DEAD_EVENTS, Failed, Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.model import DeadTaskEvent, OutboxRow
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver

    Publish = Callable[[Sequence[str]], Sequence[Failed | None]]

_LOG: Final = logging.getLogger(__name__)
BATCH: Final = 100
LOCK: Final = timedelta(seconds=60)
AT_ONCE: Final = timedelta(0)
PERIOD: Final = timedelta(seconds=30)
"""How long to rest where nobody wakes us."""
FIRST_PAUSE: Final = timedelta(seconds=1)
LONGEST_PAUSE: Final = timedelta(minutes=5)
MOST: Final = 300
"""How often an event is tried: for a day, about."""
REASON: Final = 500  # characters of an error that are kept


class Relay:
    """Publishes the event of every death, at least once; its repeats carry the same ``event_id``.

    *publish* takes bodies, and answers for each: None, or why not. An event that does not get
    through is tried again, ever more seldom, and given up in the end, with the reason recorded.
    No job waits for that: its death is committed, and its own message is another matter.
    """

    def __init__(self, driver: Driver, publish: Publish, *, most: int = MOST) -> None:
        self._driver = driver
        self._publish = publish
        self._most = most

    def tick(self) -> timedelta:
        """Publish what waits to be, and say when to come back."""
        try:
            return self._relay()
        except StoreUnavailable as error:
            _LOG.warning("cannot tell of dead letters: %s", error)
            return FIRST_PAUSE

    def _relay(self) -> timedelta:
        rows = self._driver.upkeep.outbox_take(limit=BATCH, lock=LOCK)
        if not rows:
            return PERIOD
        results = [self._result(row, answer) for row, answer in zip(rows, self._published(rows), strict=True)]
        self._driver.upkeep.outbox_done(results)
        pauses = [each.again_in for each in results if isinstance(each, Unpublished) and each.again_in is not None]
        return min(pauses, default=AT_ONCE if len(rows) == BATCH else PERIOD)

    def _published(self, rows: Sequence[OutboxRow]) -> Sequence[Failed | None]:
        try:
            return self._publish([body(row.event) for row in rows])
        except TaskHarborError as error:
            return [Failed(type(error).__name__, str(error), is_ours=False)] * len(rows)

    def _result(self, row: OutboxRow, failed: Failed | None) -> Published | Unpublished:
        event = row.event
        if failed is None:
            return Published(event.event_id)
        is_over = failed.is_ours or row.attempts >= self._most
        why = storable(failed.why, limit=REASON)
        if is_over:
            _LOG.error("gave up telling of the death of job %s after %d times: %s", event.job_id, row.attempts, why)
        elif row.attempts == 1:
            _LOG.warning("cannot tell of the death of job %s, and will try again: %s", event.job_id, why)
        again_in = None if is_over else resend_interval(row.attempts, first=FIRST_PAUSE, cap=LONGEST_PAUSE)
        return Unpublished(event.event_id, why, again_in)


def to_queue(transport: Transport, queue: str = DEAD_EVENTS) -> Publish:
    """Return what publishes events to *queue*, where no job is ever sent."""
    return lambda bodies: transport.send(queue, [Outgoing(each) for each in bodies])


def body(event: DeadTaskEvent) -> str:
    """Return the event as it goes over the wire."""
    return json.dumps(
        {
            "event_id": event.event_id,
            "job_id": str(event.job_id),
            "type": event.type,
            "queue": event.queue,
            "worker_id": event.worker_id,
            "attempt_count": event.attempt_count,
            "max_attempts": event.max_attempts,
            "error": event.error,
            "dead_at": event.dead_at.isoformat(),
        },
        separators=(",", ":"),
    )
