"""One simulated world, from its seed to its verdict."""

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
    LONGEST_JUMP,
    POLL,
    SHORTEST_JUMP,
    VISIBILITY,
    Plan,
    draw,
    draw_delivery,
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
SETTLING: Final = 2.0
"""Seconds until the last call that was given up on has taken effect."""
MAX_RUN_SECONDS: Final = 400.0
"""Seconds after which the last job must have ended: far more than any schedule of retries takes."""
MISHAPS: Final = {
    "is paused": "a process was stopped in a call",
    "is frozen": "a process was stopped",
    "is killed by": "a process was killed by a job",
    "is told to stop": "a worker was told to stop",
    "sets the store's clock": "the store's clock jumped",
}


def simulate(seed: int, mode: Mode = "polling") -> History:
    """Let the world of *seed* happen, and return its history with all that was found wrong in it."""
    simulation = Simulation(seed, mode)
    try:
        simulation.run()
    finally:
        simulation.end()
    return simulation.history


class SimulatedClock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.store_time()


class Simulation:
    """The parts of one world, and its two phases: trouble, then quiet."""

    def __init__(self, seed: int, mode: Mode) -> None:
        self.world = World(seed)
        self.plan: Plan = draw(self.world.chance)
        self.history = History(self.world)
        self.faults = StoreFaults(self.world, self.plan.rates, LEASE.total_seconds())
        self.store = FaultyStore(MemoryDriver(clock=SimulatedClock(self.world)), self.history, self.faults)
        self.watching = HandlerMonitor(self.history, self.store)
        self.service: QueueService | None = None
        self.off: frozenset[str] = frozenset()
        self.fleet = SimulatedFleet(self.plan, self.history, self.store, self.faults, self.watching)
        if mode == "sqs":
            delivery = draw_delivery(self.world.chance)
            self.off = delivery.off
            self.service = QueueService(lambda: self.world.now, self.world.chance, delivery.habits)
            self.fleet.rings = DeliverySetup(self.service, delivery.enqueuers)
        self.store.stop = self.fleet.stop
        self.accepted: list[JobId] = []
        self._people = Process(self.world, "people")
        self._driver = self.store.driver_for(self._people)
        self._client = Client(self._driver, clock=SimulatedClock(self.world), ids=self.world.job_id)

    def run(self) -> None:
        for _ in range(self.plan.workers):
            self.fleet.start()
        self.fleet.start_enqueuers()
        for moment, request in self.plan.jobs:
            self._at(moment, partial(self._enqueue, request))
        for moment, operation in self.plan.operations:
            self._at(moment, getattr(self, f"_{operation}"))
        self.world.run(self.plan.trouble)
        self._settle_down()
        self._finish()
        self.history.violations += check(self.history, self.store, self.accepted, None if self.off else self.service)

    def end(self) -> None:
        self.history.is_closed = True
        self.fleet.close()

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        self.world.schedule(moment, action, process=self._people)

    def _enqueue(self, request: JobRequest) -> None:
        try:
            self.accepted.append(self._client.enqueue(request).id)
        except (StoreUnavailable, IdempotencyConflict) as error:
            self.history.note(self._people, f"could not enqueue: {type(error).__name__}")

    def _any(self, statuses: frozenset[Status] | None = None) -> list[JobId]:
        jobs = [job.id for job in self.store.rows.values() if statuses is None or job.status in statuses]
        return [self.world.chance.choice(jobs)] if jobs else []

    def _cancel(self) -> None:
        running = self._any(frozenset({Status.PROCESSING}) if self.world.chance.random() < 0.5 else None)
        self._try(lambda: self._driver.cancel(running))

    def _requeue(self) -> None:
        dead = self._any(frozenset({Status.DEAD, Status.CANCELED}))
        token = self.world.token()
        self._try(lambda: self._driver.requeue(dead, token=token, budget=2, by="people", reason="once more"))

    def _pause(self) -> None:
        queue = self.world.chance.choice(self.plan.queues)
        self._try(lambda: self._driver.control.pause([queue], by="people"))
        self._at(self.world.now + self.world.chance.uniform(1, 8), lambda: self._resume(queue))

    def _resume(self, queue: str) -> None:
        self._try(lambda: self._driver.control.resume([queue]))

    def _stop(self) -> None:
        self.fleet.stop_one()

    def _trap(self) -> None:
        """Stop a worker at a bad moment: while it is given jobs, or when it was and has not heard of it."""
        self.store.trap = self.world.chance.choice(("slow", "lost"))

    def _freeze(self) -> None:
        """Pause a process between two calls of the store, where most of its life is spent."""
        if self.fleet.processes:
            process = self.world.chance.choice(self.fleet.processes)
            self.history.note(process, "is frozen")
            process.pause(self.world.chance.uniform(0.5, 3) * LEASE.total_seconds())

    def _jump(self) -> None:
        """Set the store's clock, and nobody else's."""
        seconds = self.world.chance.choice((-1, 1)) * self.world.chance.uniform(SHORTEST_JUMP, LONGEST_JUMP)
        self.history.note(None, f"sets the store's clock by {seconds:+.1f}")
        self.world.jump_by(seconds)

    def _prune(self) -> None:
        """Begin to remove what ended a moment ago, while messages and workers may know of it."""
        retention = LEASE * self.world.chance.choice((0, 0, 1))
        # And once as a reply is lost: by luck alone, one repeat in hundreds of worlds would find its job gone.
        self.store.settle_lost = partial(self._keep_for, retention, repeats=False)
        self._keep_for(retention)

    def _keep_for(self, retention: timedelta, *, repeats: bool = True) -> None:
        self._try(lambda: self._driver.maintenance.prune(older_than=retention, limit=self.world.chance.randint(1, 20)))
        if self.faults.is_on and repeats:
            self._at(self.world.now + POLL.total_seconds(), partial(self._keep_for, retention))

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except StoreUnavailable:
            self.history.note(self._people, "did not get through")

    def _settle_down(self) -> None:
        """End all trouble: no new faults, no outage, nobody asleep, nothing paused."""
        self.faults.is_on = False
        if self.service is not None:
            self.service.habits, self.service.broken = QueueFaultRates(), set(self.off)
        asleep = [process.paused_until for process in self.fleet.processes]
        self.world.run(max([self.world.now, self.faults.slow_until, *asleep]) - self.world.now + SETTLING)
        for queue in self.plan.queues:
            self._resume(queue)
        self.history.note(None, "is quiet")

    def _finish(self) -> None:
        """Let everything end, look now and then whether it goes on as it must, and send everybody home."""
        liveness = Liveness(self)
        for request in self.plan.late_jobs:
            self._enqueue(request)
        for moment, operation in self.plan.last_operations:
            self._at(self.world.now + moment, getattr(self, f"_{operation}"))
        ends_by = self.world.now + MAX_RUN_SECONDS
        while self.world.now < ends_by and not self.history.violations:
            self.world.run(CHECK_SECONDS)
            if liveness.is_all_over():
                break
            liveness.look()
        else:
            liveness.tell_what_is_left()
        if self.service is not None:  # until the last message is gone: some came in late
            late = max(0.0, self.service.last_comes_at - self.world.now)
            self.world.run(late + 2 * VISIBILITY.total_seconds() + SETTLING)
        self.fleet.stop_all()
        self.world.run((GRACE + timedelta(seconds=4)).total_seconds())
        liveness.tell_who_is_left()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """What became of one world. Its seed shows all of it again."""

    seed: int
    mode: Mode
    violations: tuple[str, ...]
    seen: frozenset[str]
    digest: str
    happenings: int
    jobs: int
    faults: Mapping[str, int]
    """What went wrong, and how often: calls by their fate, and what befell processes and the store's clock."""

    def __str__(self) -> str:
        return f"{self.violations[0]}\n    python -m taskharbor.testing.simulation {self.seed} {self.mode}"


def run_seed(seed: int, mode: Mode = "polling") -> SeedReport:
    """Let the world of *seed* happen, and say what became of it."""
    history = simulate(seed, mode)
    return SeedReport(
        seed=seed,
        mode=mode,
        violations=tuple(history.violations),
        seen=frozenset(coverage_of(history)),
        digest=history.digest(),
        happenings=len(history.happenings),
        jobs=sum(1 for call in _calls(history) for move in call.moves if move.before is None),
        faults=_faults(history),
    )


def _calls(history: History) -> Iterator[DriverCall]:
    return (each for each in history.happenings if isinstance(each, DriverCall))


def _faults(history: History) -> dict[str, int]:
    fates = Counter(f"a call was {call.fate}" for call in _calls(history) if call.fate != "ok")
    notes = [each.what for each in history.happenings if isinstance(each, Note)]
    return fates | Counter(name for what in notes for told, name in MISHAPS.items() if what.startswith(told))


def run_seeds(seeds: Iterable[int], mode: Mode = "polling") -> Iterator[SeedReport]:
    """Let many worlds happen; yield their verdicts as they come, in the order of *seeds*."""
    context = multiprocessing.get_context("spawn")  # whoever calls this may have threads
    with context.Pool(os.cpu_count(), initializer=_be_quiet) as pool:
        yield from pool.imap(partial(run_seed, mode=mode), seeds, chunksize=5)


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)  # workers tell of every fault, and a batch of worlds has thousands
