"""The request to stop that all stages of a worker share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops


class StopRequest:
    """Whether the worker must stop, and until when running handlers may finish.

    The first request starts the loop ``shutdown``; a later one only moves the deadline.
    """

    def __init__(self, runtime: Runtime, loops: ServiceLoops, grace: timedelta) -> None:
        self._runtime = runtime
        self._loops = loops
        self._grace = grace
        self.is_set = False
        self.requested_at = 0.0
        """The time of the first request, by the monotonic clock."""
        self.deadline = 0.0
        """The end of the grace, by the monotonic clock."""

    def set(self, grace: timedelta | None = None) -> None:
        """Stop claiming, and let running handlers finish within *grace*."""
        now = self._runtime.monotonic()
        if not self.is_set:
            self.requested_at = now
        self.is_set = True
        self.deadline = now + (self._grace if grace is None else grace).total_seconds()
        self._loops.wake("source")
        self._loops.start_on_demand("shutdown")
