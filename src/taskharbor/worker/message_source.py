"""Claims jobs by their messages: one receiver for each queue, and the waitlist for free slots."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.messages import parse_message
from taskharbor.core.results import Refused
from taskharbor.delivery.transport import BATCH_LIMIT, TransportRefused, TransportUnavailable
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.runtime import NO_PAUSE
from taskharbor.worker.message_acks import ReceivedMessage
from taskharbor.worker.polling_source import FULL_PAUSE, MIN_POLL_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.model import Claim
    from taskharbor.delivery.transport import IncomingMessage
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.claimer import Claimer
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.execution import ExecutionSlots
    from taskharbor.worker.message_acks import MessageAcks
    from taskharbor.worker.stop_request import StopRequest

_LOG: Final = logging.getLogger("taskharbor.worker")
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 30.0
"""After a failed receive the queue service is not called for this long: at first, and at most."""


class MessageSource:
    """The source of a worker with a queue service: one receiver for each queue."""

    def __init__(
        self,
        runtime: Runtime,
        slots: ExecutionSlots,
        *,
        loops: ServiceLoops,
        stop: StopRequest,
        acks: MessageAcks,
        claimers: Mapping[str, Claimer],
        config: WorkerConfig,
    ) -> None:
        waitlist = SlotWaitlist(runtime, loops)
        new_receiver = partial(QueueReceiver, runtime, slots, waitlist=waitlist, stop=stop, acks=acks, config=config)
        self._receivers = {queue: new_receiver(claimer, queue=queue) for queue, claimer in claimers.items()}
        # A freed slot always wakes the receivers; each one checks whether it waits for slots.
        slots.is_source_waiting = True

    @property
    def ticks(self) -> dict[str, Callable[[], timedelta]]:
        return {_loop_name(queue): receiver.tick for queue, receiver in self._receivers.items()}

    @property
    def is_stopped_cleanly(self) -> bool:
        return all(receiver.is_stopped_cleanly for receiver in self._receivers.values())

    @property
    def is_idle(self) -> bool:
        return all(receiver.is_idle for receiver in self._receivers.values())


class SlotWaitlist:
    """The queues that wait for free slots, in order of arrival, so that a busy queue does not starve the others."""

    def __init__(self, runtime: Runtime, loops: ServiceLoops) -> None:
        self._lock = runtime.lock()
        self._loops = loops
        self._waiting: list[str] = []

    @property
    def is_used(self) -> bool:
        """Whether any queue waits."""
        return bool(self._waiting)

    def is_behind(self, queue: str) -> bool:
        """Return whether another queue is first."""
        with self._lock:
            return self._waiting[:1] not in ([], [queue])

    def change(self, queue: str, *, waits: bool) -> None:
        """Add *queue* to the waitlist, or remove it."""
        with self._lock:
            if waits and queue not in self._waiting:
                self._waiting.append(queue)
            elif not waits and queue in self._waiting:
                self._waiting.remove(queue)

    def wake_first(self) -> None:
        """Wake the receiver of the first queue: a slot may be free."""
        with self._lock:
            first = self._waiting[:1]
        for queue in first:
            self._loops.wake(_loop_name(queue))


class QueueReceiver:
    """Claims jobs of one queue by their messages, and overdue jobs without one.

    Slots are acquired before messages are received, so that no message waits in a worker that
    cannot run its job. If no message arrives, or the queue service fails, jobs that have been due
    for longer than *overdue_after* are reserved from the store.
    """

    def __init__(
        self,
        runtime: Runtime,
        slots: ExecutionSlots,
        claimer: Claimer,
        *,
        queue: str,
        waitlist: SlotWaitlist,
        stop: StopRequest,
        acks: MessageAcks,
        config: WorkerConfig,
    ) -> None:
        self._runtime = runtime
        self._slots = slots
        self._claimer = claimer
        self._queue = queue
        self._waitlist = waitlist
        self._stop = stop
        self._acks = acks
        self._transport, self._visibility = acks.delivery.transport, acks.delivery.visibility
        self._receive_wait = acks.delivery.receive_wait if runtime.can_block else timedelta(0)
        self._poll = config.poll
        self._overdue_after = config.overdue_after
        self._pause = MIN_POLL_PAUSE
        self._backoff_seconds = 0.0
        self._retry_at = 0.0
        self._found_overdue = False
        self._is_bypassed = False
        self._departures_when_idle: int | None = None
        self.is_stopped_cleanly = False

    @property
    def is_idle(self) -> bool:
        """Whether the last tick found no job, and no attempt has ended since: its end may make jobs due."""
        return self._departures_when_idle == self._slots.departures

    def tick(self) -> timedelta:
        if self._stop.is_set:
            return self._read_back_last()
        departures, began_at = self._slots.departures, self._runtime.monotonic()
        try:
            self._read_back()
            if not (slots := self._acquire_slots()):
                return FULL_PAUSE
            if self._claim_messages(slots) or self._reserve_overdue():
                self._pause = MIN_POLL_PAUSE
                return NO_PAUSE
        except StoreUnavailable as error:
            _LOG.warning("queue %s: claiming failed: %s", self._queue, error)
            return self._next_pause()
        self._departures_when_idle = departures
        return self._idle_pause(began_at)

    def _read_back_last(self) -> timedelta:
        """Read back pending claims before the worker ends; otherwise their jobs would wait until the leases expire."""
        try:
            self._read_back()
        except Exception as error:  # noqa: BLE001  whatever failed must not delay the shutdown for long
            _LOG.warning("queue %s: reading back claims failed: %s", self._queue, error)
            self._claimer.drop_expired()
        self.is_stopped_cleanly = self._claimer.has_no_pending
        return FULL_PAUSE if self.is_stopped_cleanly else self._next_pause()

    def _read_back(self) -> None:
        """Start the jobs of claims whose reply was lost, and release the messages that claimed nothing."""
        self._acks.release(self._claimer.read_back())

    def _next_pause(self) -> timedelta:
        self._pause = min(2 * self._pause, self._poll)
        return self._pause

    def _idle_pause(self, began_at: float) -> timedelta:
        """Wake the next waiting queue; return the rest of the poll interval, less the time that the receive waited."""
        self._waitlist.wake_first()
        return max(self._poll - timedelta(seconds=self._runtime.monotonic() - began_at), NO_PAUSE)

    def _acquire_slots(self) -> int:
        """Acquire slots unless another queue is first on the waitlist; join the waitlist if there are none."""
        is_behind = self._waitlist.is_behind(self._queue)
        slots = 0 if is_behind else self._slots.acquire(self._queue, BATCH_LIMIT)
        is_full = self._slots.is_full  # if not, the queue has reached its own limit
        self._waitlist.change(self._queue, waits=is_behind or (is_full and not slots))
        if not is_full:
            self._waitlist.wake_first()
        return slots

    def _claim_messages(self, slots: int) -> bool:
        """Receive messages and claim their jobs; return whether there were any messages."""
        try:
            deliveries = self._receive(slots)
        except BaseException:
            self._slots.fill(self._queue, slots, [])
            raise
        self._departures_when_idle = None if deliveries else self._departures_when_idle
        received = [each for delivery in deliveries if (each := self._parse(delivery)) is not None]
        if not received or self._stop.is_set:
            self._slots.fill(self._queue, slots, [])
            self._acks.release(received)
            return bool(deliveries)
        for each, answer in zip(received, self._claimer.claim(self._queue, slots, received), strict=True):
            if isinstance(answer, Refused):
                self._acks.resolve(each, answer)
        return True

    def _parse(self, delivery: IncomingMessage) -> ReceivedMessage | None:
        message = parse_message(delivery.body)
        if message is None:
            self._acks.delete_unreadable(self._queue, delivery)
            return None
        return ReceivedMessage(self._queue, delivery, message)

    def _receive(self, slots: int) -> Sequence[IncomingMessage]:
        if self._runtime.monotonic() < self._retry_at:
            return ()
        # No long poll while overdue jobs are found, or while other queues wait for slots.
        wait = timedelta(0) if self._found_overdue or self._waitlist.is_used else self._receive_wait
        try:
            deliveries = self._transport.receive(self._queue, most=slots, wait=wait, visibility=self._visibility)
        except (TransportUnavailable, TransportRefused) as error:
            self._backoff_seconds = min(2 * self._backoff_seconds or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
            self._retry_at = self._runtime.monotonic() + self._backoff_seconds
            self._log_bypass(f"SQS unavailable ({error})")
            return ()
        self._backoff_seconds = 0.0
        if deliveries and self._is_bypassed:
            self._is_bypassed = False
            _LOG.warning("queue %s: messages arrive again", self._queue)
        return deliveries

    def _reserve_overdue(self) -> bool:
        """Reserve jobs whose messages are overdue; return whether there were any."""
        self._found_overdue = False
        if self._stop.is_set or not (slots := self._slots.acquire(self._queue, STORE_BATCH)):
            return False
        claims = self._claimer.reserve(self._queue, slots, overdue_only=True)
        self._found_overdue = bool(claims)
        self._departures_when_idle = None if claims else self._departures_when_idle
        if any(map(self._is_overdue, claims)):
            self._log_bypass("no messages for due jobs")
        return self._found_overdue

    def _is_overdue(self, claim: Claim) -> bool:
        started_at = claim.job.processing_started_at
        return started_at is not None and started_at - claim.job.scheduled_for > self._overdue_after

    def _log_bypass(self, reason: str) -> None:
        if not self._is_bypassed:
            _LOG.warning("queue %s: %s; polling the store", self._queue, reason)
        self._is_bypassed = True


def _loop_name(queue: str) -> str:
    return f"source:{queue}"
