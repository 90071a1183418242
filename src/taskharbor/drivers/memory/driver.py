"""The memory driver. Each method takes the lock once, reads the clock once, and processes its items one by one."""

from __future__ import annotations

from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.claims import Claimant
from taskharbor.core.model import Claim, Lease
from taskharbor.core.request import validate_change, validate_requeue
from taskharbor.drivers.memory import attempts
from taskharbor.drivers.memory import jobs as job_rows
from taskharbor.drivers.memory.attempt_logs import MemoryAttemptLogs
from taskharbor.drivers.memory.attempts import is_expired
from taskharbor.drivers.memory.control import MemoryControl
from taskharbor.drivers.memory.inspector import MemoryInspector
from taskharbor.drivers.memory.maintenance import MemoryMaintenance
from taskharbor.drivers.memory.operations import MemoryOperations
from taskharbor.drivers.memory.tables import Tables
from taskharbor.drivers.records import RequeueChange
from taskharbor.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from taskharbor.core.clocks import Clock
    from taskharbor.core.errors import IdempotencyConflict, IllegalTransition, JobNotFound, LeaseLost
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import NewJob, Progress
    from taskharbor.core.results import (
        Declined,
        Dispatch,
        Enqueued,
        Extended,
        Refused,
        Sent,
        Settlement,
        Skipped,
        Transitioned,
        Unsent,
    )
    from taskharbor.drivers.base import SettleAnswer
    from taskharbor.drivers.memory.tables import MemoryListener


class MemoryDriver:
    """Keeps jobs in this process, for tests and experiments. It is also the executable specification.

    >>> driver = MemoryDriver()
    >>> driver.inspector.queues()
    []
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._keep_in(Tables(clock or SystemClock()))

    def _keep_in(self, tables: Tables) -> None:
        self._tables = tables
        self.maintenance = MemoryMaintenance(tables)
        self.inspector = MemoryInspector(tables)
        self.control = MemoryControl(tables)
        self.attempt_logs = MemoryAttemptLogs(tables)
        self.operations = MemoryOperations(tables)

    @property
    def statements(self) -> int:
        """Return the number of statements run so far."""
        return self._tables.statements

    def transaction(self) -> AbstractContextManager[None]:
        """Combine the calls of this thread into one transaction. An error rolls all of them back."""
        return self._tables.transaction()

    def listen(self, queues: Collection[str], *, worker: str | None = None) -> MemoryListener:
        return self._tables.notifier.listen(queues, worker)

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        with self._tables.statement() as now:
            return [job_rows.insert(self._tables, job, now, repeat=repeat) for job in jobs]

    def remember(self, name: str, value: str) -> str:
        return self._tables.settings.setdefault(name, value)

    def reserve(
        self,
        queue: str,
        *,
        token: Token,
        worker: str,
        lease: timedelta,
        limit: int,
        overdue_after: timedelta,
        overdue_only: bool = False,
        types: Collection[str] | None = None,
        unhandled_after: timedelta | None = None,
        reclaim: bool = True,
    ) -> list[Claim]:
        claimant = Claimant(token, worker, lease, types, reclaim, unhandled_after)
        with self._tables.statement() as now:
            min_wait = overdue_after if overdue_only else timedelta(0)
            claims = attempts.claim_due(
                self._tables, queue, claimant, now=now, limit=limit, overdue_after=overdue_after, min_wait=min_wait
            )
            return claims + attempts.reclaim_expired(self._tables, queue, claimant, now=now, limit=limit - len(claims))

    def claim(
        self,
        job_ids: Sequence[JobId],
        *,
        queue: str,
        token: Token,
        worker: str,
        lease: timedelta,
        types: Collection[str] | None = None,
        unhandled_after: timedelta | None = None,
        reclaim: bool = True,
    ) -> list[Claim | Refused]:
        claimant = Claimant(token, worker, lease, types, reclaim, unhandled_after)
        with self._tables.statement() as now:
            return [attempts.claim(self._tables, queue, job_id, claimant, now) for job_id in job_ids]

    def extend(
        self,
        leases: Sequence[Lease],
        *,
        lease: timedelta,
    ) -> list[Extended | Skipped | JobNotFound | LeaseLost]:
        with self._tables.statement() as now:
            return [attempts.extend(self._tables, held, lease, now) for held in leases]

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        with self._tables.statement() as now:
            return [attempts.settle(self._tables, each.lease, each.outcome, now) for each in settlements]

    def save_progress(self, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
        with self._tables.statement() as now:
            return [attempts.save_progress(self._tables, held, progress, now) for held, progress in notes]

    def cancel_requested(self, leases: Sequence[Lease]) -> list[bool]:
        with self._tables.statement() as now:
            return [attempts.cancel_requested(self._tables, held, now) for held in leases]

    def read_back(self, tokens: Sequence[Token]) -> list[Claim]:
        with self._tables.statement() as now:
            inflight = [self._tables.rows.jobs[job_id] for job_id in sorted(self._tables.rows.inflight)]
            return [
                Claim(copy(job), Lease(job.id, job.lease_token, job.lease_expires_at))
                for job in inflight
                if job.lease_token is not None and job.lease_token in tokens
                if job.lease_expires_at is not None and not is_expired(job, now)
            ]

    def dispatch(self, queue: str, *, limit: int, lock: timedelta, unclaimed: int) -> list[Dispatch]:
        with self._tables.statement() as now:
            return job_rows.dispatch(self._tables, queue, now=now, limit=limit, lock=lock, unclaimed=unclaimed)

    def record_dispatch(self, results: Sequence[Sent | Unsent | Declined]) -> list[bool]:
        with self._tables.statement() as now:
            return [job_rows.record_dispatch(self._tables, result, now) for result in results]

    def cancel(self, job_ids: Sequence[JobId]) -> list[Transitioned | IllegalTransition | JobNotFound]:
        with self._tables.statement() as now:
            return [job_rows.cancel(self._tables, job_id, now) for job_id in job_ids]

    def requeue(
        self,
        job_ids: Sequence[JobId],
        *,
        token: Token,
        by: str,
        reason: str,
        budget: int | None = None,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        queue: str | None = None,
        payload: bytes | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        validate_requeue(job_ids, budget=budget, scheduled_for=scheduled_for, delay=delay, payload=payload)
        with self._tables.statement() as now:
            due = scheduled_for or now + (delay or timedelta(0))
            new = RequeueChange(token=token, budget=budget, by=by, reason=reason, queue=queue, payload=payload)
            return [job_rows.requeue(self._tables, job_id, new, due=due, now=now) for job_id in job_ids]

    def reschedule(
        self,
        job_ids: Sequence[JobId],
        *,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        priority: int | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        validate_change(scheduled_for=scheduled_for, delay=delay, priority=priority)
        with self._tables.statement() as now:
            due = scheduled_for or (None if delay is None else now + delay)
            return [job_rows.reschedule(self._tables, job_id, now, due=due, priority=priority) for job_id in job_ids]

    def close(self) -> None:
        """Do nothing: the jobs are dropped with the driver."""
