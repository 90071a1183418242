"""The `DueTaskEnqueuer`: marks due jobs as dispatched in the store, and sends their ids to a transport."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, StoreUnavailable, UsageError
from taskharbor.core.messages import Message, encode_message, resend_interval
from taskharbor.core.request import QUEUE_PATTERN
from taskharbor.core.results import Sent, Unsent
from taskharbor.delivery.transport import BATCH_LIMIT, OutgoingMessage, TransportRefused, TransportUnavailable
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.runtime import MIN_PAUSE, NO_PAUSE
from taskharbor.service import ServiceLoops

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from taskharbor.core.results import Dispatch
    from taskharbor.delivery.transport import ItemFailure, Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.runtime import Runtime

_LOG: Final = logging.getLogger("taskharbor.enqueuer")
MAX_IDLE: Final = timedelta(seconds=1)
DISPATCH_LOCK: Final = timedelta(seconds=15)
FIRST_RESEND: Final = timedelta(seconds=60)
MAX_RESEND: Final = timedelta(minutes=10)
MAX_UNCLAIMED: Final = 10_000
MAX_SENDERS: Final = 4
PARALLEL_SEND_SECONDS: Final = 0.005
"""If a reply takes longer, several threads send. With faster replies they would only compete for the interpreter:
two threads need a third more CPU time per call than one."""
MIN_DUE_WAIT: Final = timedelta(milliseconds=50)
"""The shortest pause before jobs become due. Without it, jobs that are due in close succession would be sent singly."""
FIRST_BACKOFF_SECONDS: Final = 1.0
"""How long a queue is not tried after its first failure. Each further failure doubles it."""
MAX_BACKOFF_SECONDS: Final = 30.0
STOP_TIMEOUT: Final = timedelta(seconds=20)


class DueTaskEnqueuer:
    """Sends the ids of due jobs of *queues*, and sends them again until a worker claims the jobs.

    Any number of enqueuers may run at once: the store locks each job for one of them, for the time of *lock*. If an
    enqueuer is killed, the others dispatch its jobs after that time. It pauses until the next job is due or the
    store notifies it of a new job, and for *max_idle* at most. An unclaimed job is sent again after *resend_after*,
    then at growing intervals of at most *max_resend*. While *max_unclaimed* jobs of a queue are sent and unclaimed,
    no more are sent. *batch* jobs are dispatched at once, by up to *senders* threads.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        transport: Transport,
        *,
        queues: Sequence[str],
        max_idle: timedelta = MAX_IDLE,
        lock: timedelta = DISPATCH_LOCK,
        resend_after: timedelta = FIRST_RESEND,
        max_resend: timedelta = MAX_RESEND,
        max_unclaimed: int = MAX_UNCLAIMED,
        batch: int = STORE_BATCH,
        senders: int = MAX_SENDERS,
    ) -> None:
        _check(queues)
        self._runtime = runtime
        self._driver = driver
        self._queues = list(queues)
        self._max_idle = max_idle
        # In a runtime with a single thread no thread can wait for another.
        lanes = [QueueLane(queue, runtime.lock() if runtime.can_block else nullcontext()) for queue in queues]
        options = DispatchOptions(
            max_idle=max_idle,
            lock=lock,
            resend_after=resend_after,
            max_resend=max_resend,
            max_unclaimed=max_unclaimed,
            batch=batch,
            senders=senders if runtime.can_block else 1,
        )
        self._first = DispatchLoop(runtime, driver, transport, lanes, options, polls_due_times=True)
        self._second = DispatchLoop(runtime, driver, transport, lanes, options, polls_due_times=False)
        self._loops = ServiceLoops(runtime)
        self._listener: Listener | None = None

    def start(self) -> None:
        """Start two dispatch threads: one queries the store while the other sends."""
        self._loops.add("dispatch:2", self._second.tick)
        self._loops.add("dispatch:1", self._tick_first)
        if self._runtime.can_block:
            self._listener = self._driver.listen(self._queues)
            self._loops.add("listener", self._listen)
        self._loops.start()

    def stop(self) -> None:
        """Wait until the current ticks have finished, and stop the threads."""
        self._loops.begin_stop()
        if self._listener is not None:
            self._listener.wake()
        self._loops.join_all(STOP_TIMEOUT)
        if self._listener is not None:
            self._listener.close()

    def tick(self) -> timedelta:
        """Dispatch one batch of each queue, and return the pause until the next tick."""
        return self._first.tick()

    def _tick_first(self) -> timedelta:
        """Tick. If more jobs are due than one loop can send, wake the second loop."""
        pause = self._first.tick()
        if not pause:
            self._loops.wake("dispatch:2")
        return pause

    def _listen(self) -> timedelta:
        if self._listener is not None and self._listener.wait(self._max_idle):
            self._loops.wake("dispatch:1")
        return NO_PAUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """The options of a `DueTaskEnqueuer` that its loops share."""

    max_idle: timedelta
    lock: timedelta
    resend_after: timedelta
    max_resend: timedelta
    max_unclaimed: int
    batch: int
    senders: int


class DispatchLoop:
    """Marks due jobs in the store, sends their ids, and records what was sent.

    Two loops share the *lanes* of one enqueuer. Only the loop with *polls_due_times* queries when the next
    job is due.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        transport: Transport,
        lanes: Sequence[QueueLane],
        options: DispatchOptions,
        *,
        polls_due_times: bool,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._transport = transport
        self._lanes = list(lanes)
        self._options = options
        self._polls_due_times = polls_due_times
        self._unrecorded: list[Sent | Unsent] = []

    def tick(self) -> timedelta:
        """Dispatch one batch of each queue, and return the pause until the next tick."""
        try:
            self._record([])
            self._lanes.append(self._lanes.pop(0))  # each tick starts with another queue
            return min([self._serve(lane) for lane in self._lanes])
        except StoreUnavailable as error:
            _LOG.warning("dispatching failed; retrying: %s", error)
            return self._options.max_idle

    def _serve(self, lane: QueueLane) -> timedelta:
        options = self._options
        backoff = lane.backs_off_until - self._runtime.monotonic()
        if backoff > 0:
            return min(options.max_idle, max(MIN_PAUSE, timedelta(seconds=backoff)))
        # A queue that failed is tried with a single call.
        limit, began = BATCH_LIMIT if lane.backoff else options.batch, self._runtime.monotonic()
        due = self._driver.dispatch(lane.queue, limit=limit, lock=options.lock, unclaimed=options.max_unclaimed)
        if not due:
            return self._until_due(lane)
        chunks = deque(due[n : n + BATCH_LIMIT] for n in range(0, len(due), BATCH_LIMIT))
        sending = SendBatch(len(due), chunks, ends_by=began + options.lock.total_seconds() / 2)
        with lane.sending:  # held for at most half of *lock* plus one call
            self._send_all(lane, sending)
        self._note(lane, sending)
        self._record(sending.results)
        if sending.error is not None:
            return options.max_idle
        return NO_PAUSE if len(due) == limit else self._until_due(lane)

    def _until_due(self, lane: QueueLane) -> timedelta:
        """Return the time until the next job is due, at most *max_idle*."""
        max_idle = self._options.max_idle
        if not self._polls_due_times:
            return max_idle
        due_in = self._driver.inspector.next_due_in(lane.queue)
        return max_idle if due_in is None else min(max_idle, max(due_in, MIN_DUE_WAIT))

    def _send_all(self, lane: QueueLane, sending: SendBatch) -> None:
        """Send all messages, in several threads if replies are slow. After a failure the rest stays unsent."""
        began = self._runtime.monotonic()
        self._send_some(lane, sending)
        is_slow = self._runtime.monotonic() - began > PARALLEL_SEND_SECONDS
        others = min(self._options.senders, len(sending.chunks)) - 1 if is_slow else 0
        loops = [self._runtime.serve(f"sender:{number}", lambda: self._send(lane, sending)) for number in range(others)]
        self._send(lane, sending)
        for loop in loops:
            loop.join(self._options.lock)
        sending.results += [Unsent(each) for chunk in sending.chunks for each in chunk]

    def _send(self, lane: QueueLane, sending: SendBatch) -> None:
        while self._send_some(lane, sending):
            pass

    def _send_some(self, lane: QueueLane, sending: SendBatch) -> bool:
        """Send as many messages as fit into one call, and return whether there were any."""
        if not sending.may_continue(self._runtime.monotonic()) or not (chunk := sending.next_chunk()):
            return False
        try:
            sending.results += self._sent(lane.queue, chunk)
        except TransportUnavailable as error:
            sending.error = error
            sending.results += [] if error.is_unknown else [Unsent(each) for each in chunk]
        except TransportRefused as error:
            sending.error = error
            sending.results += [Unsent(each) for each in chunk]
        return True

    def _sent(self, queue: str, chunk: Sequence[Dispatch]) -> list[Sent | Unsent]:
        messages = [OutgoingMessage(encode_message(Message(each.job_id, each.seq))) for each in chunk]
        answers = self._transport.send(queue, messages)
        results = [self._result(each, failed) for each, failed in zip(chunk, answers, strict=True)]
        return [each for each in results if each is not None]

    def _result(self, dispatch: Dispatch, failed: ItemFailure | None) -> Sent | Unsent | None:
        """Return the result to record. None if it is unknown: the job is then sent again when its lock expires."""
        if failed is None:
            options = self._options
            return Sent(dispatch, resend_interval(dispatch.resends, first=options.resend_after, cap=options.max_resend))
        return None if failed.is_unknown else Unsent(dispatch)

    def _note(self, lane: QueueLane, sending: SendBatch) -> None:
        """Back off from a queue that could not be sent to; reset that when all messages were sent."""
        sent = sum(1 for each in sending.results if isinstance(each, Sent))
        if sending.error is None and sent == sending.count:
            if lane.backoff:
                _LOG.warning("queue %s: sending works again", lane.queue)
            lane.backoff = lane.backs_off_until = 0.0
            return
        if not lane.backoff:
            reason = sending.error or f"{sending.count - sent} of {sending.count} messages were not sent"
            _LOG.warning("queue %s: sending failed; retrying: %s", lane.queue, reason)
        lane.backoff = min(2 * lane.backoff or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        lane.backs_off_until = self._runtime.monotonic() + lane.backoff

    def _record(self, results: Sequence[Sent | Unsent]) -> None:
        """Record *results* in the store. If that fails, they are recorded before anything else is sent."""
        self._unrecorded += results
        if self._unrecorded:
            self._driver.record_dispatch(self._unrecorded)
            self._unrecorded = []


@dataclass(slots=True)
class QueueLane:
    """A queue, and its backoff in seconds after a failure; 0 while sending works.

    A loop holds the lock ``sending`` while it sends. Without it both loops would send at the same time,
    and then both would query the store.
    """

    queue: str
    sending: AbstractContextManager[object]
    backoff: float = 0.0
    backs_off_until: float = 0.0


@dataclass(slots=True)
class SendBatch:
    """Messages for one queue, which several threads send, and their results.

    Messages that are not sent by ``ends_by`` are left to the next tick: the lock on their jobs would expire.
    """

    count: int
    chunks: deque[list[Dispatch]]
    ends_by: float
    results: list[Sent | Unsent] = field(default_factory=list)
    error: Exception | None = None

    def may_continue(self, now: float) -> bool:
        return self.error is None and now < self.ends_by

    def next_chunk(self) -> list[Dispatch]:
        try:
            return self.chunks.popleft()
        except IndexError:  # another thread took the last one
            return []


def _check(queues: Sequence[str]) -> None:
    if not queues:
        raise UsageError(Problem(field="queues", value="none", rule="name at least one"))
    for name in queues:
        if QUEUE_PATTERN.fullmatch(name) is None:
            raise UsageError(Problem(field="queue", value=repr(name), rule=f"must match {QUEUE_PATTERN.pattern}"))
