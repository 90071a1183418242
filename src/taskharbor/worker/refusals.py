"""Calls of a worker that the store refused because the lease was lost, until the worker heartbeat records them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from taskharbor.core.results import Refusal
from taskharbor.drivers.base import STORE_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskharbor.core.model import Lease
    from taskharbor.core.states import Event
    from taskharbor.service import ServiceLoops

MAX_REFUSALS: Final = STORE_BATCH
"""More than this many are not recorded: after an outage, all leases of a worker may be lost at once."""


class RefusalNotes:
    """Collects refusals from any thread. They are for timelines only, so that losing some of them is harmless."""

    def __init__(self, loops: ServiceLoops) -> None:
        self._loops = loops
        self._notes: deque[Refusal] = deque(maxlen=MAX_REFUSALS)

    def note(self, lease: Lease, event: Event) -> None:
        """Note that the call *event* under *lease* was refused, and let it be recorded soon."""
        self._notes.append(Refusal(job_id=lease.job_id, token=lease.token, event=event))
        self._loops.wake("worker-heartbeat")

    def take(self) -> list[Refusal]:
        """Remove and return the refusals that were noted."""
        return [self._notes.popleft() for _ in range(len(self._notes))]

    def put_back(self, refusals: Iterable[Refusal]) -> None:
        """Keep *refusals* that could not be recorded for the next call."""
        self._notes.extend(refusals)
