"""Claims jobs by their messages: one receiver for each queue, and the waitlist for free slots."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.messages import DeliveryNote, DeliveryRole, MessageFinding, parse_message
from taskharbor.core.results import Refused
from taskharbor.delivery.transport import BATCH_LIMIT, TransportRefused, TransportUnavailable
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.observability.failure_log import QUEUE_SERVICE, STORE
from taskharbor.runtime import MIN_PAUSE, NO_PAUSE
from taskharbor.worker.message_acks import ReceivedJob, ReceivedMessage
from taskharbor.worker.polling_source import FULL_PAUSE, MIN_POLL_PAUSE, READ_BACK_PAUSE

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
MAX_RECEIVERS: Final = 4
"""How many threads receive messages of one queue while more wait than one thread can receive."""
PARALLEL_RECEIVE_SECONDS: Final = 0.005
"""If a reply takes longer, several threads receive. With faster replies they would only compete for the interpreter."""
MAX_HOLD_SECONDS: Final = 0.1
"""How long received jobs may wait here for a slot. Then they are declined, so that other workers can run them."""


class MessageSource:
    """The source of a worker with a queue service: one receiver for each queue, and others that help it.

    *claimers* has a claimer for each receiver of a queue, since each reads back its own lost replies.
    """

    def __init__(
        self,
        runtime: Runtime,
        slots: ExecutionSlots,
        *,
        loops: ServiceLoops,
        stop: StopRequest,
        acks: MessageAcks,
        claimers: Mapping[str, Sequence[Claimer]],
        config: WorkerConfig,
    ) -> None:
        self._loops = loops
        self._first_claimers = [first for first, *_ in claimers.values()]
        waitlist = SlotWaitlist(runtime, loops)
        new_receiver = partial(QueueReceiver, runtime, slots, waitlist=waitlist, stop=stop, acks=acks, config=config)
        self._receivers = {queue: new_receiver(first, queue=queue) for queue, [first, *_] in claimers.items()}
        self._helpers = {
            f"extra-{_loop_name(queue)}:{number}": ReceiverHelper(
                self._receivers[queue], new_receiver(claimer, queue=queue, is_helper=True)
            )
            for queue, [_, *others] in claimers.items()
            for number, claimer in enumerate(others, start=2)
        }
        # A freed slot always wakes the receivers; each one checks whether it waits for slots.
        slots.is_source_waiting = True

    @property
    def ticks(self) -> dict[str, Callable[[], timedelta]]:
        first = {_loop_name(queue): partial(self._tick_first, receiver) for queue, receiver in self._receivers.items()}
        return {**first, **{name: helper.tick for name, helper in self._helpers.items()}}

    def _tick_first(self, receiver: QueueReceiver) -> timedelta:
        pause = receiver.tick()
        if receiver.has_backlog:
            for name, helper in self._helpers.items():
                if helper.first is receiver:
                    self._loops.wake(name)
        return pause

    @property
    def claim_problem(self) -> str:
        """Why claims do not go through for a queue; empty if they do."""
        return next((each.problem for each in self._first_claimers if each.problem), "")

    @property
    def delivery_notes(self) -> list[DeliveryNote]:
        """That the messages of these queues are received, and why they cannot be, if so."""
        return [
            DeliveryNote(queue=queue, role=DeliveryRole.RECEIVER, problem=receiver.problem)
            for queue, receiver in self._receivers.items()
        ]

    @property
    def is_stopped_cleanly(self) -> bool:
        is_clean = all(receiver.is_stopped_cleanly for receiver in self._receivers.values())
        return is_clean and all(helper.is_resting for helper in self._helpers.values())

    @property
    def is_failing(self) -> bool:
        is_failing = any(receiver.is_failing for receiver in self._receivers.values())
        return is_failing or any(helper.is_failing for helper in self._helpers.values())

    @property
    def is_idle(self) -> bool:
        is_idle = all(receiver.is_idle for receiver in self._receivers.values())
        return is_idle and all(helper.is_resting for helper in self._helpers.values())


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
    cannot run its job. If a message names more jobs than there are slots, the rest is held for
    `MAX_HOLD_SECONDS` and claimed when slots become free. If no message arrives, or the queue service
    fails, jobs that have been due for longer than *overdue_after* are reserved from the store.
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
        is_helper: bool = False,
    ) -> None:
        self._runtime = runtime
        self._slots = slots
        self._claimer = claimer
        self._is_helper = is_helper
        self._queue = queue
        self._waitlist = waitlist
        self._stop = stop
        self._acks = acks
        self._transport, self._visibility = acks.delivery.transport, acks.delivery.visibility
        may_wait = runtime.can_block and not is_helper
        self._receive_wait = acks.delivery.receive_wait if may_wait else timedelta(0)
        self._poll = config.poll
        self._overdue_after = config.overdue_after
        self._pause = MIN_POLL_PAUSE
        self._backoff_seconds = 0.0
        self._retry_at = 0.0
        self._found_overdue = False
        self._is_bypassed = False
        self._departures_when_idle: int | None = None
        self._held: Sequence[ReceivedJob] = ()
        self._held_until = 0.0
        self._bundle_size = 1
        self._pace = ClaimPace(runtime)
        self.has_backlog = False
        """Whether the last receive took long, and more messages are waiting."""
        self.is_stopped_cleanly = False
        self.problem = ""
        self.is_failing = False
        """Whether the last tick failed, and did not find out which jobs it has claimed."""

    @property
    def is_idle(self) -> bool:
        """Whether the last tick found no job, and no attempt has ended since: its end may make jobs due."""
        return self._departures_when_idle == self._slots.departures

    @property
    def holds_nothing(self) -> bool:
        """Whether it has no jobs that wait for a slot, or for the reply of their claim."""
        return not self._held and self._claimer.has_no_pending

    def tick(self) -> timedelta:
        if self._stop.is_set:
            self._decline_held()
            return self._read_back_last()
        departures, began_at = self._slots.departures, self._runtime.monotonic()
        self.is_failing = False
        try:
            self._read_back()
            if not (slots := self._acquire_slots()):
                return self._full_pause()
            if self._claim_messages(slots) or self._reserve_overdue():
                self._pause = MIN_POLL_PAUSE
                return NO_PAUSE
        except StoreUnavailable as error:
            self._claimer.failures.unavailable(STORE, error)
            self.is_failing = True
            return self._next_pause()
        self._departures_when_idle = departures
        return self._idle_pause(began_at)

    def _read_back_last(self) -> timedelta:
        """Read back pending claims before the worker ends; otherwise their jobs would wait until the leases expire."""
        try:
            self._read_back()
        except StoreUnavailable as error:
            self.is_failing = True
            self._claimer.failures.unavailable(STORE, error)
            self._claimer.drop_expired()
        except Exception as error:  # noqa: BLE001  whatever failed must not delay the shutdown for long
            self.is_failing = True
            self._claimer.failures.unexpected("reading back claims", error)
            self._claimer.drop_expired()
        self.is_stopped_cleanly = self._claimer.has_no_pending
        return FULL_PAUSE if self.is_stopped_cleanly else READ_BACK_PAUSE

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

    def _full_pause(self) -> timedelta:
        """Return the pause without free slots. Held jobs that found none in time are declined."""
        left = self._held_until - self._runtime.monotonic() if self._held else 0.0
        if left > 0:
            return max(timedelta(seconds=left), MIN_PAUSE)
        self._decline_held()
        return FULL_PAUSE

    def _decline_held(self) -> None:
        for each in self._held:
            self._acks.resolve(each, MessageFinding.NO_SLOT)
        self._held = ()

    def _acquire_slots(self) -> int:
        """Acquire slots unless another queue is first on the waitlist; join the waitlist if there are none."""
        is_behind = self._waitlist.is_behind(self._queue)
        slots = 0 if is_behind else self._slots.acquire(self._queue, BATCH_LIMIT * self._bundle_size)
        if self._is_helper:  # the first receiver waits for slots
            return slots
        is_full = self._slots.is_full  # if not, the queue has reached its own limit
        self._waitlist.change(self._queue, waits=is_behind or (is_full and not slots))
        if not is_full:
            self._waitlist.wake_first()
        return slots

    def _claim_messages(self, slots: int) -> bool:
        """Claim held jobs, or receive messages and claim their jobs; return whether there were any messages."""
        if self._held:
            self._claim(self._held, slots)
            return True
        try:
            deliveries = self._receive(slots)
        except BaseException:
            self._slots.fill(self._queue, slots, [])
            raise
        if deliveries:
            self._departures_when_idle = None
            self._acks.received(self._queue, len(deliveries))
        received = [each for delivery in deliveries for each in self._parse(delivery)]
        # One thread receives enough messages that name several jobs.
        self.has_backlog = self.has_backlog and self._bundle_size == 1
        if not received or self._stop.is_set:
            self._slots.fill(self._queue, slots, [])
            self._acks.release(received)
            return bool(deliveries)
        self._held_until = self._runtime.monotonic() + MAX_HOLD_SECONDS
        self._claim(received, slots)
        return True

    def _claim(self, received: Sequence[ReceivedJob], slots: int) -> None:
        """Claim as many jobs as there are slots, and hold or release the others."""
        if len(received) > slots:  # more jobs came than were expected
            slots += self._slots.acquire(self._queue, len(received) - slots)
        claimed, rest = received[:slots], received[slots:]
        self._pace.count(len(claimed))
        # A message of which a job is claimed is held, and others whose turn comes soon.
        held = {each.message for each in (claimed[-1], *rest[: self._soon])}
        self._held = [each for each in rest if each.message in held]
        self._acks.release(each for each in rest if each.message not in held)
        for each, answer in zip(claimed, self._claimer.claim(self._queue, slots, claimed), strict=True):
            if isinstance(answer, Refused):
                self._acks.resolve(each, answer)

    @property
    def _soon(self) -> int:
        """How many jobs will find a slot within half of the time for which they may be held."""
        return self._pace.expected_within(MAX_HOLD_SECONDS / 2)

    def _parse(self, delivery: IncomingMessage) -> list[ReceivedJob]:
        jobs = parse_message(delivery.body)
        if jobs is None:
            self._acks.delete_unreadable(self._queue, delivery)
            return []
        message = ReceivedMessage(self._queue, delivery, {job.job_id.int for job in jobs})
        self._bundle_size = max(self._bundle_size, len(jobs))
        return [ReceivedJob(message, job) for job in jobs]

    def _receive(self, slots: int) -> Sequence[IncomingMessage]:
        began_at = self._runtime.monotonic()
        if began_at < self._retry_at:
            return ()
        # The number of jobs is known only by the last messages. With one job in each, none waits for a slot.
        size, self._bundle_size = self._bundle_size, max(self._bundle_size // 2, 1)
        most = slots if size == 1 else max((slots + self._soon) // size, 1)
        # No long poll while overdue jobs are found, or while other queues wait for slots.
        wait = timedelta(0) if self._found_overdue or self._waitlist.is_used else self._receive_wait
        try:
            deliveries = self._transport.receive(self._queue, most=most, wait=wait, visibility=self._visibility)
        except (TransportUnavailable, TransportRefused) as error:
            self.has_backlog = False
            self._backoff_seconds = min(2 * self._backoff_seconds or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
            self._retry_at = self._runtime.monotonic() + self._backoff_seconds
            if isinstance(error, TransportUnavailable):
                self._claimer.failures.unavailable(QUEUE_SERVICE, error, meanwhile="polling the store")
            else:
                self._log_bypass(str(error))
            self.problem = str(error)
            return ()
        is_slow = self._runtime.monotonic() - began_at > PARALLEL_RECEIVE_SECONDS
        self.has_backlog = is_slow and len(deliveries) == most
        self._backoff_seconds = 0.0
        self.problem = ""
        self._claimer.failures.available(QUEUE_SERVICE)
        if deliveries and self._is_bypassed:
            self._is_bypassed = False
            _LOG.warning("queue %s: messages arrive again", self._queue)
        return deliveries

    def _reserve_overdue(self) -> bool:
        """Reserve jobs whose messages are overdue; return whether there were any."""
        self._found_overdue = False
        if self._is_helper or self._stop.is_set or not (slots := self._slots.acquire(self._queue, STORE_BATCH)):
            return False
        claims = self._claimer.reserve(self._queue, slots, overdue_only=True)
        self._found_overdue = bool(claims)
        self._departures_when_idle = None if claims else self._departures_when_idle
        if not self._backoff_seconds and any(map(self._is_overdue, claims)):
            self._log_bypass("no messages for due jobs")
        return self._found_overdue

    def _is_overdue(self, claim: Claim) -> bool:
        started_at = claim.job.processing_started_at
        return started_at is not None and started_at - claim.job.scheduled_for > self._overdue_after

    def _log_bypass(self, reason: str) -> None:
        if not self._is_bypassed and not self._is_helper:
            _LOG.warning("queue %s: %s; polling the store", self._queue, reason)
        self._is_bypassed = True


class ReceiverHelper:
    """Receives messages beside the *first* receiver of a queue, while that has a backlog and replies are slow."""

    def __init__(self, first: QueueReceiver, receiver: QueueReceiver) -> None:
        self.first: Final = first
        self._receiver = receiver
        self._is_active = False

    @property
    def is_resting(self) -> bool:
        """Whether it receives nothing, and holds nothing."""
        return not self._is_active and self._receiver.holds_nothing

    @property
    def is_failing(self) -> bool:
        return self._receiver.is_failing and not self.is_resting

    def tick(self) -> timedelta:
        """Receive once; pause until the first receiver wakes it if there is nothing to do."""
        self._is_active = True  # before the stop is checked: a stopping worker waits for what is received here
        try:
            if not self.first.has_backlog and self._receiver.holds_nothing:
                return FULL_PAUSE
            pause = self._receiver.tick()
            return FULL_PAUSE if pause and self._receiver.holds_nothing else pause
        finally:
            self._is_active = False


class ClaimPace:
    """How many jobs were claimed recently, as an estimate of how many will be claimed soon."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._began_at = runtime.monotonic()
        self._claimed = 0
        self._per_second = 0.0

    def count(self, claimed: int) -> None:
        """Count claimed jobs."""
        elapsed = self._runtime.monotonic() - self._began_at
        if elapsed >= MAX_HOLD_SECONDS:
            self._per_second = self._claimed / elapsed
            self._began_at += elapsed
            self._claimed = 0
        self._claimed += claimed

    def expected_within(self, seconds: float) -> int:
        """Return how many jobs will be claimed within *seconds* at this pace."""
        return int(self._per_second * seconds)


def _loop_name(queue: str) -> str:
    return f"source:{queue}"
