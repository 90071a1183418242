"""What a jump of the store's clock must not do: let jobs be taken from those who run them, or cost them attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskharbor.core.states import Status

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.model import Job
    from taskharbor.testing.simulation.history import DriverCall

TAKE_OVER: Final = frozenset({"reserve", "claim", "expire"})


class ClockJumpChecker:
    """What the store was told of its clock: what it should have read, what it read, and how long nobody takes over."""

    def __init__(self) -> None:
        self._told: tuple[datetime, datetime, datetime] | None = None

    def take(self, call: DriverCall) -> None:
        """Learn of a call."""
        if call.verb != "report_clock_jump":
            return
        before, after, until = call.asked["expected"], call.at, call.at + call.asked["lease"]
        if after <= before:
            self._told = None
        elif self._told is not None and after < self._told[2]:
            self._told = min(before, self._told[0]), max(after, self._told[1]), max(until, self._told[2])
        else:
            self._told = before, after, until

    def forbid(self, call: DriverCall, job: Job) -> bool:
        """Whether *call* took over *job*, as it was before, while nobody may."""
        is_hold = self._told is not None and call.at < self._told[2]
        return is_hold and call.verb in TAKE_OVER and job.status is Status.PROCESSING

    def counted(self, job: Job) -> int:
        """Return how many attempts count, should the one under way be lost: one that ended by a jump does not."""
        end = job.lease_expires_at
        is_lost_to_it = self._told is not None and end is not None and self._told[0] < end <= self._told[1]
        return job.attempt_count - is_lost_to_it
