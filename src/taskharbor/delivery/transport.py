"""The protocol of a queue service: carry messages at least once, in any order.

Queue names here are TaskHarbor's (`mail`); an adapter maps them to the names of its service. Many
threads call the methods at once, and every call has a deadline. A batch may have any size; the adapter
splits it as the service requires. The result has one entry per item, in order: None for a success, or
an `ItemFailure`, which is returned and not raised. A call raises `TransportUnavailable` (a retry may
help) or `TransportRefused` (the configuration must be fixed) only if no item is known to have
succeeded. Durations are rounded up to whole seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.core.errors import TaskHarborError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

BATCH_LIMIT: Final = 10
"""The maximum number of messages in one call of a queue service: the limit of SQS."""
DEAD_EVENTS_QUEUE: Final = ".dead-events"
"""The queue for dead-letter events. The names of users' queues cannot begin with a dot."""

UNREADABLE_QUEUE: Final = ".unreadable"
"""The queue for messages that were received many times and never deleted."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send. Attributes carry the trace context only; losing them is harmless."""

    body: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingMessage:
    """A received message. *receipt_handle* is valid for this delivery only; *receive_count* counts its deliveries."""

    body: str
    receipt_handle: str = field(repr=False)
    message_id: str
    receive_count: int
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """One item of a batch failed.

    *is_permanent*: the same item would be refused again. *is_unknown*: the item may have taken effect,
    because the service did not report it or the reply was lost.
    """

    code: str
    reason: str
    is_permanent: bool
    is_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """The approximate number of messages in a queue: ready, received by a worker, and delayed."""

    ready: int
    in_flight: int
    delayed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """The wanted attributes of a queue. *dead_letters* is the queue for messages that are never deleted."""

    name: str
    visibility: timedelta
    retention: timedelta
    dead_letters: str | None = None
    max_receives: int | None = None


class TransportUnavailable(TaskHarborError):
    """The queue service cannot be reached, or throttles requests.

    *is_unknown*: the call may have taken effect; otherwise it certainly did not.
    *code* is the service's error code, if any.
    """

    def __init__(self, reason: str, *, code: str = "", is_unknown: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.code, self.is_unknown = reason, code, is_unknown

    def __str__(self) -> str:
        return f"queue service unavailable: {self.reason}"


class TransportRefused(UsageError):
    """The queue service refused a call: a missing queue, a wrong region, denied access or bad credentials.

    Nothing took effect. *code* is the service's error code, if any.
    """

    def __init__(self, problem: str, remedy: str, *, code: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy, self.code = problem, remedy, code

    def __str__(self) -> str:
        return f"queue service refused: {self.problem}; {self.remedy}"


class Transport(Protocol):
    """A queue service."""

    def ensure_queues(self, specs: Sequence[QueueSpec]) -> None:
        """Create missing queues, and update the attributes of the others."""

    def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[ItemFailure | None]:
        """Send messages. One with an `ItemFailure`, or all after an error, were not sent unless `is_unknown` is set."""

    def receive(self, queue: str, *, most: int, wait: timedelta, visibility: timedelta) -> list[IncomingMessage]:
        """Wait up to *wait* for messages, and return up to *most*. They are hidden from others for *visibility*."""

    def delete(self, queue: str, receipts: Sequence[str]) -> list[ItemFailure | None]:
        """Delete messages by receipt handle. A deleted message or a stale receipt counts as a success."""

    def change_visibility(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> list[ItemFailure | None]:
        """Hide messages, given by receipt handle, for a duration from now; zero makes them visible at once.

        A deleted message or a stale receipt counts as a success: the lease decides, not the message.
        """

    def depth(self, queue: str) -> QueueDepth:
        """Return the approximate number of messages."""

    def close(self) -> None:
        """Close connections. Running receives end at the latest when their wait ends."""
