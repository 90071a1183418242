"""Stops attempts at their timeout, and counts the slots whose handlers do not return."""

from __future__ import annotations

import logging
from math import inf
from typing import TYPE_CHECKING, Final

from taskharbor.core.hooks import SlotLost
from taskharbor.core.text import duration_text
from taskharbor.observability.hook_caller import NO_HOOKS
from taskharbor.observability.job_log import job_fields
from taskharbor.service import LOST_SLOTS_EXIT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from taskharbor.observability.hook_caller import HookCaller
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution, ExecutionSlots
    from taskharbor.worker.stop_request import StopRequest

_LOG: Final = logging.getLogger("taskharbor.worker")
MIN_PAUSE_SECONDS: Final = 0.001


class TimeoutMonitor:
    """Asks attempts to stop at their timeout. An async handler is canceled; a sync handler cannot be.

    A sync handler that still runs at its timeout is logged with the stack of its thread. If it still runs one lease
    later, or an async handler does, which has ignored its cancellation, its slot is lost until the handler returns:
    the job's lease is no longer extended, so that another worker can reclaim the job. A worker that has lost half of
    its slots stops itself.
    """

    def __init__(
        self,
        runtime: Runtime,
        slots: ExecutionSlots,
        loops: ServiceLoops,
        stop: StopRequest,
        *,
        lease: timedelta,
        call_hooks: HookCaller = NO_HOOKS,
    ) -> None:
        self._runtime = runtime
        self._slots = slots
        self._loops = loops
        self._stop = stop
        self._call_hooks = call_hooks
        self._lease_seconds = lease.total_seconds()
        self.is_exhausted = False
        """Whether half of the slots were lost, so that the worker stops itself."""

    def check(self, executions: Iterable[Execution], now: float) -> None:
        """Stop the attempts whose timeout has passed; one lease later count their slots as lost."""
        for execution in executions:
            if execution.times_out_at is None or execution.times_out_at > now or execution.is_settling:
                continue
            if execution.began_at is None:  # it waits, and its timeout counts from its begin
                continue
            if not execution.is_timed_out:
                self._time_out(execution)
            if now >= execution.times_out_at + self._lease_seconds and not execution.is_slot_lost:
                self._lose_slot(execution, now - execution.times_out_at)

    def pauses(self, executions: Iterable[Execution], now: float) -> list[float]:
        """Return in how many seconds each attempt must be checked again."""
        return [
            max(
                MIN_PAUSE_SECONDS,
                _earliest_timeout(execution, now) + self._lease_seconds * execution.is_timed_out - now,
            )
            for execution in executions
            if execution.times_out_at is not None and not execution.is_settling
            if not execution.is_slot_lost
        ]

    def ended(self, execution: Execution) -> None:
        """Count the slot of *execution* as free again if its handler has returned."""
        if execution.is_slot_lost and execution.thread is None:
            execution.is_slot_lost = False
            if not self._stop.is_set:  # a stop does not wait for an async handler
                text = "job %s (%s): its handler returned; its slot is free again"
                job = execution.claim.job
                _LOG.warning(text, job.id, job.type, extra=job_fields(job))
            self._loops.wake("worker-heartbeat")  # to record how many slots are lost

    def _time_out(self, execution: Execution) -> None:
        stack = "" if execution.thread is None else self._runtime.stack(execution.thread)
        execution.time_out()
        if execution.thread is None:  # async, or it has returned, and the stack may be of another job
            return
        job = execution.claim.job
        _LOG.warning(
            "job %s (%s) attempt %d of %d: still running at its timeout of %s; asked to stop by ctx.is_cancelled; "
            "its result will be recorded as timed out; isolate=True makes a task that can be killed; stack:\n%s",
            job.id,
            job.type,
            job.attempt_count,
            job.max_attempts,
            "" if job.timeout is None else duration_text(job.timeout.total_seconds()),
            stack,
            extra=job_fields(job),
        )

    def _lose_slot(self, execution: Execution, late_by: float) -> None:
        execution.is_slot_lost = True
        lost, total = self._slots.lost_slots, self._slots.concurrency
        job = execution.claim.job
        _LOG.warning(
            "job %s (%s): still running %s after its timeout; its lease is no longer extended and its slot is lost "
            "until the handler returns (%d of %d slots lost)",
            job.id,
            job.type,
            duration_text(late_by),
            lost,
            total,
            extra=job_fields(job),
        )
        if self._call_hooks:
            self._call_hooks(SlotLost(job=execution.claim.job, lost=lost, total=total))
        self._loops.wake("worker-heartbeat")  # to record how many slots are lost
        if lost * 2 >= total and not self._stop.is_set:  # a stop that was requested before keeps its deadline
            self.is_exhausted = True
            _LOG.error("%d of %d slots lost; draining, then ending with exit code %d", lost, total, LOST_SLOTS_EXIT)
            self._stop.set()


def _earliest_timeout(execution: Execution, now: float) -> float:
    timeout = execution.claim.job.timeout
    if execution.began_at is None and timeout is not None:
        return now + timeout.total_seconds()
    return inf if execution.times_out_at is None else execution.times_out_at
