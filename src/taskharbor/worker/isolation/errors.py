"""How an attempt in a child process can fail that a handler in a thread cannot."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import TaskHarborError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.failure import Failure

MEGABYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnd:
    """How a child process ended: its exit code, or the negative number of a signal; None if that is unknown.

    ``is_killed``: its zygote has killed it. ``is_over_memory``: because it used too much memory. ``is_stopped``:
    because its handler was asked to stop. ``peak_bytes`` is the most physical memory that it has used; 0 if unknown.
    """

    code: int | None = None
    peak_bytes: int = 0
    is_killed: bool = False
    is_over_memory: bool = False
    is_stopped: bool = False

    def __str__(self) -> str:
        peak = f"; peak memory {self.peak_bytes // MEGABYTE} MB" if self.peak_bytes else ""
        if self.code is None:
            return f"its process is gone{peak}"
        if self.code >= 0:
            return f"its process exited with code {self.code}{peak}"
        name = _signal_name(-self.code)
        is_killed = self.is_killed and -self.code in {signal.SIGABRT, signal.SIGKILL}
        if is_killed and self.is_stopped:
            return f"its process did not end when it was asked to, and was killed{peak}"
        if is_killed:
            return f"its process closed its connection to the worker, which killed it{peak}"
        hint = "; the kernel does that when memory is exhausted" if -self.code == signal.SIGKILL else ""
        return f"its process was killed by {name}{hint}{peak}"


class ChildDied(TaskHarborError):
    """The process of an isolated attempt ended before its handler. ``end`` says how; notes have its last lines."""

    def __init__(self, end: ChildEnd, last_lines: Sequence[str] = ()) -> None:
        super().__init__(end)
        self.end = end
        if last_lines:
            self.add_note("\n".join(["last lines of its log and output:", *last_lines]))

    def __str__(self) -> str:
        return str(self.end)


class MemoryLimitReached(TaskHarborError):
    """An isolated attempt used more memory than its task allows."""

    def __init__(self, limit_bytes: int, peak_bytes: int = 0) -> None:
        super().__init__(limit_bytes, peak_bytes)
        self.limit_bytes, self.peak_bytes = limit_bytes, peak_bytes

    def __str__(self) -> str:
        peak = f"; its processes used {self.peak_bytes // MEGABYTE} MB" if self.peak_bytes else ""
        return f"the memory limit of {self.limit_bytes // MEGABYTE} MB was reached{peak}"


class ChildNotStarted(TaskHarborError):
    """No child process could be started, so that the attempt did not begin."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no isolated process could be started: {self.reason}"


class ChildNotReady(ChildNotStarted):
    """A child process was started, but did not enter its lifespan in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it was not ready within {seconds:.0f} s")


class FailedInChild(Exception):
    """What a handler raised in its child process, as hooks and error trackers see it in the worker."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.traceback or str(self.failure)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
