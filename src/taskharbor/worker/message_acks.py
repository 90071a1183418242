"""Acknowledges messages: deletes them, or changes how long they stay hidden."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.hooks import (
    ClaimRefused,
    MessageRejected,
    MessagesDeclined,
    MessagesDeleted,
    MessagesReceived,
)
from taskharbor.core.messages import MessageAction, MessageDecision, MessageFinding, decide_message
from taskharbor.core.results import Declined, RefusalReason, Refused, Settled
from taskharbor.delivery.transport import BATCH_LIMIT, TransportRefused, TransportUnavailable
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.observability.failure_log import QUEUE_SERVICE, STORE
from taskharbor.runtime import MIN_PAUSE, NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.ids import JobId
    from taskharbor.core.messages import NamedJob
    from taskharbor.delivery.transport import IncomingMessage, ItemFailure
    from taskharbor.drivers.base import Driver
    from taskharbor.janitor import ClockGuard
    from taskharbor.observability.hook_caller import HookCaller
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.config import DeliveryConfig
    from taskharbor.worker.execution import Execution

_LOG: Final = logging.getLogger("taskharbor.worker")
IDLE_PAUSE: Final = timedelta(seconds=60)
ACK_LINGER_SECONDS: Final = 0.005
"""How long the first message waits for others, to fill a batch."""
DELETE_LINGER_SECONDS: Final = 0.05
"""The same if all are deleted: their jobs are settled, so nothing waits for it."""
PAUSE_AFTER_ERROR_SECONDS: Final = 1.0


@dataclass(slots=True, eq=False)
class ReceivedMessage:
    """A readable message that was received from *queue*.

    ``unresolved`` are the numbers of the job ids that are neither settled nor declined. A message that ``is_left`` is
    not deleted after this delivery, nor hidden for longer: it is delivered again at ``visible_at``, by the monotonic
    clock, and its jobs are looked up again.
    """

    queue: str
    delivery: IncomingMessage
    unresolved: set[int]
    is_left: bool = False
    visible_at: float = inf

    @property
    def is_done(self) -> bool:
        """Whether it can be deleted."""
        return not self.unresolved and not self.is_left


@dataclass(frozen=True, slots=True)
class ReceivedJob:
    """A job that a received message names."""

    message: ReceivedMessage
    named: NamedJob

    @property
    def job_id(self) -> JobId:
        return self.named.job_id


@dataclass(frozen=True, slots=True)
class PendingAck:
    """The decision on a message, and what to record in the store first.

    After *until*, by the monotonic clock, the queue service delivers the message again.
    """

    message: ReceivedMessage
    decision: MessageDecision
    until: float
    declined: Declined | None = None


class MessageAcks:
    """Deletes messages, and changes how long they stay hidden, on a thread of its own.

    A slow or unavailable queue service therefore delays no job and no lease. If the store or the
    queue service is unavailable, a message is left alone: it is delivered again, and its job is
    final by then. After any other error the decisions are kept and retried.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        delivery: DeliveryConfig,
        loops: ServiceLoops,
        call_hooks: HookCaller,
        *,
        guard: ClockGuard,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self.delivery = delivery
        self._guard = guard
        self._transport = delivery.transport
        self._visibility = delivery.visibility
        self._lock = runtime.lock()
        self._pending: deque[PendingAck] = deque()
        self._due_at = 0.0
        self._is_busy = False
        self._limit = STORE_BATCH
        self._resumes_at = 0.0
        self._loops = loops
        self._call_hooks = call_hooks

    @property
    def is_done(self) -> bool:
        """Whether all decisions were carried out."""
        return not self._pending and not self._is_busy

    def received(self, queue: str, count: int) -> None:
        """Report received messages to the hooks."""
        if self._call_hooks:
            self._call_hooks(MessagesReceived(queue=queue, count=count))

    def settled(self, execution: Execution, answer: Settled | TaskHarborError | None) -> None:
        """Resolve the message of an attempt whose outcome was committed or refused."""
        is_settled, received = isinstance(answer, Settled), execution.received
        if is_settled and received is not None and not self._finish(received.message, received.job_id):
            return  # other jobs of the message are unresolved. A decision, which takes 5 µs, would change nothing.
        self.resolve(received, MessageFinding.SETTLED if is_settled else MessageFinding.UNSETTLED)

    def resolve(self, received: ReceivedJob | None, found: MessageFinding | Refused) -> None:
        """Decide on a message by what was *found* of one of its jobs.

        It is deleted when all its jobs are settled or declined, and left if the decision on one of them is to leave it.
        """
        if received is None:  # the job was claimed without a message
            return
        message, named = received.message, received.named
        decision = self._decide(found, named.seq, message)
        if isinstance(found, Refused):
            self._report_refused(received, found.reason)
        if decision.action is MessageAction.LEAVE:
            self._leave(message, decision.hidden_for)
        elif decision.action is MessageAction.DECLINE:
            self._add([self._pending_ack(message, decision, Declined(named.job_id, named.seq))])
        elif self._finish(message, named.job_id):
            self._add([self._pending_ack(message, decision)])

    def _decide(self, found: MessageFinding | Refused, seq: int, message: ReceivedMessage) -> MessageDecision:
        return decide_message(
            found,
            seq=seq,
            receives=message.delivery.receive_count,
            visibility=self._visibility,
            now=self._guard.store_time(),
        )

    def _finish(self, message: ReceivedMessage, job_id: JobId) -> bool:
        """Note that this job is settled or declined; return whether the message can be deleted now."""
        with self._lock:
            message.unresolved.discard(job_id.int)
            return message.is_done

    def _report_refused(self, received: ReceivedJob, reason: RefusalReason) -> None:
        queue, job_id = received.message.queue, received.job_id
        if self._call_hooks:
            self._call_hooks(ClaimRefused(queue=queue, job_id=job_id, reason=reason))
        if reason is not RefusalReason.OTHER_QUEUE:
            return
        message_id = received.message.delivery.message_id
        text = "deleting message %s of queue %s: job %s belongs to another queue"
        _LOG.warning(text, message_id, queue, job_id, extra={"job_id": str(job_id)})
        self._call_hooks(MessageRejected(queue=queue, job_id=job_id, message_id=message_id))

    def delete_unreadable(self, queue: str, delivery: IncomingMessage) -> None:
        """Delete a message that could not be parsed."""
        _LOG.warning("deleting message %s of queue %s: not a TaskHarbor message", delivery.message_id, queue)
        message = ReceivedMessage(queue, delivery, set())
        self._add([self._pending_ack(message, self._decide(MessageFinding.UNREADABLE, 0, message))])

    def extend_visibility(self, executions: Iterable[Execution]) -> None:
        """Extend the visibility of the messages of running jobs, whose leases were extended."""
        messages = {each.received.message: None for each in executions if each.received is not None}
        extended = MessageDecision(MessageAction.LEAVE, self._visibility)
        self._add([self._pending_ack(message, extended) for message in messages if not message.is_left])

    def release(self, received: Iterable[ReceivedJob]) -> None:
        """Make the messages of these jobs visible to other workers immediately."""
        for message in {each.message: None for each in received}:
            self._leave(message, timedelta(0))

    def _leave(self, message: ReceivedMessage, hidden_for: timedelta | None) -> None:
        """Let the message be delivered again. Of several jobs, the one that must be looked up first decides when."""
        visible_at = inf if hidden_for is None else self._runtime.monotonic() + hidden_for.total_seconds()
        with self._lock:
            message.is_left = True
            is_earlier = visible_at < message.visible_at
            message.visible_at = min(visible_at, message.visible_at)
        if is_earlier:
            self._add([self._pending_ack(message, MessageDecision(MessageAction.LEAVE, hidden_for))])

    def _pending_ack(
        self, message: ReceivedMessage, decision: MessageDecision, declined: Declined | None = None
    ) -> PendingAck:
        return PendingAck(message, decision, self._runtime.monotonic() + self._visibility.total_seconds(), declined)

    def _add(self, acks: Sequence[PendingAck]) -> None:
        if not acks:
            return
        is_delete = all(each.decision.action is MessageAction.DELETE for each in acks)
        due_at = self._runtime.monotonic() + (DELETE_LINGER_SECONDS if is_delete else ACK_LINGER_SECONDS)
        with self._lock:
            is_earlier = not self._pending or due_at < self._due_at
            self._due_at = due_at if is_earlier else self._due_at
            self._pending.extend(acks)
            is_due = is_earlier or len(self._pending) >= BATCH_LIMIT
        if is_due:
            self._loops.wake("message-acks")

    def tick(self) -> timedelta:
        now = self._runtime.monotonic()
        if not self._pending:
            return IDLE_PAUSE
        due_at = self._due_at if len(self._pending) < BATCH_LIMIT else now
        if (left := max(due_at, self._resumes_at) - now) > 0:
            return max(timedelta(seconds=left), MIN_PAUSE)
        self._is_busy = True
        try:
            self._carry_out_next()
        finally:
            self._is_busy = False
        return NO_PAUSE if self._pending else IDLE_PAUSE

    def _carry_out_next(self) -> None:
        with self._lock:
            batch = [self._pending.popleft() for _ in range(min(self._limit, len(self._pending)))]
        try:
            self._carry_out(batch)
        except BaseException:
            self._put_back(batch)
            raise
        self._limit = min(2 * self._limit, STORE_BATCH)

    def _put_back(self, batch: Sequence[PendingAck]) -> None:
        """Queue a failed batch behind the others, and halve the batch size: one message must not block the rest."""
        now = self._runtime.monotonic()
        with self._lock:
            self._pending.extend(each for each in batch if now < each.until)
        self._limit = max(len(batch) // 2, 1)
        self._resumes_at = now + PAUSE_AFTER_ERROR_SECONDS

    def _carry_out(self, batch: Sequence[PendingAck]) -> None:
        is_recorded = self._record_declined([each.declined for each in batch if each.declined is not None])
        if is_recorded and self._call_hooks:
            declined = Counter(each.message.queue for each in batch if each.declined is not None)
            self._call_hooks.all(MessagesDeclined(queue=queue, count=count) for queue, count in declined.items())
        for each in batch:
            if each.declined is None:
                continue
            if is_recorded:
                self._finish(each.message, each.declined.job_id)
            else:
                self._leave(each.message, None)
        # A dict keeps the order. The message of a declined job stays while its other jobs run.
        deleted = {
            each.message: None
            for each in batch
            if each.decision.action is not MessageAction.LEAVE and each.message.is_done
        }
        hidden = {
            each.message: each.decision.hidden_for
            for each in batch
            if each.decision.action is MessageAction.LEAVE and each.message not in deleted
        }
        for queue in dict.fromkeys(each.message.queue for each in batch):
            self._delete(queue, [message.delivery.receipt_handle for message in deleted if message.queue == queue])
            self._change(
                queue,
                [
                    (message.delivery.receipt_handle, hidden_for)
                    for message, hidden_for in hidden.items()
                    if message.queue == queue and hidden_for is not None
                ],
            )

    def _record_declined(self, declined: Sequence[Declined]) -> bool:
        """Make the store resend these messages; return False if it is unavailable: then the messages must stay."""
        # A call may name each job once. Of two messages of a job, only the newer one counts.
        newest = {each.job_id: each for each in sorted(declined, key=lambda each: each.seq)}
        try:
            if newest:
                self._driver.record_dispatch(list(newest.values()))
        except StoreUnavailable as error:
            self._loops.failures.unavailable(STORE, error)
            return False
        return True

    def _delete(self, queue: str, receipt_handles: Sequence[str]) -> None:
        try:
            answers = self._transport.delete(queue, receipt_handles) if receipt_handles else []
        except (TransportUnavailable, TransportRefused) as error:
            self._report("deleting", queue, error)
        else:
            _log_failures("deleted", queue, answers)
            if self._call_hooks and (deleted := answers.count(None)):
                self._call_hooks(MessagesDeleted(queue=queue, count=deleted))

    def _change(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> None:
        try:
            answers = self._transport.change_visibility(queue, changes) if changes else []
        except (TransportUnavailable, TransportRefused) as error:
            self._report("changing the visibility of", queue, error)
        else:
            _log_failures("changed", queue, answers)

    def _report(self, action: str, queue: str, error: TransportUnavailable | TransportRefused) -> None:
        """Log a failed call. Its messages will be redelivered, and find their jobs final or running."""
        if isinstance(error, TransportUnavailable):
            self._loops.failures.unavailable(QUEUE_SERVICE, error, meanwhile="polling the store")
        else:
            self._loops.failures.unexpected(f"{action} messages of queue {queue}", error)


def _log_failures(action: str, queue: str, answers: Sequence[ItemFailure | None]) -> None:
    failed = [answer for answer in answers if answer is not None]
    if failed:
        _LOG.info("queue %s: %d messages not %s: %s", queue, len(failed), action, failed[0].reason)
