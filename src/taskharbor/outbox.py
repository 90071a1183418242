"""Publish dead-letter events from the outbox, and purge dead letters."""

from __future__ import annotations

import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, StoreUnavailable, TaskHarborError, UsageError
from taskharbor.core.failure import Failure
from taskharbor.core.hooks import EventsPublished
from taskharbor.core.messages import resend_interval
from taskharbor.core.model import PUBLISHER_AWAY, DeadTaskEvent
from taskharbor.core.results import Kept, Published, Removed, Unpublished
from taskharbor.core.text import make_storable, one_line
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, ItemFailure, OutgoingMessage
from taskharbor.observability.failure_log import STORE, FailureLog
from taskharbor.observability.hook_caller import NO_HOOKS
from taskharbor.runtime import NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import OutboxRow
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver
    from taskharbor.observability.hook_caller import HookCaller

    Publish = Callable[[Sequence[DeadTaskEvent]], Sequence[ItemFailure | None]]

Publisher = Callable[[DeadTaskEvent], object]
"""Publishes a dead-letter event. If it raises it is called again, so it may get the same ``event_id`` twice."""

_LOG: Final = logging.getLogger("taskharbor.outbox")
OUTBOX_BATCH: Final = 100
OUTBOX_LOCK: Final = timedelta(seconds=60)
PERIOD: Final = timedelta(seconds=30)
"""The pause if the relay is not woken."""
FIRST_RETRY: Final = timedelta(seconds=1)
MAX_RETRY: Final = timedelta(minutes=5)
MAX_PUBLISH_ATTEMPTS: Final = 300
"""The maximum number of attempts to publish an event; they take about a day."""
MAX_ERROR_CHARS: Final = 500
MAX_LOGGED_CHARS: Final = 200
CALLABLE_BATCH: Final = 10
"""The events claimed for a callable under one lock. They are published one by one, and may take 6 s each."""
NO_PUBLISHER: Final = "no publisher"
CLOSE_AFTER: Final = timedelta(hours=1)
"""The age at which the janitor closes events: the first publisher may start after the first dead letter."""


class OutboxRelay:
    """Publishes every dead-letter event at least once. Repeats carry the same ``event_id``.

    *publish* takes events and returns None or a failure for each. A failed event is retried with
    increasing delays, and finally given up with the reason recorded. No job waits for its event.
    """

    def __init__(
        self,
        driver: Driver,
        publish: Publish,
        *,
        most: int = MAX_PUBLISH_ATTEMPTS,
        batch: int = OUTBOX_BATCH,
        failures: FailureLog | None = None,
        call_hooks: HookCaller = NO_HOOKS,
    ) -> None:
        self._driver = driver
        self._call_hooks = call_hooks
        self._failures = failures or FailureLog(_LOG)
        self._publish = publish
        self._most = most
        self._batch = batch

    def tick(self) -> timedelta:
        """Publish a batch of events, and return the time until the next tick."""
        try:
            return self._relay()
        except StoreUnavailable as error:
            self._failures.unavailable(STORE, error)
            return FIRST_RETRY

    def _relay(self) -> timedelta:
        rows = self._driver.maintenance.claim_outbox(limit=self._batch, lock=OUTBOX_LOCK)
        if not rows:
            return PERIOD
        results = [self._result(row, answer) for row, answer in zip(rows, self._published(rows), strict=True)]
        self._driver.maintenance.settle_outbox(results)
        if self._call_hooks:
            self._call_hooks(_published_event(results))
        pauses = [each.retry_in for each in results if isinstance(each, Unpublished) and each.retry_in is not None]
        return min(pauses, default=NO_PAUSE if len(rows) == self._batch else PERIOD)

    def _published(self, rows: Sequence[OutboxRow]) -> Sequence[ItemFailure | None]:
        try:
            return self._publish([row.event for row in rows])
        except TaskHarborError as error:
            return [ItemFailure(type(error).__name__, str(error), is_permanent=False)] * len(rows)

    def _result(self, row: OutboxRow, failed: ItemFailure | None) -> Published | Unpublished:
        event = row.event
        if failed is None:
            return Published(event.event_id)
        gives_up = failed.is_permanent or row.attempts >= self._most
        reason = make_storable(failed.reason, limit=MAX_ERROR_CHARS)
        if gives_up:
            message = "giving up on dead-letter event for job %s after %d attempts: %s"
            shown = one_line(reason, limit=MAX_LOGGED_CHARS)
            _LOG.error(message, event.job_id, row.attempts, shown, extra=_fields(event))
        elif row.attempts == 1:
            _LOG.warning(
                "dead-letter event for job %s not published; retrying: %s",
                event.job_id,
                one_line(reason, limit=MAX_LOGGED_CHARS),
                extra=_fields(event),
            )
        retry_in = None if gives_up else resend_interval(row.attempts, first=FIRST_RETRY, cap=MAX_RETRY)
        return Unpublished(event.event_id, reason, retry_in)


def _published_event(results: Sequence[Published | Unpublished]) -> EventsPublished:
    unpublished = [each for each in results if isinstance(each, Unpublished)]
    given_up = sum(each.retry_in is None for each in unpublished)
    return EventsPublished(count=len(results) - len(unpublished), failed=len(unpublished) - given_up, given_up=given_up)


def _fields(event: DeadTaskEvent) -> dict[str, object]:
    """Return the attributes of the log records about an event."""
    return {
        "job_id": str(event.job_id),
        "type": event.type,
        "queue": event.queue,
        "attempt": event.attempt_count,
        "worker": event.worker_id,
    }


def publish_to(transport: Transport, queue: str = DEAD_EVENTS_QUEUE) -> Publish:
    """Return a function that publishes events to *queue* of a transport."""
    return lambda events: transport.send(queue, [OutgoingMessage(encode_event(event)) for event in events])


def to_callable(publisher: Publisher) -> Publish:
    """Return a function that calls *publisher* with each event. An error means that the event was not published."""
    check_publisher(publisher)

    def publish(event: DeadTaskEvent) -> ItemFailure | None:
        try:
            returned = publisher(event)
        except BaseException as error:  # noqa: BLE001  user code: one that calls sys.exit() must not hold up other events
            return ItemFailure(type(error).__name__, str(Failure.of(error)), is_permanent=False)
        if inspect.isawaitable(returned):  # of a lambda or a wrapper around a coroutine function: nothing was published
            if inspect.iscoroutine(returned):
                returned.close()  # otherwise Python warns that it was not awaited
            return ItemFailure("UsageError", _AWAITABLE, is_permanent=False)
        return None

    return lambda events: [publish(event) for event in events]


_AWAITABLE: Final = "the publisher returned an awaitable, which nothing awaits; it must be a sync function"


def check_publisher(publisher: Publisher) -> None:
    """Raise `UsageError` for a coroutine function: nothing would await it, and every event would seem published."""
    call = getattr(publisher, "__call__", None)  # noqa: B004  it may be an async method
    if call is None or inspect.iscoroutinefunction(publisher) or inspect.iscoroutinefunction(call):
        rule = "must be a sync function of one DeadTaskEvent"
        raise UsageError(Problem(field="publisher", value=repr(publisher), rule=rule))


def relay_for(
    driver: Driver,
    failures: FailureLog | None = None,
    call_hooks: HookCaller = NO_HOOKS,
    *,
    publisher: Publisher | None,
    transport: Transport | None,
    queue: str | None,
) -> OutboxRelay | None:
    """Return the relay to *publisher* if given, otherwise to *queue* of *transport*; None without either."""
    if publisher is not None:
        return OutboxRelay(
            driver, to_callable(publisher), batch=CALLABLE_BATCH, failures=failures, call_hooks=call_hooks
        )
    if transport is None or queue is None:
        return None
    return OutboxRelay(driver, publish_to(transport, queue), failures=failures, call_hooks=call_hooks)


def close_unpublished(
    driver: Driver, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None
) -> int:
    """Close events as `NO_PUBLISHER` if the store has no active publisher, and return how many.

    The store decides, so a process without a publisher never closes an event that another process
    is going to publish.
    """
    return driver.maintenance.close_outbox(
        NO_PUBLISHER, unseen_for=PUBLISHER_AWAY, older_than=older_than, limit=limit, job_ids=job_ids
    )


def purge(driver: Driver, job_ids: Sequence[JobId], *, older_than: timedelta, give_up: str | None = None) -> Removed:
    """Remove dead letters that died at least *older_than* ago, and return why others were kept.

    An unpublished event keeps a job only if the store has a publisher. With *give_up*, a reason, such
    events are given up.
    """
    close_events(driver, job_ids, give_up=give_up)
    count = driver.maintenance.purge(older_than=older_than, limit=len(job_ids), job_ids=job_ids)
    return Removed(count=count, kept={} if count == len(job_ids) else _kept_counts(driver, job_ids, older_than, count))


def close_events(driver: Driver, job_ids: Sequence[JobId], *, give_up: str | None) -> None:
    """Close the events of these jobs if the store has no publisher; with *give_up*, a reason, in any case."""
    while close_unpublished(driver, older_than=timedelta(0), limit=OUTBOX_BATCH, job_ids=job_ids) == OUTBOX_BATCH:
        pass
    if give_up is not None:
        give_up_events(driver, job_ids, give_up)


def give_up_events(driver: Driver, job_ids: Sequence[JobId], reason: str) -> None:
    """Give up the unpublished events of these jobs, even if there is a publisher."""
    waiting = [row.event.event_id for row in driver.inspector.outbox(job_ids) if not row.is_done]
    driver.maintenance.settle_outbox([Unpublished(event_id, reason, retry_in=None) for event_id in waiting])


def _kept_counts(driver: Driver, job_ids: Sequence[JobId], older_than: timedelta, removed: int) -> dict[Kept, int]:
    """Return how many of *job_ids* were kept, by reason. Read after the purge, for information only."""
    until = driver.inspector.now() - older_than
    jobs = driver.inspector.get(job_ids)
    held = {row.event.job_id for row in driver.inspector.outbox(list(jobs)) if not row.is_done}
    kept = Counter({Kept.NOT_FOUND: max(0, len(job_ids) - removed - len(jobs))})
    for job in jobs.values():
        if job.dead_at is None:
            kept[Kept.NOT_DEAD] += 1
        elif job.dead_at > until:
            kept[Kept.TOO_YOUNG] += 1
        else:
            kept[Kept.UNPUBLISHED if job.id in held else Kept.IN_USE] += 1
    return {reason: kept[reason] for reason in Kept if kept[reason]}


def encode_event(event: DeadTaskEvent) -> str:
    """Return the JSON text of an event."""
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
