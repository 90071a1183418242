"""Finds out which job blocks the event loop, or keeps all threads from running, and logs it."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.text import duration_text
from taskharbor.observability.job_log import job_fields
from taskharbor.worker.executor import Executor

if TYPE_CHECKING:
    from types import FrameType

    from taskharbor.runtime import Runtime
    from taskharbor.worker.execution import Execution, ExecutionSlots

_LOG: Final = logging.getLogger("taskharbor.worker")
STALL_AFTER: Final = timedelta(seconds=1)
IDLE_PAUSE: Final = timedelta(seconds=1)
MAX_LINES: Final = 60
MAX_LISTED: Final = 5
MAX_PIPE_BYTES: Final = 2**20
DUMP_START: Final = "Timeout ("
HANDLER_CODE: Final = Executor._run_async.__code__  # noqa: SLF001  its frame is on the stack of every async handler
LOOP_ADVICE: Final = (
    "Other async handlers wait meanwhile. Call it with 'await asyncio.to_thread(...)', define the task with 'def', "
    "or set isolate=True"
)
GIL_ADVICE: Final = (
    "C code held the GIL, so that no thread ran and no lease was extended. "
    "Set isolate=True for such a task, so that it runs in a process of its own; see docs/cpu-work.md"
)


class StallDetector:
    """Logs a warning when the event loop has not answered for *after*, or when no thread of the process has run.

    Each stall is logged once. A process without CPU time is late too: so a handler must be found twice, and a stall
    of all threads counts only if the process computed meanwhile.
    """

    def __init__(self, runtime: Runtime, slots: ExecutionSlots, *, after: timedelta) -> None:
        self._runtime = runtime
        self._slots = slots
        self._after_seconds = after.total_seconds()
        self._pause = after / 2
        self._expected_at = float("inf")
        self._cpu_seconds = 0.0
        self._last: Execution | None = None  # the handler that the last check has found
        self._is_logged = False
        self._dumps: tuple[int, int] | None = None  # a pipe

    def dump_stacks(self) -> None:
        """Let Python write the stacks of all threads while none can run.

        Only for a process of our own: it uses `faulthandler.dump_traceback_later`, of which a process has one.
        """
        self._dumps = os.pipe()
        for descriptor in self._dumps:
            os.set_blocking(descriptor, False)  # what does not fit is lost, so a long stall takes no more memory

    def close(self) -> None:
        if self._dumps is not None:
            faulthandler.cancel_dump_traceback_later()
            for descriptor in self._dumps:
                os.close(descriptor)
            self._dumps = None

    def tick(self) -> timedelta:
        now, cpu = self._runtime.monotonic(), self._runtime.process_time()
        late = now - self._expected_at
        if late > self._after_seconds and cpu - self._cpu_seconds > self._after_seconds / 2:
            self._log_stall(late)
        else:
            self._check_event_loop()
        pause = self._pause if len(self._slots) else IDLE_PAUSE
        self._expected_at, self._cpu_seconds = now + pause.total_seconds(), cpu
        self._arm(pause)
        return pause

    def _check_event_loop(self) -> None:
        blocked = self._runtime.event_loop_wait()
        if blocked < self._after_seconds / 2:
            self._last, self._is_logged = None, False
            return
        if self._is_logged:
            return
        found = running_async_handler()
        execution, thread_id = found or (None, 0)
        if execution is not None and execution is self._last and blocked >= self._after_seconds:
            self._is_logged = True
            job, stack = execution.claim.job, self._runtime.stack(thread_id)
            text = "job %s (%s) has blocked the event loop for %s. %s; stack:\n%s"
            _LOG.warning(text, job.id, job.type, duration_text(blocked), LOOP_ADVICE, stack, extra=job_fields(job))
        self._last = execution

    def _log_stall(self, seconds: float) -> None:
        running = [each.claim.job for each in self._slots.all() if each.began_at is not None]
        jobs = ", ".join(f"{job.id} ({job.type})" for job in running[:MAX_LISTED])
        more = f" and {len(running) - MAX_LISTED} more" if len(running) > MAX_LISTED else ""
        stacks = self._read_dumps()
        _LOG.warning(
            "this process ran no Python code for %s while it ran %s%s. %s%s",
            duration_text(seconds),
            jobs or "no job",
            more,
            GIL_ADVICE,
            f"; stacks:\n{stacks}" if stacks else "",
        )

    def _arm(self, pause: timedelta) -> None:
        if self._dumps is not None:
            seconds = pause.total_seconds() + self._after_seconds / 2
            faulthandler.dump_traceback_later(seconds, repeat=True, file=self._dumps[1])
            self._read_dumps()  # of the time before

    def _read_dumps(self) -> str:
        """Return the stacks in the middle of the stall.

        A process without CPU time is late before the stall, or after it: the first and the last stacks may show that.
        """
        if self._dumps is None:
            return ""
        try:
            text = os.read(self._dumps[0], MAX_PIPE_BYTES).decode(errors="replace")
        except BlockingIOError:  # there are none
            return ""
        dumps = text.split(DUMP_START)[1:]
        return "\n".join((DUMP_START + dumps[len(dumps) // 2]).splitlines()[:MAX_LINES]) if dumps else ""


def running_async_handler() -> tuple[Execution, int] | None:
    """Return the attempt whose handler the event loop executes at this moment, and the id of its thread."""
    for thread_id, top in sys._current_frames().items():  # noqa: SLF001  a documented function of CPython
        frame: FrameType | None = top
        while frame is not None and frame.f_code is not HANDLER_CODE:
            frame = frame.f_back
        if frame is not None:
            return frame.f_locals["execution"], thread_id
    return None
