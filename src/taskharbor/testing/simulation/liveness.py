"""What must go on once nothing goes wrong any more."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.states import Status
from taskharbor.testing.simulation.history import DriverCall
from taskharbor.testing.simulation.plan import LEASE, POLL, RESEND, UNHANDLED_AFTER
from taskharbor.testing.simulation.workloads import UNKNOWN
from taskharbor.testing.simulation.world import EPOCH, shown

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.testing.simulation.fleet import SimulatedWorker
    from taskharbor.testing.simulation.run import Simulation

JANITOR: Final = timedelta(seconds=5)
STOP_WITHIN: Final = timedelta(seconds=1)
SLACK: Final = timedelta(seconds=1.5)
NEW: Final = 4.0
"""Seconds in which a worker gets going: it compares clocks before it takes over from others."""
SPINNING: Final = 800
"""Calls of the store in a second that no honest fleet needs."""


class Liveness:
    """Looks at the world now and then, from the moment it became quiet on."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._history = simulation.history
        # What was put off before the clock was set back waits until that time has come a second time.
        self._since = simulation.world.store_time() + timedelta(seconds=simulation.world.lag)
        self._calls, self._looked_at = len(simulation.history.happenings), simulation.world.now
        self._free: dict[str, float] = {}
        """Since when a process could have taken more."""
        self._waiting: dict[JobId, tuple[Job, datetime]] = {}

    def is_all_over(self) -> bool:
        store = self._simulation.store
        has_bells = self._simulation.service is not None and not self._simulation.off
        is_told = not has_bells or all(row.is_done for row in store.outbox)
        return is_told and all(job.status.is_final for job in store.rows.values())

    def look(self) -> None:
        self._check_spinning()
        self._note_free()
        now = self._world.store_time()
        for job in self._simulation.store.rows.values():
            if job.status is Status.PROCESSING and job.lease_expires_at is not None:
                if job.lease_expires_at > now + LEASE and not self._world.lag:
                    self._violated(job, "kept a lease that no worker asked for when the clock was set back")
                held_until = self._simulation.store.held_until
                over_for = now - max(job.lease_expires_at, self._since, self._manned_since(), held_until)
                if over_for > JANITOR + STOP_WITHIN:
                    self._violated(job, f"was not brought back for {over_for} after its lease ended")
            elif job.status.is_waiting:
                self._check_waiting(job, now - max(job.scheduled_for, self._seen_at(job)))

    def _manned_since(self) -> datetime:
        """Return since when there is a worker that could bring jobs back."""
        working = [member.started_at for member in self._simulation.fleet.crew if member.stops_at is None]
        return EPOCH + timedelta(seconds=min(working, default=self._world.now) + NEW) + self._world.jump

    def _seen_at(self, job: Job) -> datetime:
        """Return since when it has waited like this, as far as anybody looked."""
        row, at = self._waiting.get(job.id, (None, self._since))
        if row is not job:
            at = self._world.store_time()
            self._waiting[job.id] = job, at
        return at

    def _check_waiting(self, job: Job, waited: timedelta) -> None:
        bound = POLL + SLACK + (timedelta(0) if self._simulation.service is None else RESEND)
        bound += UNHANDLED_AFTER if job.type == UNKNOWN else timedelta(0)
        idle = [name for name, since in self._free.items() if self._world.now - since > bound.total_seconds()]
        if waited > bound and idle:
            self._violated(job, f"is due for {waited}, while {idle} could take it")

    def _note_free(self) -> None:
        crew = self._simulation.fleet.crew
        able = {member.process.name for member in crew if self._has_room(member)}
        busy_at = self._simulation.watching.busy_at
        self._free = {name: max(self._free.get(name, self._world.now), busy_at.get(name, 0.0)) for name in sorted(able)}

    def _has_room(self, member: SimulatedWorker) -> bool:
        running = self._simulation.watching.count(member.process)
        is_settled_in = self._world.now - member.started_at > NEW and member.stops_at is None
        return is_settled_in and running < self._simulation.plan.concurrency

    def _check_spinning(self) -> None:
        recent = self._history.happenings[self._calls :]
        seconds = self._world.now - self._looked_at  # many, where people had to wait for the store
        self._calls, self._looked_at = len(self._history.happenings), self._world.now
        if sum(1 for each in recent if isinstance(each, DriverCall)) > SPINNING * seconds:
            self._history.violated("the workers spin")

    def tell_what_is_left(self) -> None:
        for job in self._simulation.store.rows.values():
            if not job.status.is_final:
                self._violated(job, f"never ended: it is {job.status}, attempt {job.attempt_count}/{job.max_attempts}")

    def tell_who_is_left(self) -> None:
        for member in self._simulation.fleet.crew:
            self._history.violated(f"{member.process.name} did not go home")

    def _violated(self, job: Job, what: str) -> None:
        self._history.violated(f"job {shown(job.id)} ({job.type}) {what}")
