"""Stops a worker after a number of jobs, or when its memory has grown, so that a new process takes its place."""

from __future__ import annotations

import logging
import os
import resource
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError

if TYPE_CHECKING:
    from taskharbor.worker.execution import ExecutionSlots
    from taskharbor.worker.lifespan import LifespanRun
    from taskharbor.worker.stop_request import StopRequest

_LOG: Final = logging.getLogger("taskharbor.worker")
CHECK_EVERY: Final = timedelta(milliseconds=100)
UNLIMITED: Final = timedelta(days=3650)
MEGABYTE: Final = 1024 * 1024


class Recycling:
    """Checks the limits of a worker. When one is reached, the worker claims no more jobs and finishes those it has."""

    def __init__(
        self, slots: ExecutionSlots, stop: StopRequest, *, max_jobs: int | None, max_memory: int | None
    ) -> None:
        self._slots = slots
        self._stop = stop
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self.is_on = max_jobs is not None or max_memory is not None
        """Whether there is a limit."""
        self.is_due = False
        """Whether a limit was reached, so that the worker stops itself."""

    def check_start(self, lifespan: LifespanRun | None) -> None:
        """Raise `UsageError` if the memory limit is reached before any job: each new process would end at once."""
        if self._max_memory is not None and (used := memory_used()) > self._max_memory:
            if lifespan is not None:
                lifespan.leave()
            rule = f"this process uses {used // MEGABYTE} MB after its start, before any job; set a higher limit"
            value = f"{self._max_memory / MEGABYTE:.0f} MB"
            raise UsageError(Problem(field="max_memory", value=value, rule=rule))

    def tick(self) -> timedelta:
        if not self._stop.is_set and (reason := self._reason()):
            self.is_due = True
            _LOG.info("%s; finishing the running jobs, then ending to be replaced", reason)
            self._stop.set(UNLIMITED)
        return CHECK_EVERY

    def _reason(self) -> str:
        if self._max_jobs is not None and self._slots.recorded >= self._max_jobs:
            return f"{self._slots.recorded} jobs run, of at most {self._max_jobs}"
        # After a job: a worker that has grown without any would be replaced by others that do no work either.
        if self._max_memory is not None and self._slots.recorded and (used := memory_used()) > self._max_memory:
            return f"{used // MEGABYTE} MB of memory used, of at most {self._max_memory // MEGABYTE} MB"
        return ""


def memory_used() -> int:
    """Return how much physical memory this process uses, in bytes; elsewhere than on Linux, the most it has used."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return pages * os.sysconf("SC_PAGE_SIZE")
