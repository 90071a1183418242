"""Run one simulation from its seed to its checked history, and batches of simulations in parallel."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from taskharbor.client import Client
from taskharbor.core.errors import IdempotencyConflict, StoreUnavailable
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.simulation.checker import check
from taskharbor.testing.simulation.coverage import coverage_of
from taskharbor.testing.simulation.faults import FaultyStore, StoreFaults
from taskharbor.testing.simulation.fleet import DeliverySetup, SimulatedFleet
from taskharbor.testing.simulation.history import DriverCall, History, Note
from taskharbor.testing.simulation.liveness import Liveness
from taskharbor.testing.simulation.plan import (
    GRACE,
    LEASE,
    MAX_JUMP_SECONDS,
    MIN_JUMP_SECONDS,
    POLL,
    VISIBILITY,
    Plan,
    PrefetchPlan,
    draw,
    draw_delivery,
    draw_prefetch,
)
from taskharbor.testing.simulation.queue_service import QueueFaultRates, QueueService
from taskharbor.testing.simulation.workloads import HandlerMonitor
from taskharbor.testing.simulation.world import Process, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.request import JobRequest

Mode = Literal["polling", "sqs"]
CHECK_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 2.0
"""Time in which the last late call takes effect."""
MAX_RUN_SECONDS: Final = 400.0
"""Time in which the last job must finish: far more than any sequence of retries takes."""
NOTED_FAULTS: Final = {
    "is paused": "a process was paused during a call",
    "is frozen": "a process was paused",
    "is killed by": "a process was killed by a job",
    "is told to stop": "a worker was stopped",
    "sets the store's clock": "the store's clock jumped",
}


def simulate(seed: int, mode: Mode = "polling") -> History:
    """Run the simulation of *seed*, and return its history with all violations."""
    simulation = Simulation(seed, mode)
    try:
        simulation.run()
    finally:
        simulation.end()
    return simulation.history


class SimulatedClock:
    """The store's clock, which may jump."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.store_time()


class Simulation:
    """The parts of one simulation and its two phases: with faults, then without."""

    def __init__(self, seed: int, mode: Mode) -> None:
        self.world = World(seed)
        self.plan: Plan = draw(self.world.rng)
        self.history = History(self.world)
        self.faults = StoreFaults(self.world, self.plan.rates, LEASE.total_seconds())
        self.store = FaultyStore(MemoryDriver(clock=SimulatedClock(self.world)), self.history, self.faults)
        self.monitor = HandlerMonitor(self.history, self.store, self.plan.concurrency)
        self.service: QueueService | None = None
        self.disabled_calls: frozenset[str] = frozenset()
        self.fleet = SimulatedFleet(self.plan, self.history, self.store, self.faults, self.monitor)
        if mode == "sqs":
            delivery = draw_delivery(self.world.rng)
            self.disabled_calls = delivery.disabled_calls
            self.service = QueueService(lambda: self.world.now, self.world.rng, delivery.fault_rates)
            self.fleet.delivery = DeliverySetup(self.service, delivery.enqueuers, delivery.bundle)
        self.store.stop = self.fleet.stop
        self.prefetch = draw_prefetch(seed, self.plan) if mode == "polling" else PrefetchPlan()
        self.fleet.prefetch_limit = self.prefetch.limit
        self.accepted: list[JobId] = []
        self._people = Process(self.world, "people")
        self._driver = self.store.driver_for(self._people)
        self._client = Client(self._driver, clock=SimulatedClock(self.world), ids=self.world.job_id)

    def run(self) -> None:
        for _ in range(self.plan.workers):
            self.fleet.start()
        self.fleet.start_enqueuers()
        for when, request in (*self.plan.jobs, *self.prefetch.jobs):
            self._at(when, partial(self._enqueue, request))
        for when, operation in self.plan.operations:
            self._at(when, getattr(self, f"_{operation}"))
        self.world.run(self.plan.fault_seconds)
        self._end_faults()
        self._finish()
        self.history.violations += check(
            self.history, self.store, self.accepted, None if self.disabled_calls else self.service
        )

    def end(self) -> None:
        self.history.is_closed = True
        self.fleet.close()

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self.world.schedule(when, action, process=self._people)

    def _enqueue(self, request: JobRequest) -> None:
        try:
            self.accepted.append(self._client.enqueue(request).id)
        except (StoreUnavailable, IdempotencyConflict) as error:
            self.history.note(self._people, f"could not enqueue: {type(error).__name__}")

    def _draw_job(self, statuses: frozenset[Status] | None = None) -> list[JobId]:
        jobs = [job.id for job in self.store.rows.values() if statuses is None or job.status in statuses]
        return [self.world.rng.choice(jobs)] if jobs else []

    def _cancel(self) -> None:
        running = self._draw_job(frozenset({Status.PROCESSING}) if self.world.rng.random() < 0.5 else None)
        self._call_store(lambda: self._driver.cancel(running))

    def _requeue(self) -> None:
        dead = self._draw_job(frozenset({Status.DEAD, Status.CANCELED}))
        token = self.world.token()
        self._call_store(lambda: self._driver.requeue(dead, token=token, budget=2, by="people", reason="once more"))

    def _pause(self) -> None:
        queue = self.world.rng.choice(self.plan.queues)
        self._call_store(lambda: self._driver.control.pause([queue], by="people"))
        self._at(self.world.now + self.world.rng.uniform(1, 8), lambda: self._resume(queue))

    def _resume(self, queue: str) -> None:
        self._call_store(lambda: self._driver.control.resume([queue]))

    def _stop(self) -> None:
        self.fleet.stop_one()

    def _stop_in_claim(self) -> None:
        """Stop the next worker that claims jobs, during a slow claim or one whose reply is lost."""
        self.store.stop_in_claim = self.world.rng.choice(("slow", "lost"))

    def _freeze(self) -> None:
        """Pause a process between two store calls. A process is there most of the time."""
        if self.fleet.processes:
            process = self.world.rng.choice(self.fleet.processes)
            self.history.note(process, "is frozen")
            process.pause(self.world.rng.uniform(0.5, 3) * LEASE.total_seconds())

    def _jump(self) -> None:
        """Set the store's clock, and no other clock."""
        seconds = self.world.rng.choice((-1, 1)) * self.world.rng.uniform(MIN_JUMP_SECONDS, MAX_JUMP_SECONDS)
        self.history.note(None, f"sets the store's clock by {seconds:+.1f}")
        self.world.jump_by(seconds)

    def _prune(self) -> None:
        """Prune recently finished jobs, which messages and workers may still refer to."""
        retention = LEASE * self.world.rng.choice((0, 0, 1))
        # Prune once after a lost reply, too: by chance, only one repeated settlement in hundreds of simulations would
        # find its job removed.
        self.store.after_lost_settle = partial(self._prune_repeatedly, retention, repeats=False)
        self._prune_repeatedly(retention)

    def _prune_repeatedly(self, retention: timedelta, *, repeats: bool = True) -> None:
        self._call_store(
            lambda: self._driver.maintenance.prune(older_than=retention, limit=self.world.rng.randint(1, 20))
        )
        if self.faults.is_on and repeats:
            self._at(self.world.now + POLL.total_seconds(), partial(self._prune_repeatedly, retention))

    def _call_store(self, call: Callable[[], object]) -> None:
        try:
            call()
        except StoreUnavailable:
            self.history.note(self._people, "did not get through")

    def _end_faults(self) -> None:
        """End all faults, outages and pauses."""
        self.faults.is_on = False
        if self.service is not None:
            self.service.fault_rates, self.service.broken = QueueFaultRates(), set(self.disabled_calls)
        paused = [process.paused_until for process in self.fleet.processes]
        self.world.run(max([self.world.now, self.faults.slow_until, *paused]) - self.world.now + SETTLE_SECONDS)
        for queue in self.plan.queues:
            self._resume(queue)
        self.history.note(None, "is quiet")

    def _finish(self) -> None:
        """Run until all jobs have finished, check liveness periodically, then stop all workers."""
        liveness = Liveness(self)
        for request in self.plan.quiet_jobs:
            self._enqueue(request)
        for delay, operation in self.plan.quiet_operations:
            self._at(self.world.now + delay, getattr(self, f"_{operation}"))
        ends_by = self.world.now + MAX_RUN_SECONDS
        while self.world.now < ends_by and not self.history.violations:
            self.world.run(CHECK_SECONDS)
            if liveness.is_finished():
                break
            liveness.check()
        else:
            liveness.report_unfinished_jobs()
        if self.service is not None:  # until the last delayed message has been deleted
            delay = max(0.0, self.service.last_visible_at - self.world.now)
            self.world.run(delay + 2 * VISIBILITY.total_seconds() + SETTLE_SECONDS)
        self.fleet.stop_all()
        self.world.run((GRACE + timedelta(seconds=4)).total_seconds())
        liveness.report_running_workers()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """The result of one simulation. Its seed reproduces it."""

    seed: int
    mode: Mode
    violations: tuple[str, ...]
    seen: frozenset[str]
    digest: str
    happenings: int
    jobs: int
    faults: Mapping[str, int]
    """The number of injected faults: calls by fate, and faults of processes and of the store's clock."""

    def __str__(self) -> str:
        return f"{self.violations[0]}\n    python -m taskharbor.testing.simulation {self.seed} {self.mode}"


def run_seed(seed: int, mode: Mode = "polling") -> SeedReport:
    """Run the simulation of *seed* and summarize it."""
    history = simulate(seed, mode)
    return SeedReport(
        seed=seed,
        mode=mode,
        violations=tuple(history.violations),
        seen=frozenset(coverage_of(history)),
        digest=history.digest(),
        happenings=len(history.happenings),
        jobs=sum(1 for call in _calls(history) for change in call.changes if change.before is None),
        faults=_faults(history),
    )


def _calls(history: History) -> Iterator[DriverCall]:
    return (each for each in history.happenings if isinstance(each, DriverCall))


def _faults(history: History) -> dict[str, int]:
    fates = Counter(f"a call was {call.fate}" for call in _calls(history) if call.fate != "ok")
    notes = [each.what for each in history.happenings if isinstance(each, Note)]
    return fates | Counter(name for what in notes for prefix, name in NOTED_FAULTS.items() if what.startswith(prefix))


def run_seeds(seeds: Iterable[int], mode: Mode = "polling") -> Iterator[SeedReport]:
    """Run many simulations in parallel, and yield their reports in the order of *seeds*."""
    context = multiprocessing.get_context("spawn")  # the caller may have threads
    with context.Pool(os.cpu_count(), initializer=_disable_logging) as pool:
        yield from pool.imap(partial(run_seed, mode=mode), seeds, chunksize=5)


def _disable_logging() -> None:
    logging.disable(logging.CRITICAL)  # workers log every fault, and a batch has thousands
