"""Acknowledges messages: deletes them, or changes how long they stay hidden."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.hooks import MessageRejected
from taskharbor.core.messages import MessageAction, MessageDecision, MessageFinding, decide_message
from taskharbor.core.results import Declined, RefusalReason, Refused, Settled
from taskharbor.delivery.transport import BATCH_LIMIT, TransportRefused, TransportUnavailable
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.runtime import MIN_PAUSE, NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.messages import Message
    from taskharbor.delivery.transport import IncomingMessage, ItemFailure
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.config import DeliveryConfig
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.hooks import HookCaller

_LOG: Final = logging.getLogger("taskharbor.worker")
IDLE_PAUSE: Final = timedelta(seconds=60)
ACK_LINGER_SECONDS: Final = 0.005
"""How long the first message waits for others, to fill a batch. Their jobs are already settled."""
PAUSE_AFTER_ERROR_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A parsed message that was received from *queue*."""

    queue: str
    delivery: IncomingMessage
    message: Message


@dataclass(frozen=True, slots=True)
class PendingAck:
    """The decision on the message of this receipt handle, and what to record in the store first.

    After *until*, by the monotonic clock, the queue service delivers the message again.
    """

    queue: str
    receipt_handle: str
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
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self.delivery = delivery
        self._transport = delivery.transport
        self._visibility = delivery.visibility
        self._lock = runtime.lock()
        self._pending: deque[PendingAck] = deque()
        self._since = 0.0
        self._is_busy = False
        self._limit = STORE_BATCH
        self._resumes_at = 0.0
        self._loops = loops
        self._call_hooks = call_hooks

    @property
    def is_done(self) -> bool:
        """Whether all decisions were carried out."""
        return not self._pending and not self._is_busy

    def settled(self, execution: Execution, answer: Settled | TaskHarborError | None) -> None:
        """Resolve the message of an attempt whose outcome was committed or refused."""
        is_settled = isinstance(answer, Settled)
        self.resolve(execution.received, MessageFinding.SETTLED if is_settled else MessageFinding.UNSETTLED)

    def resolve(self, received: ReceivedMessage | None, found: MessageFinding | Refused) -> None:
        """Delete, decline or leave a message, depending on what was *found* of its job."""
        if received is None:  # the job was claimed without a message
            return
        message, delivery = received.message, received.delivery
        decision = decide_message(
            found,
            seq=message.seq,
            receives=delivery.receive_count,
            visibility=self._visibility,
            now=self._runtime.now(),
        )
        if isinstance(found, Refused) and found.reason is RefusalReason.OTHER_QUEUE:
            self._report_foreign(received)
        declined = Declined(message.job_id, message.seq) if decision.action is MessageAction.DECLINE else None
        self._add([self._pending_ack(received.queue, delivery, decision, declined)])

    def _report_foreign(self, received: ReceivedMessage) -> None:
        queue, job_id, message_id = received.queue, received.message.job_id, received.delivery.message_id
        _LOG.warning("deleting message %s of queue %s: job %s belongs to another queue", message_id, queue, job_id)
        self._call_hooks(MessageRejected(queue=queue, job_id=job_id, message_id=message_id))

    def delete_unreadable(self, queue: str, delivery: IncomingMessage) -> None:
        """Delete a message that could not be parsed."""
        _LOG.warning("deleting message %s of queue %s: not a TaskHarbor message", delivery.message_id, queue)
        unreadable = decide_message(
            MessageFinding.UNREADABLE,
            seq=0,
            receives=delivery.receive_count,
            visibility=self._visibility,
            now=self._runtime.now(),
        )
        self._add([self._pending_ack(queue, delivery, unreadable)])

    def extend_visibility(self, executions: Iterable[Execution]) -> None:
        """Extend the visibility of the messages of running jobs, whose leases were extended."""
        self._hide([execution.received for execution in executions if execution.received is not None], self._visibility)

    def release(self, received: Sequence[ReceivedMessage]) -> None:
        """Make messages visible to other workers immediately."""
        self._hide(received, timedelta(0))

    def _hide(self, received: Sequence[ReceivedMessage], hidden_for: timedelta) -> None:
        decision = MessageDecision(MessageAction.LEAVE, hidden_for)
        self._add([self._pending_ack(each.queue, each.delivery, decision) for each in received])

    def _pending_ack(
        self, queue: str, delivery: IncomingMessage, decision: MessageDecision, declined: Declined | None = None
    ) -> PendingAck:
        until = self._runtime.monotonic() + self._visibility.total_seconds()
        return PendingAck(queue, delivery.receipt_handle, decision, until, declined)

    def _add(self, acks: Sequence[PendingAck]) -> None:
        to_do = [each for each in acks if each.decision != MessageDecision(MessageAction.LEAVE)]
        if not to_do:
            return
        with self._lock:
            is_first = not self._pending
            self._pending.extend(to_do)
            if is_first:
                self._since = self._runtime.monotonic()
            is_due = is_first or len(self._pending) >= BATCH_LIMIT
        if is_due:
            self._loops.wake("message-acks")

    def tick(self) -> timedelta:
        now = self._runtime.monotonic()
        if not self._pending:
            return IDLE_PAUSE
        since = self._since if len(self._pending) < BATCH_LIMIT else now - ACK_LINGER_SECONDS
        if (left := max(since + ACK_LINGER_SECONDS, self._resumes_at) - now) > 0:
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
        deleted = [
            each
            for each in batch
            if each.decision.action is not MessageAction.LEAVE and (is_recorded or not each.declined)
        ]
        deleted_handles = {each.receipt_handle for each in deleted}
        hidden = [
            each
            for each in batch
            if each.decision.action is MessageAction.LEAVE and each.receipt_handle not in deleted_handles
        ]
        for queue in dict.fromkeys(each.queue for each in batch):
            receipt_handles = [each.receipt_handle for each in deleted if each.queue == queue]
            changes = {each.receipt_handle: each.decision.hidden_for for each in hidden if each.queue == queue}
            self._delete(queue, receipt_handles)
            self._change(
                queue, [(handle, hidden_for) for handle, hidden_for in changes.items() if hidden_for is not None]
            )

    def _record_declined(self, declined: Sequence[Declined]) -> bool:
        """Make the store resend these messages; return False if it is unavailable: then the messages must stay."""
        # A call may name each job once. Of two messages of a job, only the newer one counts.
        newest = {each.job_id: each for each in sorted(declined, key=lambda each: each.seq)}
        try:
            if newest:
                self._driver.record_dispatch(list(newest.values()))
        except StoreUnavailable as error:
            _LOG.warning("%d messages not declined; they will be redelivered: %s", len(declined), error)
            return False
        return True

    def _delete(self, queue: str, receipt_handles: Sequence[str]) -> None:
        try:
            answers = self._transport.delete(queue, receipt_handles) if receipt_handles else []
        except (TransportUnavailable, TransportRefused) as error:
            _LOG.warning(
                "queue %s: %d messages not deleted; they will be redelivered: %s", queue, len(receipt_handles), error
            )
        else:
            _log_failures("deleted", queue, answers)

    def _change(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> None:
        try:
            answers = self._transport.change_visibility(queue, changes) if changes else []
        except (TransportUnavailable, TransportRefused) as error:
            _LOG.warning("queue %s: visibility of %d messages not changed: %s", queue, len(changes), error)
        else:
            _log_failures("changed", queue, answers)


def _log_failures(action: str, queue: str, answers: Sequence[ItemFailure | None]) -> None:
    failed = [answer for answer in answers if answer is not None]
    if failed:
        _LOG.info("queue %s: %d messages not %s: %s", queue, len(failed), action, failed[0].reason)
