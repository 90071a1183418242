"""An in-memory queue service that loses, duplicates, delays and reorders messages and invalidates receipt handles."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from taskharbor.delivery.transport import BATCH_LIMIT, IncomingMessage, ItemFailure, QueueDepth, TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from taskharbor.delivery.transport import OutgoingMessage, QueueSpec

QUEUE_CALLS: Final = ("delete", "change_visibility", "receive", "send")
"""The verbs that may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFaultRates:
    """The rates of lost and duplicated messages, and the maximum delay in seconds.

    *stray* is how often a copy also arrives in another queue. No service does that, but any sender can.
    """

    loss: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    stray: float = 0.0


@dataclass(slots=True)
class MessageCopy:
    """A message in a queue. Its receipt handle is that of its last delivery."""

    message_id: str
    body: str
    attributes: Mapping[str, str]
    visible_at: float
    receipt_handle: str = ""
    receive_count: int = 0


@dataclass(slots=True)
class QueueService:
    """A `taskharbor.delivery.transport.Transport` with the weakest guarantees that the protocol allows.

    *clock* returns seconds, and *rng* draws the faults. A verb, or a verb and a queue
    ("send mail"), in ``broken`` raises. A queue in ``throttled`` rejects messages.
    """

    clock: Callable[[], float]
    rng: Random = field(default_factory=lambda: Random(0))  # noqa: S311  it must be repeatable
    fault_rates: QueueFaultRates = field(default_factory=QueueFaultRates)
    broken: set[str] = field(default_factory=set)
    throttled: set[str] = field(default_factory=set)
    queues: dict[str, list[MessageCopy]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _count: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def ensure_queues(self, specs: Sequence[QueueSpec]) -> None:
        for shape in specs:
            self.queues.setdefault(shape.name, [])

    def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[ItemFailure | None]:
        with self._changed:
            self._begin("send", queue, len(messages))
            if queue in self.throttled:
                return [ItemFailure("Throttled", "slow down", is_permanent=False)] * len(messages)
            for message in messages:
                self._arrive(queue, message)
            self._changed.notify_all()
        return [None] * len(messages)

    def receive(self, queue: str, *, most: int, wait: timedelta, visibility: timedelta) -> list[IncomingMessage]:
        ends_at = self.clock() + wait.total_seconds()
        with self._changed:
            self._begin("receive", queue, 1)
            while not (ready := self._ready(queue)) and (left := ends_at - self.clock()) > 0:
                hidden = [copy.visible_at - self.clock() for copy in self.queues.get(queue, ())]
                self._changed.wait(min([left, *hidden]))
            self.rng.shuffle(ready)
            return [self._deliver(copy, visibility) for copy in self._doubled(ready)[: min(most, BATCH_LIMIT)]]

    def delete(self, queue: str, receipts: Sequence[str]) -> list[ItemFailure | None]:
        with self._changed:
            self._begin("delete", queue, len(receipts))
            kept = [copy for copy in self.queues.get(queue, ()) if copy.receipt_handle not in receipts]
            self.queues[queue] = kept
        return [None] * len(receipts)

    def change_visibility(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> list[ItemFailure | None]:
        with self._changed:
            self._begin("change_visibility", queue, len(changes))
            hidden_for = dict(changes)
            for copy in self.queues.get(queue, ()):
                if copy.receipt_handle in hidden_for:
                    copy.visible_at = self.clock() + hidden_for[copy.receipt_handle].total_seconds()
            self._changed.notify_all()
        return [None] * len(changes)

    def depth(self, queue: str) -> QueueDepth:
        with self._changed:
            copies, ready = self.queues.get(queue, []), len(self._ready(queue))
            in_flight = sum(1 for copy in copies if copy.receive_count and copy.visible_at > self.clock())
            return QueueDepth(ready=ready, in_flight=in_flight, delayed=len(copies) - ready - in_flight)

    @property
    def last_visible_at(self) -> float:
        """When the last message becomes visible, by `clock`."""
        return max((copy.visible_at for copies in self.queues.values() for copy in copies), default=0.0)

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _begin(self, verb: str, queue: str, items: int) -> None:
        self.calls[verb] = self.calls.get(verb, 0) + max(1, -(-items // BATCH_LIMIT))
        if not self.broken.isdisjoint({verb, f"{verb} {queue}"}):
            raise TransportUnavailable(f"{verb} is broken")

    def _arrive(self, queue: str, message: OutgoingMessage) -> None:
        if self.rng.random() < self.fault_rates.loss:
            return
        self._count += 1
        others = [name for name in self.queues if name != queue and not name.startswith(".")]
        if self.fault_rates.stray and others and self.rng.random() < self.fault_rates.stray:
            copy = MessageCopy(f"m{self._count}", message.body, dict(message.attributes), self.clock())
            self.queues[self.rng.choice(others)].append(copy)
        for _ in range(2 if self.rng.random() < self.fault_rates.double else 1):
            visible_at = self.clock() + self.rng.uniform(0, self.fault_rates.delay)
            copy = MessageCopy(f"m{self._count}", message.body, dict(message.attributes), visible_at)
            self.queues.setdefault(queue, []).append(copy)

    def _ready(self, queue: str) -> list[MessageCopy]:
        now = self.clock()
        return [copy for copy in self.queues.get(queue, ()) if copy.visible_at <= now]

    def _doubled(self, ready: list[MessageCopy]) -> list[MessageCopy]:
        """Duplicate some messages within one batch."""
        return [each for copy in ready for each in [copy] * (1 + (self.rng.random() < self.fault_rates.double))]

    def _deliver(self, copy: MessageCopy, visibility: timedelta) -> IncomingMessage:
        self._count += 1
        copy.receipt_handle = f"r{self._count}"
        copy.receive_count += 1
        copy.visible_at = self.clock() + visibility.total_seconds()
        return IncomingMessage(
            body=copy.body,
            receipt_handle=copy.receipt_handle,
            message_id=copy.message_id,
            receive_count=copy.receive_count,
            attributes=copy.attributes,
        )
