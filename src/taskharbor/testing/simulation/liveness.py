"""Checks that all jobs make progress after the faults have ended."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.states import Status
from taskharbor.testing.simulation.history import DriverCall
from taskharbor.testing.simulation.plan import LEASE, POLL, RESEND, UNHANDLED_AFTER
from taskharbor.testing.simulation.workloads import UNKNOWN
from taskharbor.testing.simulation.world import EPOCH, short_name

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.testing.simulation.fleet import SimulatedWorker
    from taskharbor.testing.simulation.run import Simulation

RECLAIM_WITHIN: Final = timedelta(seconds=5)
STOP_WITHIN: Final = timedelta(seconds=1)
BEGIN_WITHIN: Final = timedelta(seconds=1)
"""Time in which a claimed job begins or is released."""
SLACK: Final = timedelta(seconds=1.5)
STARTUP_SECONDS: Final = 4.0
"""Time in which a worker starts. It compares clocks before it reclaims jobs."""
MAX_CALLS_PER_SECOND: Final = 800
"""More store calls than this mean that a loop runs without a pause."""


class Liveness:
    """Periodic checks of all jobs and workers, after the faults have ended."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._history = simulation.history
        # A job that was delayed before the clock was set back waits until the clock reaches that time again.
        self._since = simulation.world.store_time() + timedelta(seconds=simulation.world.unreported_set_back)
        self._calls, self._checked_at = len(simulation.history.happenings), simulation.world.now
        self._free: dict[str, float] = {}
        """Since when a process has had a free slot."""
        self._waiting: dict[JobId, tuple[Job, datetime]] = {}

    def is_finished(self) -> bool:
        store = self._simulation.store
        has_messages = self._simulation.service is not None and not self._simulation.disabled_calls
        is_published = not has_messages or all(row.is_done for row in store.outbox)
        return is_published and all(job.status.is_final for job in store.rows.values())

    def check(self) -> None:
        self._check_spinning()
        self._note_free()
        now = self._world.store_time()
        for job in self._simulation.store.rows.values():
            if job.status is Status.PROCESSING and job.lease_expires_at is not None:
                if job.lease_expires_at > now + LEASE and not self._world.unreported_set_back:
                    self._add_violation(
                        job, "has a lease longer than any worker requested after the clock was set back"
                    )
                held_until = self._simulation.store.held_until
                expired_for = now - max(job.lease_expires_at, self._since, self._worker_since(), held_until)
                if expired_for > RECLAIM_WITHIN + STOP_WITHIN:
                    self._add_violation(job, f"was not reclaimed for {expired_for} after its lease expired")
                if job.lease_expires_at > now:
                    self._check_begun(job, now)
            elif job.status.is_waiting:
                self._check_waiting(job, now - max(job.scheduled_for, self._waiting_since(job)))

    def _check_begun(self, job: Job, now: datetime) -> None:
        """Check that a claimed job begins or is released soon: another worker may be idle."""
        if (
            job.processing_started_at is None
            or job.lease_token is None
            or job.lease_token in self._simulation.store.unseen_claims
        ):
            return
        waited = now - max(job.processing_started_at, self._since)
        since = self._world.now - waited.total_seconds()
        for member in self._simulation.fleet.workers:
            if member.process.name == job.worker_id and member.stops_at is None:
                is_begun = (job.id, job.lease_token) in self._simulation.monitor.begun
                if waited > BEGIN_WITHIN and not is_begun and not member.process.is_disturbed(since):
                    self._add_violation(job, f"was claimed {waited} ago, and neither began nor was released")

    def _worker_since(self) -> datetime:
        """Return since when a worker that can reclaim jobs is running."""
        working = [member.started_at for member in self._simulation.fleet.workers if member.stops_at is None]
        return EPOCH + timedelta(seconds=min(working, default=self._world.now) + STARTUP_SECONDS) + self._world.jump

    def _waiting_since(self, job: Job) -> datetime:
        """Return when *job* was first seen waiting with its current row."""
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
            self._add_violation(job, f"has been due for {waited}, and {idle} could claim it")

    def _note_free(self) -> None:
        workers = self._simulation.fleet.workers
        free = {member.process.name for member in workers if self._has_free_slot(member)}
        busy_at = self._simulation.monitor.busy_at
        self._free = {name: max(self._free.get(name, self._world.now), busy_at.get(name, 0.0)) for name in sorted(free)}

    def _has_free_slot(self, member: SimulatedWorker) -> bool:
        running = self._simulation.monitor.count(member.process)
        is_started = self._world.now - member.started_at > STARTUP_SECONDS and member.stops_at is None
        return is_started and running < self._simulation.plan.concurrency

    def _check_spinning(self) -> None:
        recent = self._history.happenings[self._calls :]
        seconds = self._world.now - self._checked_at  # more than the check interval if a client waited for the store
        self._calls, self._checked_at = len(self._history.happenings), self._world.now
        if sum(1 for each in recent if isinstance(each, DriverCall)) > MAX_CALLS_PER_SECOND * seconds:
            self._history.add_violation("the workers call the store without pausing")

    def report_unfinished_jobs(self) -> None:
        for job in self._simulation.store.rows.values():
            if not job.status.is_final:
                self._add_violation(
                    job, f"did not finish: it is {job.status}, attempt {job.attempt_count}/{job.max_attempts}"
                )

    def report_running_workers(self) -> None:
        for member in self._simulation.fleet.workers:
            self._history.add_violation(f"{member.process.name} did not stop")

    def _add_violation(self, job: Job, what: str) -> None:
        self._history.add_violation(f"job {short_name(job.id)} ({job.type}) {what}")
