"""Options of a worker: defaults, checks and the frozen configuration."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypedDict

from taskharbor.core.durations import ZERO, as_timedelta, parse_duration
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.request import QUEUE_PATTERN
from taskharbor.core.text import duration_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.durations import Duration
    from taskharbor.core.failure import Redact
    from taskharbor.core.hooks import Hook
    from taskharbor.delivery.transport import Transport
    from taskharbor.observability.tracing import TracingOption
    from taskharbor.outbox import Publisher
    from taskharbor.runtime import Runtime
    from taskharbor.worker.attempt_spans import AttemptSpans
    from taskharbor.worker.handlers import Middleware

    Queues = Sequence[str] | Mapping[str, int]


class WorkerOptions(TypedDict, total=False):
    """Options of `Harbor.worker` besides queues and hooks. `Worker` documents them."""

    concurrency: int | None
    prefetch: int
    lease: Duration
    heartbeat: Duration | None
    grace: Duration
    poll: Duration
    overdue_after: Duration
    unknown_types: str
    max_jobs: int | None
    max_memory: int | None
    isolate: bool
    child_max_jobs: int
    child_max_memory: int | str | None
    stall_after: Duration
    middleware: Sequence[Middleware]
    transport: Transport | None
    visibility: Duration | None
    receive_wait: Duration
    dead_letter_queue: str | None
    publisher: Publisher | None
    redact: Redact | None
    capture_logs: bool | str | None
    janitor: bool
    keep: Duration
    keep_dead: Duration | None
    tracing: TracingOption
    name: str | None
    version: str | None
    runtime: Runtime | None


LEASE: Final = timedelta(seconds=30)
GRACE: Final = timedelta(seconds=25)
POLL: Final = timedelta(seconds=1)
RECEIVE_WAIT: Final = timedelta(seconds=2)
"""How long one receive waits for messages. A stopping worker waits for it too: its messages must not stay hidden."""
LEASE_MARGIN_FRACTION: Final = 0.05
"""How much earlier a worker treats a lease as expired: two clocks never run at the same speed."""
CONCURRENCY: Final = 16
PREFETCH: Final = 4_000
WORKER_BATCH: Final = 1_000
"""How many jobs a worker claims or settles in one call at most. With 500, a drain with 1,000 slots is slower by a tenth
or more: each call waits for the disk.
"""
MIN_LEASE: Final = timedelta(milliseconds=100)
UNKNOWN_TYPES: Final = "dead-letter:5m"
"""What happens to jobs without a handler. The time is `UNHANDLED_AFTER`."""
UNKNOWN_TYPES_RULE: Final = (
    "write dead-letter:5m (a dead letter after it has been due for that long), dead-letter (at once) or leave"
)
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
    """The checked options of a worker. *queues* maps each queue to its concurrency limit.

    *schedules* are the names of the schedules that its code declares. *prefetch* is how many jobs it may claim
    ahead of free slots. *version* is that of the application.
    """

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
    schedules: tuple[str, ...] = ()
    prefetch: int = 0
    redact: Redact | None = None
    spans: AttemptSpans | None = None
    version: str | None = None

    @property
    def lease_margin_seconds(self) -> float:
        return self.lease.total_seconds() * LEASE_MARGIN_FRACTION


def unhandled_delay(unknown_types: str) -> timedelta | None:
    """Return how long due jobs without a handler are left for other workers before they become dead letters.

    None: always.

    >>> unhandled_delay("dead-letter:90s")
    datetime.timedelta(seconds=90)
    """
    if unknown_types == "leave":
        return None
    action, colon, delay = unknown_types.partition(":")
    with suppress(ValueError):
        if action == "dead-letter":
            return parse_duration(delay) if colon else ZERO
    raise UsageError(Problem(field="unknown_types", value=repr(unknown_types), rule=UNKNOWN_TYPES_RULE))


def limits_of(queues: Queues, concurrency: int | None) -> tuple[dict[str, int], int]:
    """Return the concurrency limit of each queue, and the total."""
    if isinstance(queues, Mapping):
        total = sum(queues.values()) if queues else CONCURRENCY
        return dict(queues), total if concurrency is None else concurrency
    total = CONCURRENCY if concurrency is None else concurrency
    return dict.fromkeys(queues, total), total


def prefetch_limit(prefetch: int, queues: Queues, transport: Transport | None) -> int:
    """Return how many jobs may be claimed ahead of free slots.

    None if a queue has a limit of its own: no more than that many of its jobs may be claimed. None with a
    *transport*: the messages of waiting jobs would be hidden from other workers.
    """
    if prefetch < 0:
        raise UsageError(Problem(field="prefetch", value=str(prefetch), rule="must be at least 0"))
    return 0 if isinstance(queues, Mapping) or transport is not None else prefetch


def check_options(
    queues: Mapping[str, int], concurrency: int, lease: Duration, heartbeat: Duration | None
) -> tuple[timedelta, timedelta]:
    """Return the lease and the heartbeat, by default a third of it. Raise `UsageError` if an option is invalid."""
    lease = as_timedelta(lease, "lease")
    interval = lease / 3 if heartbeat is None else as_timedelta(heartbeat, "heartbeat")
    for name, limit in {**queues, "concurrency": concurrency}.items():
        if limit < 1:
            raise UsageError(Problem(field=name, value=str(limit), rule="must be at least 1"))
    if not queues:
        raise UsageError(Problem(field="queues", value="none", rule="name at least one queue"))
    for name in queues:
        if QUEUE_PATTERN.fullmatch(name) is None:
            raise UsageError(Problem(field="queue", value=repr(name), rule=f"must match {QUEUE_PATTERN.pattern}"))
    if lease < MIN_LEASE:
        raise UsageError(Problem(field="lease", value=_text(lease), rule=f"must be at least {_text(MIN_LEASE)}"))
    if not timedelta(0) < interval <= lease / 3:
        rule = f"must be at most a third of the lease, {_text(lease / 3)}: two heartbeats may fail before it expires"
        raise UsageError(Problem(field="heartbeat", value=_text(interval), rule=rule))
    return lease, interval


def delivery_config(
    transport: Transport | None,
    visibility: Duration | None,
    receive_wait: Duration,
    *,
    lease: timedelta,
    heartbeat: timedelta,
) -> DeliveryConfig | None:
    """Return the checked delivery options, or None without a *transport*."""
    if transport is None:
        return None
    return DeliveryConfig(
        transport, checked_visibility(visibility, lease, heartbeat), as_timedelta(receive_wait, "receive_wait")
    )


def checked_visibility(visibility: Duration | None, lease: timedelta, heartbeat: timedelta) -> timedelta:
    """Return how long messages are hidden. The default is a minute, or one lease if that is longer.

    Raise `UsageError` if a message would be delivered again before the heartbeat extends its visibility.
    """
    default = min(max(VISIBILITY, lease), MAX_VISIBILITY)
    hidden_for = default if visibility is None else as_timedelta(visibility, "visibility")
    if hidden_for <= heartbeat:
        rule = (
            f"must be longer than the heartbeat ({_text(heartbeat)}), or other workers receive the messages of running "
            "jobs; raise visibility, or shorten heartbeat or lease"
        )
        raise UsageError(Problem(field="visibility", value=_text(hidden_for), rule=rule))
    return hidden_for


def _text(length: timedelta) -> str:
    return duration_text(length.total_seconds())
