"""Saying that a worker is alive, and what it runs."""

from __future__ import annotations

import logging
import os
import socket
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.model import WorkerRecord
from taskharbor.core.results import Extended, Skipped
from taskharbor.worker.execution import StopReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.execution import Execution, ExecutionSlots
    from taskharbor.worker.handlers import HandlerRegistry
    from taskharbor.worker.message_acks import MessageAcks
    from taskharbor.worker.timeouts import TimeoutMonitor

_LOG: Final = logging.getLogger("taskharbor.worker")
RETRY_SECONDS: Final = 0.25  # seconds until what could not be extended is tried again
STALL_ADVICE: Final = (
    "; this process stood still for {seconds:.1f} s: it was stopped, or a handler kept Python's lock for itself, "
    "in C code; isolate such a handler in a process of its own (isolate=True)"
)
PERIOD: Final = timedelta(seconds=10)


class LeaseHeartbeat:
    """Extends every lease that has less than its share left, in one statement, on a thread of its own.

    It covers a job from its claim to its committed outcome. A refusal means that the lease
    is lost: the attempt is stopped, and records nothing. While the store is away it tries
    again, and stops attempts when a third of their lease is left: by then somebody must. *kept* is
    told whose lease runs on: their messages stay hidden as long.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        slots: ExecutionSlots,
        *,
        timeouts: TimeoutMonitor,
        acks: MessageAcks | None,
        config: WorkerConfig,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._slots = slots
        self._timeouts = timeouts
        self._acks = acks
        self._lease = config.lease
        self._seconds = config.lease.total_seconds()
        self._every = config.heartbeat.total_seconds()
        self._margin = config.lease_margin_seconds
        self.ended: Final = timeouts.ended
        self._soon = min(RETRY_SECONDS, self._every / 4)
        self._is_failing = False
        self._expected_at = inf
        self._stall = (0.0, 0.0)  # until when, and for how long

    def tick(self) -> timedelta:
        pause = self._beat()
        self._expected_at = self._runtime.monotonic() + pause
        return timedelta(seconds=pause)

    def is_due_before(self, executions: Sequence[Execution]) -> bool:
        """Tell whether the next beat comes too late: for a timeout, or for a lease whose claim was slow to arrive."""
        expected_at, share = self._expected_at, self._seconds / 3
        return any(
            execution.ends_at - share < expected_at
            or (execution.times_out_at is not None and execution.times_out_at < expected_at)
            for execution in executions
        )

    def advice(self, execution: Execution) -> str:
        """Return what to tell people about a lost lease: nothing, unless this process stood still for too long."""
        until, seconds = self._observe_stall(self._runtime.monotonic())
        if seconds <= self._every or until < execution.ends_at - self._seconds:
            return ""
        return STALL_ADVICE.format(seconds=seconds)

    def _observe_stall(self, now: float) -> tuple[float, float]:
        late = now - self._expected_at
        return (now, late) if late > self._every else self._stall

    def _beat(self) -> float:
        now = self._runtime.monotonic()
        self._stall, self._expected_at = self._observe_stall(now), inf
        executions = self._slots.all()
        self._timeouts.check(executions, now)
        due = [
            execution
            for execution in executions
            if execution.ends_at - now <= self._seconds - self._every and _is_kept(execution)
        ]
        pause = self._extend(due) if due else self._every
        return min([pause, self._next_due(executions), *self._timeouts.pauses(executions, self._runtime.monotonic())])

    def _next_due(self, executions: Sequence[Execution]) -> float:
        """Return when the next lease wants to be extended; those that do so soon after each other go together."""
        now = self._runtime.monotonic() + self._seconds - self._every
        return max(
            self._every / 4,
            min((execution.ends_at - now for execution in executions if _is_kept(execution)), default=inf),
        )

    def _extend(self, due: list[Execution]) -> float:
        asked_at = self._runtime.monotonic()
        try:
            answers = self._driver.extend([execution.claim.lease for execution in due], lease=self._lease)
        except Exception as error:  # noqa: BLE001  whatever it was, nothing was extended, and what is late must stop
            self._stop_expiring(due, error)
            if not isinstance(error, StoreUnavailable):
                _LOG.exception("extending %d leases failed; retrying in %.1f s", len(due), self._soon)
            elif not self._is_failing:
                _LOG.warning("leases of %d jobs not extended; retrying: %s", len(due), error)
            self._is_failing = True
            return self._soon
        skipped = self._is_failing = False
        kept: list[Execution] = []
        for execution, answer in zip(due, answers, strict=True):
            if isinstance(answer, Extended):
                kept.append(execution)
                execution.ends_at = asked_at + self._seconds - self._margin
                if answer.cancel_requested and not execution.is_settling:
                    execution.stop(StopReason.CANCEL)
            elif isinstance(answer, Skipped):
                skipped = True
            else:
                self._stop_lost(execution, answer)
        if self._acks is not None:
            self._acks.extend_visibility(kept)
        return self._soon if skipped else self._every

    def _stop_lost(self, execution: Execution, answer: TaskHarborError) -> None:
        if execution.is_settling:
            return  # its outcome was committed a moment ago, or will be refused and told then
        job = execution.claim.job
        _LOG.warning(
            "lost the lease on job %s (%s), and stop it: %s%s", job.id, job.type, answer, self.advice(execution)
        )
        execution.stop(StopReason.LOST)

    def _stop_expiring(self, due: Sequence[Execution], error: Exception) -> None:
        now = self._runtime.monotonic()
        for execution in due:
            if execution.ends_at - now <= self._seconds / 3 and not execution.is_settling:
                _LOG.warning("cannot keep the lease on job %s, and stop it: %s", execution.claim.job.id, error)
                execution.stop(StopReason.LOST)


def _is_kept(execution: Execution) -> bool:
    """Tell whether the lease of *hand* is extended: not if it is lost, or if its handler did not stop in time."""
    return execution.stop_reason is not StopReason.LOST and (execution.is_settling or not execution.is_slot_lost)


def new_worker_id() -> str:
    """Return a name for a worker, by which people find its process."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_token().hex[:8]}"


class WorkerHeartbeat:
    """Writes a worker's record again and again; whoever is silent for minutes is forgotten."""

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        slots: ExecutionSlots,
        handlers: HandlerRegistry,
        config: WorkerConfig,
    ) -> None:
        self._driver = driver
        self._slots = slots
        self._handlers = handlers
        self._config = config
        self._started_at = runtime.now()

    def tick(self) -> timedelta:
        record = WorkerRecord(
            id=self._config.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(self._config.queues),
            types=tuple(sorted(self._handlers.types)),
            concurrency=self._slots.concurrency,
            lost_slots=self._slots.lost_slots,
            started_at=self._started_at,
        )
        try:
            self._driver.maintenance.record_worker(record)
        except StoreUnavailable as error:
            _LOG.warning("cannot say that this worker is alive: %s", error)
        return PERIOD
