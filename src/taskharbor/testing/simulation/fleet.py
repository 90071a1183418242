"""The simulated workers and enqueuers: starts, stops and replaces them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from taskharbor.drivers.base import STORE_BATCH
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.testing.simulation.faults import ProcessTransport, Unmapped
from taskharbor.testing.simulation.plan import (
    GRACE,
    LEASE,
    LOCK,
    MAX_RESEND,
    MAX_UNCLAIMED,
    POLL,
    RESEND,
    UNHANDLED_AFTER,
    VISIBILITY,
)
from taskharbor.testing.simulation.runtime import SimulatedRuntime
from taskharbor.testing.simulation.workloads import Handlers
from taskharbor.testing.simulation.world import Process, short_name
from taskharbor.worker import Worker

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.delivery.transport import Transport
    from taskharbor.testing.simulation.faults import FaultyStore, StoreFaults
    from taskharbor.testing.simulation.history import History
    from taskharbor.testing.simulation.plan import Plan
    from taskharbor.testing.simulation.queue_service import QueueService
    from taskharbor.testing.simulation.workloads import HandlerMonitor

STOP_SLACK_SECONDS: Final = 2.5
"""Time in which a worker stops after its grace: one second to notice, the rest to record outcomes."""
WATCH_SECONDS: Final = 0.4


@dataclass(slots=True)
class SimulatedWorker:
    """A worker and its process. ``stops_at`` is when its stop was requested."""

    process: Process
    runtime: SimulatedRuntime
    worker: Worker
    started_at: float
    stops_at: float | None = None


@dataclass(slots=True)
class SimulatedEnqueuer:
    """An enqueuer and its process."""

    process: Process
    enqueuer: DueTaskEnqueuer


@dataclass(frozen=True, slots=True)
class DeliverySetup:
    """The queue service of a fleet, the number of enqueuers that send to it, and how many jobs a message may name."""

    service: QueueService
    enqueuers: int
    bundle: int


class SimulatedFleet:
    """Keeps the planned number of workers and enqueuers running, and replaces those that stopped or died."""

    def __init__(
        self, plan: Plan, history: History, store: FaultyStore, faults: StoreFaults, monitor: HandlerMonitor
    ) -> None:
        self._plan = plan
        self._history = history
        self._world = history.world
        self._store = store
        self._faults = faults
        self._monitor = monitor
        self._snooze_counts: dict[JobId, int] = {}
        self._runtimes: list[SimulatedRuntime] = []
        self.workers: list[SimulatedWorker] = []
        self.delivery: DeliverySetup | None = None
        self.prefetch_limit = 0
        self.enqueuers: list[SimulatedEnqueuer] = []
        self.is_closing = False

    @property
    def processes(self) -> list[Process]:
        return [member.process for member in self.workers] + [member.process for member in self.enqueuers]

    def start_enqueuers(self) -> None:
        for _ in range(0 if self.delivery is None else self.delivery.enqueuers):
            self._start_enqueuer()

    def _start_enqueuer(self) -> None:
        if self.is_closing or self.delivery is None:
            return
        process, runtime = self._process("e")
        enqueuer = DueTaskEnqueuer(
            runtime,
            self._store.driver_for(process),
            self._transport(process, self.delivery),
            queues=self._plan.queues,
            max_idle=POLL,
            lock=LOCK,
            resend_after=RESEND,
            max_resend=MAX_RESEND,
            max_unclaimed=MAX_UNCLAIMED,
            # Few jobs are due at once. A batch that is full is a backlog.
            batch=self.delivery.bundle if self.delivery.bundle > 1 else STORE_BATCH,
            bundle=self.delivery.bundle,
        )
        member = SimulatedEnqueuer(process, enqueuer)
        self.enqueuers.append(member)
        process.schedule(0, enqueuer.start)
        self._world.schedule(self._world.now + WATCH_SECONDS, lambda: self._watch_enqueuer(member))

    def _watch_enqueuer(self, member: SimulatedEnqueuer) -> None:
        if not member.process.is_dead:
            self._world.schedule(self._world.now + WATCH_SECONDS, lambda: self._watch_enqueuer(member))
            return
        self.enqueuers.remove(member)
        self._world.schedule(self._world.now + self._world.rng.uniform(0, 3), self._start_enqueuer)

    def _transport(self, process: Process, delivery: DeliverySetup) -> Transport:
        return cast("Transport", ProcessTransport(self._store, process, delivery.service))

    def _process(self, letter: str) -> tuple[Process, SimulatedRuntime]:
        process = Process(self._world, f"{letter}{len(self._runtimes) + 1}")
        self._faults.killable.add(process.name)
        runtime = SimulatedRuntime(
            process,
            failed=lambda part, error: self._failed(process, part, error),
            may_start=self._faults.has_thread,
        )
        self._runtimes.append(runtime)
        return process, runtime

    def start(self) -> None:
        process, runtime = self._process("w")
        worker = Worker(
            self._store.driver_for(process),
            queues=self._plan.queues,
            concurrency=self._plan.concurrency,
            prefetch=self.prefetch_limit,
            lease=LEASE,
            grace=GRACE,
            poll=POLL,
            transport=None if self.delivery is None else self._transport(process, self.delivery),
            visibility=VISIBILITY,
            overdue_after=RESEND,
            unknown_types=f"dead-letter:{UNHANDLED_AFTER.total_seconds():g}s",
            middleware=[self._monitor.middleware(process)],
            name=process.name,
            runtime=runtime,
        )
        Handlers(process, runtime, self._history, self._snooze_counts).register(worker)
        member = SimulatedWorker(process, runtime, worker, self._world.now)
        self.workers.append(member)
        self._history.note(process, "starts")
        process.schedule(0, worker.start)
        self._world.schedule(self._world.now + WATCH_SECONDS, lambda: self._watch(member))

    def stop(self, process: Process) -> None:
        for member in self.workers:
            if member.process is process and member.stops_at is None:
                self._stop(member)

    def stop_one(self) -> None:
        if working := [member for member in self.workers if member.stops_at is None]:
            self._stop(self._world.rng.choice(working))

    def stop_all(self) -> None:
        self.is_closing = True
        for sender in self.enqueuers:
            sender.process.schedule(0, sender.enqueuer.stop)
        for member in self.workers:
            if member.stops_at is None:
                self._stop(member)

    def close(self) -> None:
        """Close all pending coroutines and end all threads, because Python warns about coroutines never awaited."""
        for runtime in self._runtimes:
            for work in runtime.events.started:
                _close(work)
            runtime.end_threads()

    def _stop(self, member: SimulatedWorker) -> None:
        member.stops_at = self._world.now
        self._history.note(member.process, "is told to stop")
        member.process.schedule(0, member.worker.begin_stop)

    def _failed(self, process: Process, part: str, error: BaseException) -> None:
        self._history.note(process, f"{part} failed: {error!r}")
        if isinstance(error, Unmapped):
            return  # workers must survive it; the checks of the remaining history show whether they did
        if "no thread" not in self._plan.rates or "new thread" not in str(error):
            self._history.add_violation(f"{process.name}: {part} failed: {error!r}")

    def _watch(self, member: SimulatedWorker) -> None:
        """Check a worker periodically, and replace it when it has stopped or died."""
        process = member.process
        is_over = member.worker.is_over and all(loop.is_over for loop in member.runtime.loops)
        if process.is_dead or is_over:
            self._leave(member)
            return
        self._watch_slots(member)
        if member.stops_at is not None:
            self._check_stop(member, member.stops_at)
        self._world.schedule(self._world.now + WATCH_SECONDS, lambda: self._watch(member))

    def _watch_slots(self, member: SimulatedWorker) -> None:
        """Check that a worker stops itself when half of its slots are lost."""
        if member.stops_at is not None:
            return
        if member.worker.is_exhausted:
            member.stops_at = self._world.now
            self._history.note(member.process, "has lost half of its slots")
        elif self._monitor.lost_slots(member.process) * 2 >= self._plan.concurrency:
            self._history.add_violation(f"{member.process.name} continues with half of its slots lost")

    def _leave(self, member: SimulatedWorker) -> None:
        if not member.process.is_dead:
            self._history.note(member.process, "went home")
            self._check_kept_leases(member)
        member.process.kill()
        self._monitor.forget(member.process)
        self.workers.remove(member)
        if not self.is_closing:
            self._world.schedule(self._world.now + self._world.rng.uniform(0, 3), self._replace)

    def _replace(self) -> None:
        if not self.is_closing:
            self.start()

    def _check_stop(self, member: SimulatedWorker, since: float) -> None:
        since = max(since, member.process.disturbed_at, self._faults.was_out_at)
        bound = GRACE.total_seconds() + STOP_SLACK_SECONDS + (LEASE.total_seconds() if self._faults.is_on else 0)
        if self._world.now > since + bound and not member.process.is_disturbed(since + 1e-9):
            self._history.add_violation(f"{member.process.name} is still running {bound} s after it was stopped")
            member.process.kill()

    def _check_kept_leases(self, member: SimulatedWorker) -> None:
        """Check that a worker that stopped undisturbed released all of its leases."""
        now, stops_at = self._world.store_time(), member.stops_at
        if stops_at is None or member.process.is_disturbed(stops_at):
            return
        failed_at = self._store.failed_at.get(member.process.name, -1e9)
        if max(failed_at, self._faults.was_out_at, self._world.jumped_at) > stops_at - LEASE.total_seconds():
            return  # it may have abandoned a job whose lease it could not extend
        kept = [
            short_name(job.id)
            for job in self._store.rows.values()
            if job.worker_id == member.process.name and job.lease_token not in self._store.unseen_claims
            if job.lease_token is not None and job.lease_expires_at is not None and job.lease_expires_at > now
            if not self._store.is_in_doubt(job.id, job.lease_token)  # a clock set back makes a lost lease look valid
        ]
        if kept:
            self._history.add_violation(f"{member.process.name} stopped and kept the leases of {kept}")


def _close(work: object) -> None:
    try:
        work.close()  # type: ignore[attr-defined]
    except (RuntimeError, ValueError):
        return  # it ignores GeneratorExit
