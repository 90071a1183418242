"""The DueTaskEnqueuer: rings for jobs that are due."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import nullcontext
from copy import copy
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

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from taskharbor.core.results import Dispatch
    from taskharbor.delivery.transport import ItemFailure, Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.runtime import Runtime, ServiceLoop

_LOG: Final = logging.getLogger("taskharbor.enqueuer")
MAX_IDLE: Final = timedelta(seconds=1)
DISPATCH_LOCK: Final = timedelta(seconds=15)
FIRST_RESEND: Final = timedelta(seconds=60)
MAX_RESEND: Final = timedelta(minutes=10)
MAX_UNCLAIMED: Final = 10_000
SENDERS: Final = 4
PARALLEL_SEND_SECONDS: Final = 0.005
"""Seconds for an answer, from which on others send meanwhile. With quicker ones they would only take the interpreter
from each other: two threads need a third more of the processor for a call than one."""
MIN_DUE_WAIT: Final = timedelta(milliseconds=50)
"""The shortest rest before jobs that will be due: a stream of them would otherwise go out one by one."""
FIRST_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 30.0
"""Seconds for which a queue that could not be sent to is left alone: at first, and at most."""
STOP_TIMEOUT: Final = timedelta(seconds=20)


class DueTaskEnqueuer:
    """Sends the ids of due jobs of *queues*, and sends them again while nobody claims them.

    Any number may run at once: the store gives each job to one of them at a time. *lock* is how
    long that lasts; whoever is killed in the middle leaves its jobs to the others then. It rests until
    the next job is due or a new one is notified, and for *max_idle* at most. A job without a claim is
    sent again after *resend_after*, then ever more seldom, at most every *max_resend*.
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
        senders: int = SENDERS,
    ) -> None:
        _check(queues)
        self._runtime = runtime
        self._driver = driver
        self._transport = transport
        self._max_idle = max_idle
        self._lock = lock
        self._resend_after, self._max_resend = resend_after, max_resend
        self._max_unclaimed = max_unclaimed
        self._batch = batch
        self._senders = senders if runtime.can_block else 1
        # Where there is one thread for all, nobody could wait for another.
        self._lines = [QueueLane(queue, runtime.lock() if runtime.can_block else nullcontext()) for queue in queues]
        self._unrecorded: list[Sent | Unsent] = []
        self._leads = True
        self._is_stopped = False
        self._loops: dict[str, ServiceLoop] = {}
        self._listener: Listener | None = None

    def start(self) -> None:
        """Begin to work, in threads of its own: two, so that one asks the store while the other sends."""
        twin = self._twin()
        self._loops["twin"] = self._runtime.serve("twin", lambda: None if self._is_stopped else twin.tick())
        self._loops["enqueuer"] = self._runtime.serve("enqueuer", lambda: None if self._is_stopped else self._lead())
        if self._runtime.can_block:
            self._listener = self._driver.listen([line.queue for line in self._lines])
            self._loops["listener"] = self._runtime.serve("listener", self._listen)

    def stop(self) -> None:
        """End after what is under way, and return when that is done."""
        self._is_stopped = True
        if self._listener is not None:
            self._listener.wake()
        for loop in self._loops.values():
            loop.wake()
        for loop in self._loops.values():
            loop.join(STOP_TIMEOUT)
        if self._listener is not None:
            self._listener.close()

    def _twin(self) -> DueTaskEnqueuer:
        """Return another one that does the same, as one in another process would."""
        twin = copy(self)
        twin._lines = [*self._lines]  # noqa: SLF001  it is one of us; each takes turns of its own
        twin._unrecorded = []  # noqa: SLF001  as above
        twin._leads = False  # noqa: SLF001  as above
        return twin

    def _lead(self) -> timedelta:
        """Tick; where there is more than one can send, let the other one come, too."""
        pause = self.tick()
        if not pause:
            self._loops["twin"].wake()
        return pause

    def tick(self) -> timedelta:
        """Send for every queue once, a batch of each, and say when to come back."""
        try:
            self._record([])
            self._lines.append(self._lines.pop(0))  # each is first in turn
            return min([self._serve(line) for line in self._lines])
        except StoreUnavailable as error:
            _LOG.warning("cannot look for due jobs: %s", error)
            return self._max_idle

    def _serve(self, line: QueueLane) -> timedelta:
        rest = line.rests_until - self._runtime.monotonic()
        if rest > 0:
            return min(self._max_idle, max(MIN_PAUSE, timedelta(seconds=rest)))
        # A queue that failed is tried with a single call.
        limit, began = BATCH_LIMIT if line.rest else self._batch, self._runtime.monotonic()
        due = self._driver.dispatch(line.queue, limit=limit, lock=self._lock, unclaimed=self._max_unclaimed)
        if not due:
            return self._until_due(line)
        chunks = deque(due[n : n + BATCH_LIMIT] for n in range(0, len(due), BATCH_LIMIT))
        sending = SendBatch(len(due), chunks, ends_by=began + self._lock.total_seconds() / 2)
        with line.sending:  # for half a lock at most, and one call
            self._send_all(line, sending)
        self._note(line, sending)
        self._record(sending.results)
        if sending.error is not None:
            return self._max_idle
        return NO_PAUSE if len(due) == limit else self._until_due(line)

    def _until_due(self, line: QueueLane) -> timedelta:
        """Return how long it is until the next job is due, a period at most; of two that work together one is told."""
        if not self._leads:
            return self._max_idle
        due_in = self._driver.inspector.next_due_in(line.queue)
        return self._max_idle if due_in is None else min(self._max_idle, max(due_in, MIN_DUE_WAIT))

    def _send_all(self, line: QueueLane, sending: SendBatch) -> None:
        """Send all, over several connections where answers take their time; after a failure the rest is left unsent."""
        began = self._runtime.monotonic()
        self._send_some(line, sending)
        is_slow = self._runtime.monotonic() - began > PARALLEL_SEND_SECONDS
        others = min(self._senders, len(sending.chunks)) - 1 if is_slow else 0
        loops = [self._runtime.serve(f"sender {number}", lambda: self._send(line, sending)) for number in range(others)]
        self._send(line, sending)
        for loop in loops:
            loop.join(self._lock)
        sending.results += [Unsent(each) for chunk in sending.chunks for each in chunk]

    def _send(self, line: QueueLane, sending: SendBatch) -> None:
        while self._send_some(line, sending):
            pass

    def _send_some(self, line: QueueLane, sending: SendBatch) -> bool:
        """Send what one call takes, and say whether there was anything that may still be sent."""
        if not sending.may_go_on(self._runtime.monotonic()) or not (chunk := sending.next_chunk()):
            return False
        try:
            sending.results += self._sent(line.queue, chunk)
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
        """Return what the store shall know. What nobody knows, the end of the lock heals: by a duplicate at worst."""
        if failed is None:
            return Sent(dispatch, resend_interval(dispatch.resends, first=self._resend_after, cap=self._max_resend))
        return None if failed.is_unknown else Unsent(dispatch)

    def _note(self, line: QueueLane, sending: SendBatch) -> None:
        """Leave a queue alone for a while that could not be sent to, and take it up again when it can."""
        sent = sum(1 for each in sending.results if isinstance(each, Sent))
        if sending.error is None and sent == sending.count:
            if line.rest:
                _LOG.warning("messages of queue %s can be sent again", line.queue)
            line.rest = line.rests_until = 0.0
            return
        if not line.rest:
            why = sending.error or f"{sending.count - sent} of {sending.count} did not get through"
            _LOG.warning("cannot send messages of queue %s, and will try again: %s", line.queue, why)
        line.rest = min(2 * line.rest or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        line.rests_until = self._runtime.monotonic() + line.rest

    def _record(self, results: Sequence[Sent | Unsent]) -> None:
        """Tell the store what was sent; what it did not hear is said again, before anything else is sent."""
        self._unrecorded += results
        if self._unrecorded:
            self._driver.record_dispatch(self._unrecorded)
            self._unrecorded = []

    def _listen(self) -> timedelta | None:
        if self._is_stopped or self._listener is None:
            return None
        if self._listener.wait(self._max_idle):
            self._loops["enqueuer"].wake()
        return NO_PAUSE


@dataclass(slots=True)
class QueueLane:
    """A queue that is served. ``rest`` is how long it was left alone last, in seconds: 0 while all goes well.

    ``sending`` is held by whoever sends: were it not, both threads would send, and then both ask the store.
    """

    queue: str
    sending: AbstractContextManager[object]
    rest: float = 0.0
    rests_until: float = 0.0


@dataclass(slots=True)
class SendBatch:
    """What is to be sent to one queue, by several threads, and what became of it.

    ``ends_by``: whatever is not under way by then is left to the next tick, or the lock would run out.
    """

    count: int
    chunks: deque[list[Dispatch]]
    ends_by: float
    results: list[Sent | Unsent] = field(default_factory=list)
    error: Exception | None = None

    def may_go_on(self, now: float) -> bool:
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
