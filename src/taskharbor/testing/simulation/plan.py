"""What a seed stands for: which faults, how many workers, which jobs, and what people do meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.request import JobRequest
from taskharbor.testing.simulation import faults
from taskharbor.testing.simulation.queue_service import QUEUE_CALLS, QueueFaultRates
from taskharbor.testing.simulation.workloads import KINDS, STUCK

if TYPE_CHECKING:
    from random import Random

LEASE: Final = timedelta(seconds=5)
GRACE: Final = timedelta(seconds=3)
POLL: Final = timedelta(seconds=1)
QUEUES: Final = ("default", "mail")
OPERATIONS: Final = (
    "cancel", "cancel", "stop", "pause", "requeue", "freeze", "freeze", "trap", "trap", "jump", "prune", "prune",
)  # fmt: skip
SHORTEST_JUMP, LONGEST_JUMP = 3.0, 40.0
"""Of the store's clock, in seconds: what is shorter than a third of a lease is none."""
RATES: Final = (0.002, 0.01, 0.03)
VISIBILITY: Final = timedelta(seconds=6)
LOCK: Final = timedelta(seconds=2)
RESEND: Final = timedelta(seconds=6)
"""How long a job that was sent may wait for its claim, at first; and after which a worker takes it without."""
LONGEST_RESEND: Final = timedelta(seconds=12)
UNCLAIMED: Final = 500
UNHANDLED_AFTER: Final = timedelta(seconds=8)
"""How long workers leave a due job to others that they have no handler for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is drawn before the world begins. Moments are in seconds."""

    workers: int
    concurrency: int
    queues: tuple[str, ...]
    rates: dict[str, float]
    trouble: float
    """How long things go wrong."""
    jobs: tuple[tuple[float, JobRequest], ...]
    operations: tuple[tuple[float, str], ...]
    late_jobs: tuple[JobRequest, ...]
    """What is enqueued when all is quiet."""
    last_operations: tuple[tuple[float, str], ...]
    """What people do when all is quiet."""


def draw(chance: Random) -> Plan:
    kinds = [kind for kind in KINDS if chance.random() < 0.5] or ["quick"]
    trouble = chance.uniform(5, 30)
    queues = QUEUES[: chance.randint(1, 2)]
    return Plan(
        workers=chance.randint(1, 3),
        concurrency=chance.randint(1, 4),
        queues=queues,
        rates=_rates(chance),
        trouble=trouble,
        jobs=tuple(
            (chance.uniform(0, trouble) if chance.random() < 0.5 else 0.0, _request(chance, kinds, queues))
            for _ in range(chance.randint(3, 20))
        ),
        operations=tuple((chance.uniform(0, trouble), chance.choice(OPERATIONS)) for _ in range(chance.randint(0, 6))),
        late_jobs=tuple(_request(chance, kinds, queues) for _ in range(chance.randint(0, 6))),
        last_operations=tuple(
            (chance.uniform(0, 6), chance.choice(("stop", "cancel"))) for _ in range(chance.randint(0, 2))
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPlan:
    """What is drawn besides for a world with a queue service."""

    enqueuers: int
    habits: QueueFaultRates
    off: frozenset[str]
    """What the queue service does not do any more, ever, once all else is quiet."""


def draw_delivery(chance: Random) -> DeliveryPlan:
    """Swarm, as for other faults: what a queue service may do wrong, it does in half of the worlds."""
    loss, double = (chance.choice((0.05, 0.3)) if chance.random() < 0.5 else 0.0 for _ in range(2))
    delay = chance.choice((0.5, 4.0, 20.0)) if chance.random() < 0.5 else 0.0
    off = frozenset(chance.choice((QUEUE_CALLS, ("send",)))) if chance.random() < 0.15 else frozenset()
    habits = QueueFaultRates(loss=loss, double=double, delay=delay, stray=0.2 if chance.random() < 0.5 else 0.0)
    return DeliveryPlan(enqueuers=chance.randint(1, 2), habits=habits, off=off)


def _rates(chance: Random) -> dict[str, float]:
    """Swarm: each fault is on in half of the worlds, so that some have only one, and some none."""
    if chance.random() < 0.1:
        return {}
    rates = {name: chance.choice(RATES) for name in faults.ALL if chance.random() < 0.4}
    often = {"no thread": 0.3, "lock": 0.1}  # most calls start no thread, and touch no row that could be locked
    return rates | {name: rate for name, rate in often.items() if name in rates}


def _request(chance: Random, kinds: list[str], queues: tuple[str, ...]) -> JobRequest:
    kind = chance.choice(kinds)
    blocks = kind in {"blocking", "plain_slow", "deaf"}
    seconds = round(chance.uniform(0.1, 0.6 if blocks else 2.5) * LEASE.total_seconds(), 3)
    is_stuck = kind == STUCK
    has_timeout = kind == "endless" or is_stuck or chance.random() < 0.3
    return JobRequest(
        type=kind,
        payload={"seconds": seconds, "n": chance.randint(1, 3)},
        queue=chance.choice(queues),
        delay=timedelta(seconds=round(chance.uniform(0, 10), 3)) if chance.random() < 0.3 else None,
        timeout=timedelta(seconds=round(chance.uniform(0.2, 2 if is_stuck else 8), 3)) if has_timeout else None,
        max_attempts=chance.randint(1, 2 if is_stuck else 4),
        priority=chance.randint(-1, 1),
        idempotency_key=f"key {chance.randint(1, 5)}" if chance.random() < 0.1 else None,
    )
