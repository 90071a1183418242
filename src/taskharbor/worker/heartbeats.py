"""The lease heartbeat, which extends leases, and the worker heartbeat, which records that the worker is alive."""

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
RETRY_SECONDS: Final = 0.25  # until a failed or skipped extension is retried
STALL_ADVICE: Final = (
    "; this process stalled for {seconds:.1f} s: it was suspended, or a handler held the GIL in C code; "
    "run such code in a subprocess"
)
WORKER_HEARTBEAT: Final = timedelta(seconds=10)


class LeaseHeartbeat:
    """Extends all leases that are due in one statement, on a thread of its own.

    It covers a job from its claim to its committed outcome. If the store refuses to extend a lease,
    the lease is lost: the attempt is stopped, and records nothing. While the store is unavailable, the
    heartbeat retries, and stops attempts that have less than a third of their lease left. It also
    extends the visibility of the messages whose leases it extended.
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
        self._lease_seconds = config.lease.total_seconds()
        self._interval = config.heartbeat.total_seconds()
        self._lease_margin = config.lease_margin_seconds
        self.ended: Final = timeouts.ended
        self._retry_pause = min(RETRY_SECONDS, self._interval / 4)
        self._is_failing = False
        self._expected_at = inf
        self._stall = (0.0, 0.0)  # when it ended, and how many seconds it took

    def tick(self) -> timedelta:
        pause = self._beat()
        self._expected_at = self._runtime.monotonic() + pause
        return timedelta(seconds=pause)

    def is_due_before(self, executions: Sequence[Execution]) -> bool:
        """Return whether the next heartbeat is too late for a timeout, or for a lease whose claim arrived late."""
        expected_at, third = self._expected_at, self._lease_seconds / 3
        return any(
            execution.ends_at - third < expected_at
            or (execution.times_out_at is not None and execution.times_out_at < expected_at)
            for execution in executions
        )

    def advice(self, execution: Execution) -> str:
        """Return advice for the log line of a lost lease; empty unless this process stalled."""
        ended_at, seconds = self._observe_stall(self._runtime.monotonic())
        if seconds <= self._interval or ended_at < execution.ends_at - self._lease_seconds:
            return ""
        return STALL_ADVICE.format(seconds=seconds)

    def _observe_stall(self, now: float) -> tuple[float, float]:
        late = now - self._expected_at
        return (now, late) if late > self._interval else self._stall

    def _beat(self) -> float:
        now = self._runtime.monotonic()
        self._stall, self._expected_at = self._observe_stall(now), inf
        executions = self._slots.all()
        self._timeouts.check(executions, now)
        due = [
            execution
            for execution in executions
            if execution.ends_at - now <= self._lease_seconds - self._interval and _needs_extension(execution)
        ]
        pause = self._extend(due) if due else self._interval
        return min([pause, self._next_due(executions), *self._timeouts.pauses(executions, self._runtime.monotonic())])

    def _next_due(self, executions: Sequence[Execution]) -> float:
        """Return in how many seconds the next lease is due; leases due within a quarter interval go together."""
        now = self._runtime.monotonic() + self._lease_seconds - self._interval
        return max(
            self._interval / 4,
            min((execution.ends_at - now for execution in executions if _needs_extension(execution)), default=inf),
        )

    def _extend(self, due: list[Execution]) -> float:
        requested_at = self._runtime.monotonic()
        try:
            answers = self._driver.extend([execution.claim.lease for execution in due], lease=self._lease)
        except Exception as error:  # noqa: BLE001  nothing was extended: attempts with expiring leases must stop
            self._stop_expiring(due, error)
            if not isinstance(error, StoreUnavailable):
                _LOG.exception("extending %d leases failed; retrying in %.1f s", len(due), self._retry_pause)
            elif not self._is_failing:
                _LOG.warning("leases of %d jobs not extended; retrying: %s", len(due), error)
            self._is_failing = True
            return self._retry_pause
        skipped = self._is_failing = False
        extended: list[Execution] = []
        for execution, answer in zip(due, answers, strict=True):
            if isinstance(answer, Extended):
                extended.append(execution)
                execution.ends_at = requested_at + self._lease_seconds - self._lease_margin
                if answer.cancel_requested and not execution.is_settling:
                    execution.stop(StopReason.CANCEL)
            elif isinstance(answer, Skipped):
                skipped = True
            else:
                self._stop_lost(execution, answer)
        if self._acks is not None:
            self._acks.extend_visibility(extended)
        return self._retry_pause if skipped else self._interval

    def _stop_lost(self, execution: Execution, answer: TaskHarborError) -> None:
        if execution.is_settling:
            return  # its outcome was just committed, or will be refused and logged then
        job = execution.claim.job
        _LOG.warning(
            "lease lost on job %s (%s); stopping handler: %s%s", job.id, job.type, answer, self.advice(execution)
        )
        execution.stop(StopReason.LOST)

    def _stop_expiring(self, due: Sequence[Execution], error: Exception) -> None:
        now = self._runtime.monotonic()
        for execution in due:
            if execution.ends_at - now <= self._lease_seconds / 3 and not execution.is_settling:
                _LOG.warning(
                    "lease on job %s not extended in time; stopping handler: %s", execution.claim.job.id, error
                )
                execution.stop(StopReason.LOST)


def _needs_extension(execution: Execution) -> bool:
    """Return whether to extend the lease: not if it is lost, or if the handler did not stop after its timeout."""
    return execution.stop_reason is not StopReason.LOST and (execution.is_settling or not execution.is_slot_lost)


def new_worker_id() -> str:
    """Return a worker id that names its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_token().hex[:8]}"


class WorkerHeartbeat:
    """Writes the worker's record periodically. The janitor prunes records that were not renewed for minutes."""

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
            _LOG.warning("worker heartbeat not recorded: %s", error)
        return WORKER_HEARTBEAT
