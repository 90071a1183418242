"""The lease heartbeat, which extends leases, and the worker heartbeat, which records that the worker is alive."""

from __future__ import annotations

import logging
import os
import socket
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final

from taskharbor._version import __version__
from taskharbor.core.errors import LeaseLost, Problem, StoreUnavailable, UsageError
from taskharbor.core.ids import new_token
from taskharbor.core.model import WorkerRecord
from taskharbor.core.results import Extended, Skipped
from taskharbor.core.states import Event
from taskharbor.observability.failure_log import STORE
from taskharbor.observability.job_log import job_fields
from taskharbor.worker.execution import StopReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.drivers.base import Driver
    from taskharbor.observability.failure_log import FailureLog
    from taskharbor.runtime import Runtime
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.execution import Execution, ExecutionSlots
    from taskharbor.worker.handlers import HandlerRegistry
    from taskharbor.worker.message_acks import MessageAcks
    from taskharbor.worker.pipeline import Pipeline
    from taskharbor.worker.refusals import RefusalNotes
    from taskharbor.worker.timeouts import TimeoutMonitor

_LOG: Final = logging.getLogger("taskharbor.worker")
RETRY_SECONDS: Final = 0.25  # until a failed or skipped extension is retried
STALL_ADVICE: Final = (
    "; this process stalled for {seconds:.1f} s: it was suspended, or a handler held the GIL in C code; "
    "set isolate=True for such a task"
)
WORKER_HEARTBEAT: Final = timedelta(seconds=10)
MAX_NAME_CHARS: Final = 200


class LeaseHeartbeat:
    """Extends all leases that are due in one statement, on a thread of its own.

    It covers a job from its claim to its committed outcome. If the store refuses to extend a lease,
    the lease is lost: the attempt is stopped, and records nothing. While the store is unavailable, the
    heartbeat retries, and stops attempts that have less than a third of their lease left. It also
    extends the visibility of the messages whose leases it extended.

    An extension reports a requested cancel. After a notification of cancels, the requests are read at
    once, for all executions in one statement.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        slots: ExecutionSlots,
        *,
        timeouts: TimeoutMonitor,
        acks: MessageAcks | None,
        failures: FailureLog,
        refusals: RefusalNotes,
        config: WorkerConfig,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._slots = slots
        self.refusals: Final = refusals
        self._timeouts = timeouts
        self._acks = acks
        self._failures = failures
        self._lease = config.lease
        self._lease_seconds = config.lease.total_seconds()
        self._interval = config.heartbeat.total_seconds()
        self._lease_margin = config.lease_margin_seconds
        self.ended: Final = timeouts.ended
        self._retry_pause = min(RETRY_SECONDS, self._interval / 4)
        self._expected_at = inf
        self._cancels_notified_at = -inf
        self._stall = (0.0, 0.0)  # when it ended, and how many seconds it took

    def tick(self) -> timedelta:
        pause = self._beat()
        self._expected_at = self._runtime.monotonic() + pause
        return timedelta(seconds=pause)

    def note_cancels(self) -> None:
        """Note that cancels of running jobs may have been requested: the next tick reads the requests."""
        self._cancels_notified_at = self._runtime.monotonic()

    def is_due_before(self, executions: Sequence[Execution]) -> bool:
        """Return whether the next heartbeat is too late for a timeout, a cancel or a lease whose claim arrived late.

        They were claimed together, so the leases of all end with that of the first.
        """
        first, expected_at = executions[0], self._expected_at
        return (
            first.ends_at - self._lease_seconds / 3 < expected_at
            or self._may_be_canceled(first)
            or any(
                execution.times_out_at is not None and execution.times_out_at < expected_at for execution in executions
            )
        )

    def _may_be_canceled(self, execution: Execution) -> bool:
        """Return whether cancels were notified since the store last said that none is requested."""
        answered_at = execution.ends_at + self._lease_margin - self._lease_seconds
        return max(answered_at, execution.cancel_read_at) <= self._cancels_notified_at

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
        return min(
            [
                pause,
                self._read_cancels(executions),
                self._next_due(executions),
                *self._timeouts.pauses(executions, self._runtime.monotonic()),
            ]
        )

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
            if isinstance(error, StoreUnavailable):
                self._failures.unavailable(STORE, error)
            else:
                self._failures.unexpected("extending leases", error)
            return self._retry_pause
        self._failures.available(STORE)
        skipped = False
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

    def _read_cancels(self, executions: Sequence[Execution]) -> float:
        """Stop executions whose cancel was requested; return in how many seconds to read again."""
        unread = [
            execution
            for execution in executions
            if execution.stop_reason is None and not execution.is_settling and self._may_be_canceled(execution)
        ]
        if not unread:
            return inf
        requested_at = self._runtime.monotonic()
        try:
            answers = self._driver.cancel_requested([execution.claim.lease for execution in unread])
        except StoreUnavailable as error:
            self._failures.unavailable(STORE, error)
            return self._retry_pause
        for execution, is_requested in zip(unread, answers, strict=True):
            execution.cancel_read_at = requested_at
            if is_requested:
                execution.stop(StopReason.CANCEL)
        return inf

    def _stop_lost(self, execution: Execution, answer: TaskHarborError) -> None:
        if execution.is_settling:
            return  # its outcome was just committed, or will be refused and logged then
        if isinstance(answer, LeaseLost):
            self.refusals.note(execution.claim.lease, Event.EXTEND)
        job = execution.claim.job
        text = "lease lost on job %s (%s); stopping handler: %s%s"
        _LOG.warning(text, job.id, job.type, answer, self.advice(execution), extra=job_fields(job))
        execution.stop(StopReason.LOST)

    def _stop_expiring(self, due: Sequence[Execution], error: Exception) -> None:
        now = self._runtime.monotonic()
        for execution in due:
            if execution.ends_at - now <= self._lease_seconds / 3 and not execution.is_settling:
                job, text = execution.claim.job, "lease on job %s (%s) not extended in time; stopping handler: %s"
                _LOG.warning(text, job.id, job.type, error, extra=job_fields(job))
                execution.stop(StopReason.LOST)


def _needs_extension(execution: Execution) -> bool:
    """Return whether to extend the lease: not if it is lost, or if the handler did not stop after its timeout."""
    return execution.stop_reason is not StopReason.LOST and (execution.is_settling or not execution.is_slot_lost)


def worker_id(name: str | None) -> str:
    """Return *name*, or an id that names host and process. Raise `UsageError` if a store may not keep it unchanged."""
    if not name:
        return f"{socket.gethostname()}:{os.getpid()}:{new_token().hex[:8]}"
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        rule = f"must have at most {MAX_NAME_CHARS} characters, all of them printable"
        raise UsageError(Problem(field="name", value=ascii(name[: 2 * MAX_NAME_CHARS]), rule=rule))
    return name


class WorkerHeartbeat:
    """Writes the worker's record periodically, whether it receives messages, its statistics and its refused calls.

    The record of a worker that stops becomes that of a past one. The janitor does the same for killed workers, whose
    records were not renewed for minutes.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: Driver,
        handlers: HandlerRegistry,
        config: WorkerConfig,
        pipeline: Pipeline,
    ) -> None:
        self._driver = driver
        self._handlers = handlers
        self._config = config
        self._slots, self._source = pipeline.slots, pipeline.source
        self._statistics = pipeline.statistics
        self._refusals = pipeline.leases.refusals
        self._failures = pipeline.loops.failures
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
            schedules=self._config.schedules,
            busy_slots=self._slots.busy_slots,
            library=__version__,
        )
        try:
            self._driver.maintenance.record_worker(record)
            self._record_refusals()
            if notes := self._source.delivery_notes:
                self._driver.maintenance.record_delivery(notes)
            self._hand_over_statistics()
        except StoreUnavailable as error:
            self._failures.unavailable(STORE, error)
        return WORKER_HEARTBEAT

    def _hand_over_statistics(self) -> None:
        # After an error they may have been added, and are not added again: better too few than too many.
        tallies, version = self._statistics.take(), self._config.version
        if tallies or version is not None:
            self._driver.maintenance.record_statistics(tallies, version=version)

    def remove(self) -> None:
        """Hand over the last statistics, and remove the record. If that fails, the janitor prunes it."""
        try:
            self._hand_over_statistics()
            self._record_refusals()
            self._driver.maintenance.remove_worker(self._config.worker)
        except Exception as error:  # noqa: BLE001  whatever failed must not keep the worker from stopping
            _LOG.warning("worker record not removed: %s", error)

    def _record_refusals(self) -> None:
        refused = self._refusals.take()
        if not refused:
            return
        try:
            self._driver.maintenance.record_refusals(refused)
        except StoreUnavailable:
            self._refusals.put_back(refused)
            raise
