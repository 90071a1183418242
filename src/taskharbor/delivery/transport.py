"""What a queue service must do for us: carry messages, at least once, in any order.

All names of queues here are ours (`mail`); an adapter maps them to its service's own. Methods
are called from many threads at once, and none waits without a deadline. Calls that take a batch
take any number, and cut it to what the service allows. A batch is answered item by item, in the
order asked: None where it went well, else a `ItemFailure`, returned and not raised. A call raises
`TransportUnavailable` (trying again may help) or `TransportRefused` (somebody must mend something)
only where nothing at all of its batch is known to have gone well. Durations go in whole seconds, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.core.errors import TaskHarborError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

BATCH_LIMIT: Final = 10
"""The most messages in one call of a queue service: the limit of SQS."""
DEAD_EVENTS_QUEUE: Final = ".dead-events"
"""The queue for news of dead jobs. No queue of a user begins with a point, so none can be mistaken for it."""

UNREADABLE_QUEUE: Final = ".unreadable"
"""The queue for messages that were received again and again, and never understood."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send. Attributes carry the trace context, and nothing that matters."""

    body: str
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingMessage:
    """A message as it arrived. *receipt* is good for this delivery alone; *receives* counts deliveries so far."""

    body: str
    receipt_handle: str = field(repr=False)
    message_id: str
    receive_count: int
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """One item of a batch did not go well.

    *is_ours*: the same item would be refused again. *is_unknown*: it may have taken effect nevertheless,
    because the service did not say, or its answer was lost.
    """

    code: str
    reason: str
    is_permanent: bool
    is_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """How many messages a queue holds, about: ready, in the hands of workers, and not visible yet."""

    ready: int
    in_flight: int
    delayed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A queue as it shall be. *dead_letters* names the queue for messages that nobody can read."""

    name: str
    visibility: timedelta
    retention: timedelta
    dead_letters: str | None = None
    max_receives: int | None = None


class TransportUnavailable(TaskHarborError):
    """The queue service is out of reach, or asks us to slow down.

    *is_unknown*: the call may have taken effect nevertheless; else it certainly did not.
    *code* is the service's own word for it, where it has one.
    """

    def __init__(self, reason: str, *, code: str = "", is_unknown: bool = True) -> None:
        super().__init__(reason)
        self.reason, self.code, self.is_unknown = reason, code, is_unknown

    def __str__(self) -> str:
        return f"the queue service is out of reach: {self.reason}"


class TransportRefused(UsageError):
    """The queue service refuses: a missing queue, a wrong region, denied access, bad credentials.

    Nothing took effect. *code* is the service's own word for it, where it has one.
    """

    def __init__(self, what: str, way_out: str, *, code: str = "") -> None:
        super().__init__(what, way_out)
        self.what, self.way_out, self.code = what, way_out, code

    def __str__(self) -> str:
        return f"the queue service refuses: {self.what}; {self.way_out}"


class Transport(Protocol):
    """A queue service."""

    def ensure_queues(self, shapes: Sequence[QueueSpec]) -> None:
        """Make queues that are missing, and bring the attributes of the others to what they shall be."""

    def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[ItemFailure | None]:
        """Send messages. One with an `ItemFailure` was not sent, unless that is unknown; after a raise see its flag."""

    def receive(self, queue: str, *, most: int, wait: timedelta, visibility: timedelta) -> list[IncomingMessage]:
        """Wait up to *wait* for messages, and return up to *most*; nobody else sees them for *visibility*."""

    def delete(self, queue: str, receipts: Sequence[str]) -> list[ItemFailure | None]:
        """Remove messages. One that is gone already, or whose receipt is stale, went well: nothing is lost by it."""

    def change_visibility(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> list[ItemFailure | None]:
        """Let messages, by their receipts, stay hidden for so long from now on; zero shows them at once.

        One that is gone already, or whose receipt is stale, went well: the lease decides, not the message.
        """

    def depth(self, queue: str) -> QueueDepth:
        """Return how many messages there are, about."""

    def close(self) -> None:
        """Give back connections. Receives under way end, at the latest with their wait."""
