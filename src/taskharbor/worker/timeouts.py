"""Stops attempts at their timeout, and counts the slots whose handlers do not return."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from taskharbor.service import LOST_SLOTS_EXIT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution, ExecutionSlots
    from taskharbor.worker.stop_request import StopRequest

_LOG: Final = logging.getLogger("taskharbor.worker")
MIN_PAUSE_SECONDS: Final = 0.001


class TimeoutMonitor:
    """Asks attempts to stop at their timeout. An async handler is canceled; a sync handler cannot be.

    A sync handler that still runs at its timeout is logged with the stack of its thread. One lease
    later its slot is lost until the handler returns: the job's lease is no longer extended, so
    that another worker can reclaim the job. A worker that has lost half of its slots stops itself.
    """

    def __init__(
        self,
        runtime: Runtime,
        slots: ExecutionSlots,
        loops: ServiceLoops,
        stop: StopRequest,
        *,
        lease: timedelta,
    ) -> None:
        self._runtime = runtime
        self._slots = slots
        self._loops = loops
        self._stop = stop
        self._lease_seconds = lease.total_seconds()
        self.is_exhausted = False
        """Whether half of the slots were lost, so that the worker stops itself."""

    def check(self, executions: Iterable[Execution], now: float) -> None:
        """Stop the attempts whose timeout has passed; one lease later count their slots as lost."""
        for execution in executions:
            if execution.times_out_at is None or execution.times_out_at > now or execution.is_settling:
                continue
            if not execution.is_timed_out:
                self._time_out(execution)
            if (
                now >= execution.times_out_at + self._lease_seconds
                and execution.thread is not None
                and not execution.is_slot_lost
            ):
                self._lose_slot(execution, now - execution.times_out_at)

    def pauses(self, executions: Iterable[Execution], now: float) -> list[float]:
        """Return in how many seconds each attempt must be checked again."""
        return [
            max(MIN_PAUSE_SECONDS, execution.times_out_at + self._lease_seconds * execution.is_timed_out - now)
            for execution in executions
            if execution.times_out_at is not None and not execution.is_settling
            if not execution.is_timed_out or (execution.thread is not None and not execution.is_slot_lost)
        ]

    def ended(self, execution: Execution) -> None:
        """Count the slot of *execution* as free again if its handler has returned."""
        if execution.is_slot_lost and execution.thread is None:
            execution.is_slot_lost = False
            _LOG.warning(
                "job %s (%s): its handler returned; its slot is free again", execution.claim.job.id, _type(execution)
            )
            self._loops.wake("worker-heartbeat")  # to record how many slots are lost

    def _time_out(self, execution: Execution) -> None:
        stack = "" if execution.thread is None else self._runtime.stack(execution.thread)
        execution.time_out()
        if execution.thread is None:  # async, or it has returned, and the stack may be of another job
            return
        _LOG.warning(
            "job %s (%s) attempt %d: still running at its timeout of %s s; asked it to stop; its result will be "
            "recorded as timed out; stack of its thread:\n%s",
            execution.claim.job.id,
            _type(execution),
            execution.claim.job.attempt_count,
            _seconds(execution),
            stack,
        )

    def _lose_slot(self, execution: Execution, late_by: float) -> None:
        execution.is_slot_lost = True
        lost, total = self._slots.lost_slots, self._slots.concurrency
        _LOG.warning(
            "job %s (%s): still running %.1f s after its timeout; its lease is no longer extended and its slot is lost "
            "until the handler returns (%d of %d slots lost)",
            execution.claim.job.id,
            _type(execution),
            late_by,
            lost,
            total,
        )
        self._loops.wake("worker-heartbeat")  # to record how many slots are lost
        if lost * 2 >= total and not self.is_exhausted:
            self.is_exhausted = True
            _LOG.error("%d of %d slots lost; draining, then ending with exit code %d", lost, total, LOST_SLOTS_EXIT)
            self._stop.set()


def _type(execution: Execution) -> str:
    return execution.claim.job.type


def _seconds(execution: Execution) -> float | None:
    timeout = execution.claim.job.timeout
    return None if timeout is None else timeout.total_seconds()
