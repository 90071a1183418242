"""Taking jobs by the messages that ring for them."""

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
"""Seconds for which a queue service that failed is not asked: at first, and at most."""


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
        slots.is_source_waiting = True  # each receiver knows by itself whether it waits for slots

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
    """The queues that wait for room, in the order they came: a busy one must not starve the others."""

    def __init__(self, runtime: Runtime, loops: ServiceLoops) -> None:
        self._lock = runtime.lock()
        self._loops = loops
        self._waiting: list[str] = []

    @property
    def is_long(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def is_behind(self, queue: str) -> bool:
        """Whether another queue is first."""
        with self._lock:
            return self._waiting[:1] not in ([], [queue])

    def change(self, queue: str, *, waits: bool) -> None:
        """Let *queue* wait in line, or leave it."""
        with self._lock:
            if waits and queue not in self._waiting:
                self._waiting.append(queue)
            elif not waits and queue in self._waiting:
                self._waiting.remove(queue)

    def call_first(self) -> None:
        """Tell the first in line that there may be room."""
        with self._lock:
            first = self._waiting[:1]
        for queue in first:
            self._loops.wake(_loop_name(queue))


class QueueReceiver:
    """Takes jobs of one queue by their messages, and those that wait for too long without one.

    Room is set aside before messages are asked for, so that none waits in a worker that cannot
    run its job. When no messages come, or the queue service fails, jobs that have been due for
    longer than *overdue_after* are reserved from the store: late, and not lost.
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
        self._wait = acks.delivery.receive_wait if runtime.can_block else timedelta(0)
        self._poll = config.poll
        self._overdue_after = config.overdue_after
        self._pause = MIN_POLL_PAUSE
        self._rest = 0.0
        self._asks_at = 0.0
        self._finds_jobs = False
        self._is_bypassed = False
        self._dry_after: int | None = None
        self.is_stopped_cleanly = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing came when it looked last, and no attempt has ended since: that may leave jobs behind."""
        return self._dry_after == self._slots.departures

    def tick(self) -> timedelta:
        if self._stop.is_set:
            return self._end()
        departures, began = self._slots.departures, self._runtime.monotonic()
        try:
            self._read_back()
            if not (room := self._acquire_slots()):
                return FULL_PAUSE
            if self._take_messages(room) or self._take_overdue():
                self._pause = MIN_POLL_PAUSE
                return NO_PAUSE
        except StoreUnavailable as error:
            _LOG.warning("cannot take jobs: %s", error)
            return self._next_pause()
        self._dry_after = departures
        return self._idle(began)

    def _end(self) -> timedelta:
        """Find out what was taken by calls without a reply: a worker that ended before would leave it to its lease."""
        try:
            self._read_back()
        except Exception as error:  # noqa: BLE001  whatever it was, a worker that stops must not wait for it for long
            _LOG.warning("cannot find out what was taken: %s", error)
            self._claimer.drop_expired()
        self.is_stopped_cleanly = self._claimer.has_no_pending
        return FULL_PAUSE if self.is_stopped_cleanly else self._next_pause()

    def _read_back(self) -> None:
        """Run what calls took whose reply was lost; let the other messages come again now that the store answers."""
        self._acks.release(self._claimer.read_back())

    def _next_pause(self) -> timedelta:
        self._pause = min(2 * self._pause, self._poll)
        return self._pause

    def _idle(self, began: float) -> timedelta:
        """Leave the room to others that wait for some; return how long to rest, which a long poll did already."""
        self._waitlist.call_first()
        return max(self._poll - timedelta(seconds=self._runtime.monotonic() - began), NO_PAUSE)

    def _acquire_slots(self) -> int:
        """Set room aside, if nobody was here before; else wait in line."""
        is_behind = self._waitlist.is_behind(self._queue)
        room = 0 if is_behind else self._slots.acquire(self._queue, BATCH_LIMIT)
        is_full = self._slots.is_full  # else it is the queue's own limit that leaves none
        self._waitlist.change(self._queue, waits=is_behind or (is_full and not room))
        if not is_full:
            self._waitlist.call_first()
        return room

    def _take_messages(self, room: int) -> bool:
        """Return whether any came."""
        try:
            deliveries = self._receive(room)
        except BaseException:
            self._slots.fill(self._queue, room, [])
            raise
        self._dry_after = None if deliveries else self._dry_after
        received = [each for delivery in deliveries if (each := self._read(delivery)) is not None]
        if not received or self._stop.is_set:
            self._slots.fill(self._queue, room, [])
            self._acks.release(received)
            return bool(deliveries)
        for each, answer in zip(received, self._claimer.claim(self._queue, room, received), strict=True):
            if isinstance(answer, Refused):
                self._acks.resolve(each, answer)
        return True

    def _read(self, delivery: IncomingMessage) -> ReceivedMessage | None:
        message = parse_message(delivery.body)
        if message is None:
            self._acks.delete_unreadable(self._queue, delivery)
            return None
        return ReceivedMessage(self._queue, delivery, message)

    def _receive(self, room: int) -> Sequence[IncomingMessage]:
        if self._runtime.monotonic() < self._asks_at:
            return ()
        # While jobs are found without messages, or others have no room, nobody waits for messages.
        wait = timedelta(0) if self._finds_jobs or self._waitlist.is_long else self._wait
        try:
            deliveries = self._transport.receive(self._queue, most=room, wait=wait, visibility=self._visibility)
        except (TransportUnavailable, TransportRefused) as error:
            self._rest = min(2 * self._rest or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
            self._asks_at = self._runtime.monotonic() + self._rest
            self._log_bypass(str(error))
            return ()
        self._rest = 0.0
        if deliveries and self._is_bypassed:
            self._is_bypassed = False
            _LOG.warning("messages of queue %s come again", self._queue)
        return deliveries

    def _take_overdue(self) -> bool:
        """Take jobs without messages, where they have waited long enough; return whether there were any."""
        self._finds_jobs = False
        if self._stop.is_set or not (room := self._slots.acquire(self._queue, STORE_BATCH)):
            return False
        claims = self._claimer.reserve(self._queue, room, overdue_only=True)
        self._finds_jobs = bool(claims)
        self._dry_after = None if claims else self._dry_after
        if any(map(self._is_overdue, claims)):
            self._log_bypass("jobs are due, and none come")
        return self._finds_jobs

    def _is_overdue(self, claim: Claim) -> bool:
        started_at = claim.job.processing_started_at
        return started_at is not None and started_at - claim.job.scheduled_for > self._overdue_after

    def _log_bypass(self, reason: str) -> None:
        if not self._is_bypassed:
            _LOG.warning(
                "no messages of queue %s: %s; its jobs are taken from the store meanwhile", self._queue, reason
            )
        self._is_bypassed = True


def _loop_name(queue: str) -> str:
    return f"source:{queue}"
