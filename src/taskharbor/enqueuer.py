"""The `DueTaskEnqueuer`: marks due jobs as dispatched in the store, and sends their ids to a transport."""

from __future__ import annotations

import logging
from collections import Counter, deque
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final

from taskharbor.core.durations import Duration, as_timedelta
from taskharbor.core.errors import Problem, StoreUnavailable, UsageError
from taskharbor.core.hooks import JobsDispatched, JobsResent
from taskharbor.core.messages import (
    MAX_BUNDLE,
    NOTE_INTERVAL,
    DeliveryNote,
    DeliveryRole,
    NamedJob,
    encode_message,
    resend_interval,
)
from taskharbor.core.request import QUEUE_PATTERN
from taskharbor.core.results import Sent, Unsent
from taskharbor.delivery.transport import BATCH_LIMIT, OutgoingMessage, TransportRefused, TransportUnavailable
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.health import WatchedService
from taskharbor.observability.failure_log import QUEUE_SERVICE, STORE
from taskharbor.observability.hook_caller import HookCaller
from taskharbor.runtime import MIN_PAUSE, NO_PAUSE
from taskharbor.service import ServiceLoops

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from taskharbor.core.hooks import Hook
    from taskharbor.core.results import Dispatch
    from taskharbor.delivery.transport import ItemFailure, Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.observability.failure_log import FailureLog
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
    no more are sent. *batch* jobs are dispatched at once, by up to *senders* threads. *hooks* receive an event for the
    jobs that were sent. Durations are timedeltas or numbers of seconds.

    With *bundle* above 1, a message names up to that many jobs while a backlog is due: when a whole batch is due, or
    more than ten messages for each live worker of the queue. Jobs that are sent again go in messages of their own.
    Workers of earlier versions do not know messages with several jobs, and delete them: upgrade the workers first.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        transport: Transport,
        *,
        queues: Sequence[str],
        max_idle: Duration = MAX_IDLE,
        lock: Duration = DISPATCH_LOCK,
        resend_after: Duration = FIRST_RESEND,
        max_resend: Duration = MAX_RESEND,
        max_unclaimed: int = MAX_UNCLAIMED,
        batch: int = STORE_BATCH,
        senders: int = MAX_SENDERS,
        bundle: int = 1,
        hooks: Sequence[Hook] = (),
    ) -> None:
        _check(queues, bundle)
        self._runtime = runtime
        self._driver = driver
        self._queues = list(queues)
        self._max_idle = as_timedelta(max_idle, "max_idle")
        # In a runtime with a single thread no thread can wait for another.
        lanes = [QueueLane(queue, runtime.lock() if runtime.can_block else nullcontext()) for queue in queues]
        options = DispatchOptions(
            max_idle=self._max_idle,
            lock=as_timedelta(lock, "lock"),
            resend_after=as_timedelta(resend_after, "resend_after"),
            max_resend=as_timedelta(max_resend, "max_resend"),
            max_unclaimed=max_unclaimed,
            batch=batch,
            senders=senders if runtime.can_block else 1,
            bundle=bundle,
        )
        call_hooks = HookCaller(hooks, _LOG)
        self._loops = ServiceLoops(runtime, call_hooks=call_hooks)
        new_loop = partial(
            DispatchLoop,
            runtime,
            driver,
            transport,
            lanes,
            options,
            failures=self._loops.failures,
            call_hooks=call_hooks,
        )
        self._lanes = lanes
        self._first, self._second = new_loop(polls_due_times=True), new_loop(polls_due_times=False)
        self._max_tick = options.lock * len(lanes)  # each queue may be sent to for about that long
        self._listener: Listener | None = None

    @property
    def watched(self) -> WatchedService:
        """What `taskharbor.health` judges the enqueuer by."""
        return WatchedService(
            loops=self._loops,
            ask_store=self._driver.inspector.settings,
            is_stopping=lambda: self._loops.is_stopped,
            problems=lambda: {
                "dispatch": self._first.problem,
                **{f"queue:{lane.queue}": "sending failed" if lane.problem else "" for lane in self._lanes},
            },
        )

    def start(self) -> None:
        """Start two dispatch threads: one queries the store while the other sends.

        Raises `SchemaOutOfDate` if migrations are pending. A store that is unavailable is tried again.
        """
        self._loops.add("dispatch:2", self._second.tick, may_take=self._max_tick)
        self._loops.add("dispatch:1", self._tick_first, may_take=self._max_tick)
        if self._runtime.can_block:
            with suppress(StoreUnavailable):  # the loops try again
                self._driver.inspector.now()
            self._listener = self._driver.listen(self._queues)
            self._loops.add("listener", self._listen, may_take=self._max_idle)
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
    bundle: int


class DispatchLoop:
    """Marks due jobs in the store, sends their ids, and records what was sent.

    Two loops share the *lanes* of one enqueuer. Only the loop with *polls_due_times* queries when the next
    job is due, and records that the queues have an enqueuer.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        transport: Transport,
        lanes: Sequence[QueueLane],
        options: DispatchOptions,
        *,
        failures: FailureLog,
        call_hooks: HookCaller,
        polls_due_times: bool,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._transport = transport
        self._lanes = list(lanes)
        self._options = options
        self._failures = failures
        self._call_hooks = call_hooks
        self._polls_due_times = polls_due_times
        self._unrecorded: list[Sent | Unsent] = []
        self._noted: set[DeliveryNote] = set()
        self._note_again_at = 0.0
        self._workers = Counter[str]()
        self._count_workers_at = -inf
        self.problem = "nothing has been dispatched yet"
        """Why the store does not dispatch jobs; empty if it does."""

    def tick(self) -> timedelta:
        """Dispatch one batch of each queue, and return the pause until the next tick."""
        try:
            self._record([])
            if self._polls_due_times:
                self._record_delivery()
            self._count_workers()
            self._lanes.append(self._lanes.pop(0))  # each tick starts with another queue
            return min([self._serve(lane) for lane in self._lanes])
        except StoreUnavailable as error:
            self._failures.unavailable(STORE, error)
            self.problem = "the store failed in the last tick"
            return self._options.max_idle

    def _record_delivery(self) -> None:
        """Record that the queues have an enqueuer: periodically, and when sending begins to fail or to work."""
        notes = {DeliveryNote(queue=each.queue, role=DeliveryRole.SENDER, problem=each.problem) for each in self._lanes}
        now = self._runtime.monotonic()
        if notes != self._noted or now >= self._note_again_at:
            self._driver.maintenance.record_delivery(list(notes))
            self._noted, self._note_again_at = notes, now + NOTE_INTERVAL.total_seconds()

    def _count_workers(self) -> None:
        """Count the live workers of each queue periodically, before jobs are locked. Only bundles depend on them."""
        now = self._runtime.monotonic()
        if self._options.bundle > 1 and now >= self._count_workers_at:
            workers = self._driver.inspector.workers()
            self._workers = Counter(queue for worker in workers for queue in worker.queues)
            self._count_workers_at = now + NOTE_INTERVAL.total_seconds()

    def _serve(self, lane: QueueLane) -> timedelta:
        options = self._options
        backoff = lane.backs_off_until - self._runtime.monotonic()
        if backoff > 0:
            return min(options.max_idle, max(MIN_PAUSE, timedelta(seconds=backoff)))
        # A queue that failed is tried with a single call.
        limit, began = BATCH_LIMIT if lane.backoff else options.batch, self._runtime.monotonic()
        due = self._driver.dispatch(lane.queue, limit=limit, lock=options.lock, unclaimed=options.max_unclaimed)
        self._failures.available(STORE)
        self.problem = ""
        if not due:
            return self._until_due(lane)
        bundles = self._bundled(lane.queue, due)
        chunks = deque(bundles[n : n + BATCH_LIMIT] for n in range(0, len(bundles), BATCH_LIMIT))
        sending = SendBatch(len(due), chunks, ends_by=began + options.lock.total_seconds() / 2)
        with lane.sending:  # held for at most half of *lock* plus one call
            self._send_all(lane, sending)
        self._note(lane, sending)
        if self._call_hooks:
            self._report_sent(lane.queue, sending.results)
        self._record(sending.results)
        if sending.error is not None:
            return options.max_idle
        return NO_PAUSE if len(due) == limit else self._until_due(lane)

    def _bundled(self, queue: str, due: Sequence[Dispatch]) -> list[list[Dispatch]]:
        """Group *due* jobs by message."""
        # A job that is sent again had no slot, or was named by a message that was lost or not understood.
        first_sends = [each for each in due if each.resends <= 1]
        size = self._bundle_size(queue, len(first_sends), is_backlog=len(due) >= self._options.batch)
        if size == 1:
            return [[each] for each in due]
        again = [[each] for each in due if each.resends > 1]
        return again + [first_sends[n : n + size] for n in range(0, len(first_sends), size)]

    def _bundle_size(self, queue: str, due: int, *, is_backlog: bool) -> int:
        """Return how many jobs a message names. Every live worker must find as many messages as it can receive."""
        if self._options.bundle == 1 or is_backlog:
            return self._options.bundle
        return min(max(due // (BATCH_LIMIT * max(self._workers[queue], 1)), 1), self._options.bundle)

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
        sending.results += [Unsent(each) for chunk in sending.chunks for each in chain(*chunk)]

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
            sending.results += [] if error.is_unknown else [Unsent(each) for each in chain(*chunk)]
        except TransportRefused as error:
            sending.error = error
            sending.results += [Unsent(each) for each in chain(*chunk)]
        return True

    def _sent(self, queue: str, chunk: Sequence[list[Dispatch]]) -> list[Sent | Unsent]:
        messages = [
            OutgoingMessage(encode_message([NamedJob(each.job_id, each.seq) for each in bundle])) for bundle in chunk
        ]
        answers = self._transport.send(queue, messages)
        results = [self._result(each, failed) for bundle, failed in zip(chunk, answers, strict=True) for each in bundle]
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
            self._failures.available(QUEUE_SERVICE)
            if lane.is_failing:
                _LOG.warning("queue %s: sending works again", lane.queue)
            lane.backoff, lane.backs_off_until, lane.is_failing, lane.problem = 0.0, 0.0, False, ""
            return
        reason = sending.error or f"{sending.count - sent} of {sending.count} jobs were not sent"
        if isinstance(sending.error, TransportUnavailable):
            self._failures.unavailable(QUEUE_SERVICE, sending.error)
        elif not lane.is_failing:
            lane.is_failing = True
            _LOG.warning("queue %s: sending failed; retrying: %s", lane.queue, reason)
        lane.problem = str(reason)
        lane.backoff = min(2 * lane.backoff or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        lane.backs_off_until = self._runtime.monotonic() + lane.backoff

    def _report_sent(self, queue: str, results: Sequence[Sent | Unsent]) -> None:
        sent = [each.dispatch.resends > 1 for each in results if isinstance(each, Sent)]
        if resent := sum(sent):
            self._call_hooks(JobsResent(queue=queue, count=resent))
        if dispatched := len(sent) - resent:
            self._call_hooks(JobsDispatched(queue=queue, count=dispatched))

    def _record(self, results: Sequence[Sent | Unsent]) -> None:
        """Record *results* in the store. If that fails, they are recorded before anything else is sent."""
        self._unrecorded += results
        if self._unrecorded:
            self._driver.record_dispatch(self._unrecorded)
            self._unrecorded = []


@dataclass(slots=True)
class QueueLane:
    """A queue, its backoff in seconds after a failure and what failed, and whether that was logged.

    A loop holds the lock ``sending`` while it sends. Without it both loops would send at the same time,
    and then both would query the store.
    """

    queue: str
    sending: AbstractContextManager[object]
    backoff: float = 0.0
    backs_off_until: float = 0.0
    problem: str = ""
    is_failing: bool = False


@dataclass(slots=True)
class SendBatch:
    """Messages for one queue, which several threads send, and their results. *count* is the number of jobs.

    A chunk goes in one call. It is a list of messages, and a message is a list of jobs. Messages that are not sent by
    ``ends_by`` are left to the next tick: the lock on their jobs would expire.
    """

    count: int
    chunks: deque[list[list[Dispatch]]]
    ends_by: float
    results: list[Sent | Unsent] = field(default_factory=list)
    error: Exception | None = None

    def may_continue(self, now: float) -> bool:
        return self.error is None and now < self.ends_by

    def next_chunk(self) -> list[list[Dispatch]]:
        try:
            return self.chunks.popleft()
        except IndexError:  # another thread took the last one
            return []


def _check(queues: Sequence[str], bundle: int) -> None:
    if not queues:
        raise UsageError(Problem(field="queues", value="none", rule="name at least one"))
    if not 1 <= bundle <= MAX_BUNDLE:
        raise UsageError(Problem(field="bundle", value=str(bundle), rule=f"must be from 1 to {MAX_BUNDLE}"))
    for name in queues:
        if QUEUE_PATTERN.fullmatch(name) is None:
            raise UsageError(Problem(field="queue", value=repr(name), rule=f"must match {QUEUE_PATTERN.pattern}"))
