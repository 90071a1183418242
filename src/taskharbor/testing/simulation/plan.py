"""The plan drawn from a seed: the faults, workers, jobs and operations of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final

from taskharbor.core.request import JobRequest
from taskharbor.testing.simulation import faults
from taskharbor.testing.simulation.queue_service import QUEUE_CALLS, QueueFaultRates
from taskharbor.testing.simulation.workloads import KINDS, STUCK

LEASE: Final = timedelta(seconds=5)
GRACE: Final = timedelta(seconds=3)
POLL: Final = timedelta(seconds=1)
QUEUES: Final = ("default", "mail")
MAX_CONCURRENCY: Final = 4
BURST_SECONDS: Final = 0.3
OPERATIONS: Final = (
    "cancel", "cancel", "stop", "pause", "requeue", "freeze", "freeze", "stop_in_claim", "stop_in_claim",
    "jump", "prune", "prune",
)  # fmt: skip
MIN_JUMP_SECONDS, MAX_JUMP_SECONDS = 3.0, 40.0
"""The size of a jump of the store's clock. Workers ignore jumps shorter than a third of a lease."""
FAULT_RATES: Final = (0.002, 0.01, 0.03)
VISIBILITY: Final = timedelta(seconds=6)
LOCK: Final = timedelta(seconds=2)
RESEND: Final = timedelta(seconds=6)
"""The first resend delay of a sent job, and the time after which workers claim it without its message."""
MAX_RESEND: Final = timedelta(seconds=12)
MAX_UNCLAIMED: Final = 500
UNHANDLED_AFTER: Final = timedelta(seconds=8)
"""How long a worker without a handler leaves a due job to other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything drawn before the simulation starts. Times are in seconds."""

    workers: int
    concurrency: int
    queues: tuple[str, ...]
    rates: dict[str, float]
    fault_seconds: float
    """How long faults are injected."""
    jobs: tuple[tuple[float, JobRequest], ...]
    operations: tuple[tuple[float, str], ...]
    quiet_jobs: tuple[JobRequest, ...]
    """Jobs enqueued after the faults have ended."""
    quiet_operations: tuple[tuple[float, str], ...]
    """Operations after the faults have ended."""


def draw(rng: Random) -> Plan:
    kinds = [kind for kind in KINDS if rng.random() < 0.5] or ["quick"]
    fault_seconds = rng.uniform(5, 30)
    queues = QUEUES[: rng.randint(1, 2)]
    return Plan(
        workers=rng.randint(1, 3),
        concurrency=rng.randint(1, MAX_CONCURRENCY),
        queues=queues,
        rates=_rates(rng),
        fault_seconds=fault_seconds,
        jobs=tuple(
            (rng.uniform(0, fault_seconds) if rng.random() < 0.5 else 0.0, _request(rng, kinds, queues))
            for _ in range(rng.randint(3, 20))
        ),
        operations=tuple((rng.uniform(0, fault_seconds), rng.choice(OPERATIONS)) for _ in range(rng.randint(0, 6))),
        quiet_jobs=tuple(_request(rng, kinds, queues) for _ in range(rng.randint(0, 6))),
        quiet_operations=tuple((rng.uniform(0, 6), rng.choice(("stop", "cancel"))) for _ in range(rng.randint(0, 2))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPlan:
    """The additional part of the plan in mode "sqs"."""

    enqueuers: int
    fault_rates: QueueFaultRates
    disabled_calls: frozenset[str]
    """Verbs of the queue service that fail permanently after the other faults have ended."""
    bundle: int
    """How many jobs are due at once before one message names them all; 1 for never."""


def draw_delivery(rng: Random) -> DeliveryPlan:
    """Draw the faults of the queue service. Each is enabled in half of the simulations (swarm testing)."""
    loss, double = (rng.choice((0.05, 0.3)) if rng.random() < 0.5 else 0.0 for _ in range(2))
    delay = rng.choice((0.5, 4.0, 20.0)) if rng.random() < 0.5 else 0.0
    disabled_calls = frozenset(rng.choice((QUEUE_CALLS, ("send",)))) if rng.random() < 0.15 else frozenset()
    fault_rates = QueueFaultRates(loss=loss, double=double, delay=delay, stray=0.2 if rng.random() < 0.5 else 0.0)
    return DeliveryPlan(
        enqueuers=rng.randint(1, 2),
        fault_rates=fault_rates,
        disabled_calls=disabled_calls,
        bundle=rng.choice((1, 2, 3, 6)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchPlan:
    """How many jobs workers may claim ahead, and the bursts of short jobs that make them do it."""

    limit: int = 0
    jobs: tuple[tuple[float, JobRequest], ...] = ()


def draw_prefetch(seed: int, plan: Plan) -> PrefetchPlan:
    """Draw bursts of short jobs, which end with slow ones, in a fifth of the simulations.

    They have a generator of their own, so that the other simulations do not depend on them.
    """
    rng = Random(f"prefetch {seed}")  # noqa: S311  a simulation must be reproducible
    if rng.random() < 0.8:
        return PrefetchPlan()
    bursts = [rng.uniform(0, plan.fault_seconds) for _ in range(rng.randint(1, 2))]
    return PrefetchPlan(
        limit=rng.choice((5, 1_000)),
        jobs=tuple(job for start in bursts for job in _burst(rng, start, rng.choice(plan.queues))),
    )


def _burst(rng: Random, start: float, queue: str) -> list[tuple[float, JobRequest]]:
    kinds = rng.choice((["quick"], ["plain"], ["quick", "plain"]))
    short = [(start + BURST_SECONDS * rng.random(), JobRequest(type=rng.choice(kinds), queue=queue)) for _ in range(40)]
    slow = rng.choice((["slow"], ["plain_slow"], ["slow", "plain_slow"], ["quick"]))
    # So many that some wait behind them, and so late that they are claimed ahead with the rest.
    late = [(start + BURST_SECONDS * 0.8, _request(rng, slow, (queue,))) for _ in range(rng.randint(4, 20))]
    return short + late


def _rates(rng: Random) -> dict[str, float]:
    """Draw the faults of the store (swarm testing).

    Each fault is enabled in less than half of the simulations, so some have only one and some have none.
    """
    if rng.random() < 0.1:
        return {}
    rates = {name: rng.choice(FAULT_RATES) for name in faults.ALL_FAULTS if rng.random() < 0.4}
    # Most calls start no thread and touch no lockable row, so these two need higher rates.
    raised = {"no thread": 0.3, "lock": 0.1}
    return rates | {name: rate for name, rate in raised.items() if name in rates}


def _request(rng: Random, kinds: list[str], queues: tuple[str, ...]) -> JobRequest:
    kind = rng.choice(kinds)
    blocks = kind in {"blocking", "plain_slow", "deaf"}
    seconds = round(rng.uniform(0.1, 0.6 if blocks else 2.5) * LEASE.total_seconds(), 3)
    is_stuck = kind == STUCK
    has_timeout = kind == "endless" or is_stuck or rng.random() < 0.3
    return JobRequest(
        type=kind,
        payload={"seconds": seconds, "n": rng.randint(1, 3)},
        queue=rng.choice(queues),
        delay=timedelta(seconds=round(rng.uniform(0, 10), 3)) if rng.random() < 0.3 else None,
        timeout=timedelta(seconds=round(rng.uniform(0.2, 2 if is_stuck else 8), 3)) if has_timeout else None,
        max_attempts=rng.randint(1, 2 if is_stuck else 4),
        priority=rng.randint(-1, 1),
        idempotency_key=f"key {rng.randint(1, 5)}" if rng.random() < 0.1 else None,
    )
