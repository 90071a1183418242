"""Options of a worker: defaults, checks and the frozen configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.request import QUEUE_PATTERN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import Hook
    from taskharbor.delivery.transport import Transport
    from taskharbor.outbox import Publisher
    from taskharbor.runtime import Runtime
    from taskharbor.worker.handlers import Middleware

    Queues = Sequence[str] | Mapping[str, int]


class WorkerOptions(TypedDict, total=False):
    """Options of `Harbor.worker` besides queues and hooks. `Worker` documents them."""

    concurrency: int | None
    lease: timedelta
    heartbeat: timedelta | None
    grace: timedelta
    poll: timedelta
    overdue_after: timedelta
    unknown_types: Literal["dead-letter", "leave"]
    unhandled_after: timedelta
    middleware: Sequence[Middleware]
    transport: Transport | None
    visibility: timedelta | None
    receive_wait: timedelta
    dead_letter_queue: str | None
    publisher: Publisher | None
    janitor: bool
    name: str | None
    runtime: Runtime | None


LEASE: Final = timedelta(seconds=30)
GRACE: Final = timedelta(seconds=25)
POLL: Final = timedelta(seconds=1)
RECEIVE_WAIT: Final = timedelta(seconds=2)
"""How long one receive waits for messages. A stopping worker waits for it too: its messages must not stay hidden."""
LEASE_MARGIN_FRACTION: Final = 0.05
"""How much earlier a worker treats a lease as expired: two clocks never run at the same speed."""
CONCURRENCY: Final = 16
MIN_LEASE: Final = timedelta(milliseconds=100)
UNHANDLED_AFTER: Final = timedelta(minutes=5)
"""How long due jobs of a type without a handler are left for other workers: longer than a rolling deploy."""
VISIBILITY: Final = timedelta(seconds=60)
MAX_VISIBILITY: Final = timedelta(hours=12)
"""The limit of SQS."""


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """The checked options of message delivery."""

    transport: Transport
    visibility: timedelta
    receive_wait: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The checked options of a worker. *queues* maps each queue to its concurrency limit."""

    worker: str
    queues: Mapping[str, int]
    concurrency: int
    lease: timedelta
    heartbeat: timedelta
    grace: timedelta
    poll: timedelta
    overdue_after: timedelta
    unhandled_after: timedelta | None
    codec: Codec | None
    hooks: tuple[Hook, ...]
    delivery: DeliveryConfig | None

    @property
    def lease_margin_seconds(self) -> float:
        return self.lease.total_seconds() * LEASE_MARGIN_FRACTION


def limits_of(queues: Queues, concurrency: int | None) -> tuple[dict[str, int], int]:
    """Return the concurrency limit of each queue, and the total."""
    if isinstance(queues, Mapping):
        total = sum(queues.values()) if queues else CONCURRENCY
        return dict(queues), total if concurrency is None else concurrency
    total = CONCURRENCY if concurrency is None else concurrency
    return dict.fromkeys(queues, total), total


def check_options(queues: Mapping[str, int], concurrency: int, lease: timedelta, heartbeat: timedelta) -> None:
    """Raise `UsageError` if an option is invalid."""
    for name, limit in {**queues, "concurrency": concurrency}.items():
        if limit < 1:
            raise UsageError(Problem(field=name, value=str(limit), rule="must be at least 1"))
    if not queues:
        raise UsageError(Problem(field="queues", value="none", rule="name at least one queue"))
    for name in queues:
        if QUEUE_PATTERN.fullmatch(name) is None:
            raise UsageError(Problem(field="queue", value=repr(name), rule=f"must match {QUEUE_PATTERN.pattern}"))
    if lease < MIN_LEASE:
        raise UsageError(Problem(field="lease", value=str(lease), rule=f"must be at least {MIN_LEASE}"))
    if not timedelta(0) < heartbeat <= lease / 3:
        rule = f"must be at most a third of the lease, {lease / 3}: two heartbeats may fail before it expires"
        raise UsageError(Problem(field="heartbeat", value=str(heartbeat), rule=rule))


def delivery_config(
    transport: Transport | None,
    visibility: timedelta | None,
    receive_wait: timedelta,
    *,
    lease: timedelta,
    heartbeat: timedelta,
) -> DeliveryConfig | None:
    """Return the checked delivery options, or None without a *transport*."""
    if transport is None:
        return None
    return DeliveryConfig(transport, checked_visibility(visibility, lease, heartbeat), receive_wait)


def checked_visibility(visibility: timedelta | None, lease: timedelta, heartbeat: timedelta) -> timedelta:
    """Return how long messages are hidden. The default is a minute, or one lease if that is longer.

    Raise `UsageError` if a message would be delivered again before the heartbeat extends its visibility.
    """
    hidden_for = min(max(VISIBILITY, lease), MAX_VISIBILITY) if visibility is None else visibility
    if hidden_for <= heartbeat:
        rule = (
            f"must be longer than the heartbeat ({heartbeat}), or other workers receive the messages of running jobs;"
            " raise visibility, or shorten heartbeat or lease"
        )
        raise UsageError(Problem(field="visibility", value=str(hidden_for), rule=rule))
    return hidden_for
