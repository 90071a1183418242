"""One SQS queue in memory: visibility, receive counts and receipt handles. The time is an argument, in seconds."""

from __future__ import annotations

import heapq
import secrets
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class MessageState(Enum):
    """The state of the message that a receipt handle refers to."""

    HELD = auto()
    VISIBLE = auto()
    """Its visibility timeout has passed, and it has not been received since."""
    SUPERSEDED = auto()
    """It has been received again, under a newer receipt handle."""
    GONE = auto()
    UNKNOWN = auto()


@dataclass(slots=True, eq=False)
class StoredMessage:
    """One copy of a message; a duplicate is another copy with the same id."""

    key: int
    message_id: str
    body: str
    attributes: Mapping[str, Any]
    sent_at: float
    visible_at: float
    receive_count: int = 0
    first_received_at: float = 0.0
    is_ready: bool = False
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class ReceivedCopy:
    """A received message, with the receipt handle and receive count of this delivery."""

    message: StoredMessage
    receipt_handle: str
    receive_count: int


@dataclass(slots=True, eq=False)
class Queue:
    """A queue and its messages."""

    name: str
    url: str
    attributes: dict[str, str]
    max_receives: int | None = None
    dead_letters: Queue | None = None
    _messages: dict[int, StoredMessage] = field(default_factory=dict)
    _ready: deque[StoredMessage] = field(default_factory=deque)
    _hidden: list[tuple[float, int, StoredMessage]] = field(default_factory=list)  # a heap; may contain stale entries
    _secret: str = field(default_factory=lambda: secrets.token_hex(8))
    _keys: Iterator[int] = field(default_factory=count)
    _order: Iterator[int] = field(default_factory=count)

    def __len__(self) -> int:
        return len(self._messages)

    def put(
        self, message_id: str, body: str, attributes: Mapping[str, Any], *, now: float, delay: float
    ) -> StoredMessage:
        key = next(self._keys)
        message = StoredMessage(key, message_id, body, attributes, sent_at=now, visible_at=now + delay)
        self._messages[key] = message
        self._show_or_hide(message, now)
        return message

    def move(self, message: StoredMessage, position: float) -> None:
        """Move a visible message to another position: 0 is the first, 1 the last."""
        if message.is_ready:
            self._ready.remove(message)
            self._ready.insert(int(position * len(self._ready)), message)

    def receive(self, limit: int, *, visibility: float, now: float) -> list[ReceivedCopy]:
        self._show_due(now)
        retention = float(self.attributes["MessageRetentionPeriod"])
        received: list[ReceivedCopy] = []
        while self._ready and len(received) < limit:
            message = self._ready.popleft()
            message.is_ready = False
            if message.is_deleted:
                continue
            if message.sent_at + retention <= now:
                self._remove(message)
            elif self.dead_letters is not None and message.receive_count >= (self.max_receives or 1):
                self._remove(message)
                self.dead_letters.put(message.message_id, message.body, message.attributes, now=now, delay=0)
            else:
                received.append(self._deliver(message, visibility, now))
        return received

    def find(self, receipt_handle: str, now: float) -> tuple[MessageState, StoredMessage | None]:
        secret, _, rest = receipt_handle.partition(":")
        key, _, receive_count = rest.partition(":")
        if secret != self._secret or not key.isdigit() or not receive_count.isdigit():
            return MessageState.UNKNOWN, None
        message = self._messages.get(int(key))
        if message is None:
            return MessageState.GONE, None
        if message.receive_count != int(receive_count):
            return MessageState.SUPERSEDED, message
        return (MessageState.VISIBLE if message.visible_at <= now else MessageState.HELD), message

    def delete(self, message: StoredMessage) -> None:
        self._remove(message)

    def hide(self, message: StoredMessage, *, until: float, now: float) -> None:
        message.visible_at = until
        if message.is_ready:
            self._ready.remove(message)
            message.is_ready = False
        self._show_or_hide(message, now)

    def purge(self) -> None:
        for message in list(self._messages.values()):
            self._remove(message)

    def renew(self) -> None:
        """Invalidate all receipt handles issued so far."""
        self._secret = secrets.token_hex(8)

    def next_visible(self) -> float | None:
        return self._hidden[0][0] if self._hidden else None

    def counts(self, now: float) -> tuple[int, int, int]:
        """Return how many messages are ready, in flight and delayed."""
        hidden = [message for message in self._messages.values() if message.visible_at > now]
        in_flight = sum(message.receive_count > 0 for message in hidden)
        return len(self._messages) - len(hidden), in_flight, len(hidden) - in_flight

    def _deliver(self, message: StoredMessage, visibility: float, now: float) -> ReceivedCopy:
        message.receive_count += 1
        message.first_received_at = message.first_received_at or now
        message.visible_at = now + visibility
        heapq.heappush(self._hidden, (message.visible_at, next(self._order), message))
        return ReceivedCopy(message, f"{self._secret}:{message.key}:{message.receive_count}", message.receive_count)

    def _show_due(self, now: float) -> None:
        while self._hidden and self._hidden[0][0] <= now:
            visible_at, _, message = heapq.heappop(self._hidden)
            if visible_at == message.visible_at and not message.is_ready and not message.is_deleted:
                self._show(message)

    def _show_or_hide(self, message: StoredMessage, now: float) -> None:
        if message.visible_at <= now:
            self._show(message)
        else:
            heapq.heappush(self._hidden, (message.visible_at, next(self._order), message))

    def _show(self, message: StoredMessage) -> None:
        message.is_ready = True
        self._ready.append(message)

    def _remove(self, message: StoredMessage) -> None:
        message.is_deleted = True
        self._messages.pop(message.key, None)
