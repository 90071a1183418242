"""What a worker with a queue service has besides: its messages."""

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
IDLE: Final = timedelta(seconds=60)
ACK_LINGER_SECONDS: Final = 0.005
"""Seconds in which others may join those that wait. Nobody waits for them: their jobs are settled."""
PAUSE_AFTER_ERROR_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that could be read, as it arrived from *queue*."""

    queue: str
    delivery: IncomingMessage
    message: Message


@dataclass(frozen=True, slots=True)
class PendingAck:
    """What to do with the message of this receipt handle, and what to record in the store first.

    From *until* on, by the monotonic clock, the message is delivered again and ruled on anew.
    """

    queue: str
    receipt_handle: str
    verdict: MessageDecision
    until: float
    declined: Declined | None = None


class MessageAcks:
    """Deletes messages, and changes how long they stay hidden, on a thread of its own.

    So a queue service that is slow or away keeps neither a job nor a lease waiting. While the store
    or the queue service is unavailable a message is left: it is delivered again, and finds a job
    that is final. After any other error the rulings are kept and carried out later.
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
        self._ruled: deque[PendingAck] = deque()
        self._since = 0.0
        self._is_busy = False
        self._limit = STORE_BATCH
        self._resumes_at = 0.0
        self._loops = loops
        self._call_hooks = call_hooks

    @property
    def is_done(self) -> bool:
        """Whether everything was done that was asked for."""
        return not self._ruled and not self._is_busy

    def settled(self, execution: Execution, answer: Settled | TaskHarborError | None) -> None:
        """Resolve the message of an attempt whose outcome was committed or refused."""
        is_settled = isinstance(answer, Settled)
        self.resolve(execution.received, MessageFinding.SETTLED if is_settled else MessageFinding.UNSETTLED)

    def resolve(self, received: ReceivedMessage | None, what: MessageFinding | Refused) -> None:
        """Do with a message what the rule says, by what was found behind it."""
        if received is None:  # the job came without one
            return
        message, delivery = received.message, received.delivery
        verdict = decide_message(
            what,
            seq=message.seq,
            receives=delivery.receive_count,
            visibility=self._visibility,
            now=self._runtime.now(),
        )
        if isinstance(what, Refused) and what.reason is RefusalReason.OTHER_QUEUE:
            self._report_foreign(received)
        declined = Declined(message.job_id, message.seq) if verdict.action is MessageAction.DECLINE else None
        self._rule([self._ruling(received.queue, delivery, verdict, declined)])

    def _report_foreign(self, received: ReceivedMessage) -> None:
        queue, job_id, message_id = received.queue, received.message.job_id, received.delivery.message_id
        _LOG.warning("deleting message %s of queue %s: job %s belongs to another queue", message_id, queue, job_id)
        self._call_hooks(MessageRejected(queue=queue, job_id=job_id, message_id=message_id))

    def delete_unreadable(self, queue: str, delivery: IncomingMessage) -> None:
        """Delete what nobody can read."""
        _LOG.warning("deleted a message of queue %s that is not one of ours: %s", queue, delivery.message_id)
        unreadable = decide_message(
            MessageFinding.UNREADABLE,
            seq=0,
            receives=delivery.receive_count,
            visibility=self._visibility,
            now=self._runtime.now(),
        )
        self._rule([self._ruling(queue, delivery, unreadable)])

    def extend_visibility(self, executions: Iterable[Execution]) -> None:
        """Keep the messages of jobs in hand hidden, as their leases run on."""
        self._hide([execution.received for execution in executions if execution.received is not None], self._visibility)

    def release(self, received: Sequence[ReceivedMessage]) -> None:
        """Show messages to others at once."""
        self._hide(received, timedelta(0))

    def _hide(self, received: Sequence[ReceivedMessage], hidden_for: timedelta) -> None:
        verdict = MessageDecision(MessageAction.LEAVE, hidden_for)
        self._rule([self._ruling(each.queue, each.delivery, verdict) for each in received])

    def _ruling(
        self, queue: str, delivery: IncomingMessage, verdict: MessageDecision, declined: Declined | None = None
    ) -> PendingAck:
        until = self._runtime.monotonic() + self._visibility.total_seconds()
        return PendingAck(queue, delivery.receipt_handle, verdict, until, declined)

    def _rule(self, rulings: Sequence[PendingAck]) -> None:
        to_do = [each for each in rulings if each.verdict != MessageDecision(MessageAction.LEAVE)]
        if not to_do:
            return
        with self._lock:
            is_first = not self._ruled
            self._ruled.extend(to_do)
            if is_first:
                self._since = self._runtime.monotonic()
            is_due = is_first or len(self._ruled) >= BATCH_LIMIT
        if is_due:
            self._loops.wake("message-acks")

    def tick(self) -> timedelta:
        now = self._runtime.monotonic()
        if not self._ruled:
            return IDLE
        since = self._since if len(self._ruled) < BATCH_LIMIT else now - ACK_LINGER_SECONDS
        if (left := max(since + ACK_LINGER_SECONDS, self._resumes_at) - now) > 0:
            return max(timedelta(seconds=left), MIN_PAUSE)
        self._is_busy = True
        try:
            self._carry_out_next()
        finally:
            self._is_busy = False
        return NO_PAUSE if self._ruled else IDLE

    def _carry_out_next(self) -> None:
        with self._lock:
            batch = [self._ruled.popleft() for _ in range(min(self._limit, len(self._ruled)))]
        try:
            self._carry_out(batch)
        except BaseException:
            self._put_back(batch)
            raise
        self._limit = min(2 * self._limit, STORE_BATCH)

    def _put_back(self, batch: Sequence[PendingAck]) -> None:
        """Keep the rulings of a batch that failed, behind the others; fewer at once, so that one does not block all."""
        now = self._runtime.monotonic()
        with self._lock:
            self._ruled.extend(each for each in batch if now < each.until)
        self._limit = max(len(batch) // 2, 1)
        self._resumes_at = now + PAUSE_AFTER_ERROR_SECONDS

    def _carry_out(self, batch: Sequence[PendingAck]) -> None:
        is_told = self._record_declined([each.declined for each in batch if each.declined is not None])
        deleted = [
            each for each in batch if each.verdict.action is not MessageAction.LEAVE and (is_told or not each.declined)
        ]
        gone = {each.receipt_handle for each in deleted}
        hidden = [
            each for each in batch if each.verdict.action is MessageAction.LEAVE and each.receipt_handle not in gone
        ]
        for queue in dict.fromkeys(each.queue for each in batch):
            receipts = [each.receipt_handle for each in deleted if each.queue == queue]
            changes = {each.receipt_handle: each.verdict.hidden_for for each in hidden if each.queue == queue}
            self._delete(queue, receipts)
            self._change(queue, [(receipt, time) for receipt, time in changes.items() if time is not None])

    def _record_declined(self, declined: Sequence[Declined]) -> bool:
        """Tell the store that it must ring again. Where it cannot be told, the messages stay: they come again."""
        # A call names each job once; of two messages only the newer one counts.
        newest = {each.job_id: each for each in sorted(declined, key=lambda each: each.seq)}
        try:
            if newest:
                self._driver.record_dispatch(list(newest.values()))
        except StoreUnavailable as error:
            _LOG.warning("cannot decline %d messages, and leave them: %s", len(declined), error)
            return False
        return True

    def _delete(self, queue: str, receipts: Sequence[str]) -> None:
        try:
            answers = self._transport.delete(queue, receipts) if receipts else []
        except (TransportUnavailable, TransportRefused) as error:
            _LOG.warning(
                "cannot delete %d messages of queue %s, and let them come again: %s", len(receipts), queue, error
            )
        else:
            _log_failures("deleted", queue, answers)

    def _change(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> None:
        try:
            answers = self._transport.change_visibility(queue, changes) if changes else []
        except (TransportUnavailable, TransportRefused) as error:
            _LOG.warning("cannot hide %d messages of queue %s for longer: %s", len(changes), queue, error)
        else:
            _log_failures("hidden for longer", queue, answers)


def _log_failures(what: str, queue: str, answers: Sequence[ItemFailure | None]) -> None:
    failed = [answer for answer in answers if answer is not None]
    if failed:
        _LOG.info("%d messages of queue %s were not %s: %s", len(failed), queue, what, failed[0].reason)
