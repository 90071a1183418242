"""The SQLite driver. Each method is one IMMEDIATE transaction that decides nothing in Python."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from taskharbor.core.claims import Claimant
from taskharbor.core.durations import Duration, as_timedelta
from taskharbor.core.model import claim_from_job
from taskharbor.core.request import validate_change, validate_requeue
from taskharbor.core.states import Event
from taskharbor.drivers import migrate
from taskharbor.drivers.records import RequeueChange, settle_separately
from taskharbor.drivers.sqlite import claim, control, dispatch, insert, settle
from taskharbor.drivers.sqlite.attempt_logs import SqliteAttemptLogs
from taskharbor.drivers.sqlite.audit import SqliteAuditor
from taskharbor.drivers.sqlite.control import SqliteControl
from taskharbor.drivers.sqlite.inspector import SqliteInspector
from taskharbor.drivers.sqlite.maintenance import SqliteMaintenance
from taskharbor.drivers.sqlite.notify import SqliteListener, SqliteNotifier
from taskharbor.drivers.sqlite.operations import SqliteOperations
from taskharbor.drivers.sqlite.pool import SqlitePool
from taskharbor.drivers.sqlite.rows import JOB, job, maybe_micros, micros, span
from taskharbor.drivers.sqlite.schema import MIGRATIONS, SqliteSchema
from taskharbor.drivers.sqlite.settings import SqliteSettings
from taskharbor.drivers.sqlite.transactions import SqliteTransaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from taskharbor.core.clocks import Clock
    from taskharbor.core.errors import IdempotencyConflict, IllegalTransition, JobNotFound, LeaseLost
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Claim, Lease, NewJob, Progress
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

DEADLINE: Final = timedelta(seconds=5)
_RELEASE: Final = Event.RELEASE


class SqliteDriver:
    """Stores jobs in one file, for any number of processes and threads of one machine.

    The store's clock is the machine's clock. *synchronous* is SQLite's setting: FULL commits survive a power
    failure; NORMAL commits survive a crash of the process only, and are several times faster. Opening the file
    migrates its schema.
    """

    group_commits: Final = True

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        deadline: Duration = DEADLINE,
    ) -> None:
        deadline = as_timedelta(deadline, "deadline")
        migrate.migrate_up(SqliteSchema(Path(path)), MIGRATIONS)
        file = Path(path).absolute()  # a handler, or what starts a daemon, may change the working directory
        self._connections = SqlitePool(file, clock=clock, deadline=deadline, synchronous=synchronous)
        self._scans = claim.SqliteQueueScans()
        self._notifier = SqliteNotifier(file)
        self.maintenance = SqliteMaintenance(self._connections, self._notifier)
        self._settings = SqliteSettings(self._connections)
        self.inspector = SqliteInspector(self._connections, self._settings)
        self.control = SqliteControl(self._connections, self._settings)
        self.attempt_logs = SqliteAttemptLogs(self._connections)
        self.operations = SqliteOperations(self._connections, self.maintenance, self._notifier)
        self.auditor = SqliteAuditor(self._connections)

    @property
    def statements(self) -> int:
        """Return the number of transactions run so far."""
        return self._connections.statements

    def listen(self, queues: Collection[str], *, worker: str | None = None) -> SqliteListener:
        return SqliteListener(self._connections.path, queues, worker=worker)

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        with self._connections as (db, now):
            answers = insert.insert(db, jobs, now=now, repeat=repeat)
        self._notifier.notify(jobs, now)
        return answers

    def remember(self, name: str, value: str) -> str:
        return self._settings.remember(name, value)

    def join(self, connection: sqlite3.Connection, *, notify: bool = True) -> SqliteTransaction:  # noqa: ARG002  listeners see a commit
        """Return an object that inserts and settles jobs in the transaction of *connection*.

        *connection* belongs to the caller and must be open on the driver's file. The caller's commit stores the
        changes; its rollback discards them.
        """
        return SqliteTransaction(connection, self._connections, self._settings)

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
        with self._connections as (db, now):
            claims = self._scans.claim(
                db, queue, claimant, now=now, limit=limit, overdue_after=overdue_after, overdue_only=overdue_only
            )
            if len(claims) < limit and reclaim:
                claims += claim.reclaim_expired(db, queue, claimant, now=now, limit=limit - len(claims))
            return claims

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
        with self._connections as (db, now):
            return claim.claim(db, queue, job_ids, claimant, now)

    def extend(
        self,
        leases: Sequence[Lease],
        *,
        lease: timedelta,
    ) -> list[Extended | Skipped | JobNotFound | LeaseLost]:
        with self._connections.urgently() as (db, now):
            return [settle.extend(db, held, lease, now) for held in leases]

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        answers = settle_separately(settlements, self._settle, settle.rejection)
        if _RELEASE in [each.outcome.event for each in settlements]:
            self._notifier.notify_any()
        return answers

    def _settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        with self._connections as (db, now):
            return settle.settle_all(db, settlements, now)

    def save_progress(self, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
        with self._connections as (db, now):
            return [settle.save_progress(db, held, progress, now) for held, progress in notes]

    def cancel_requested(self, leases: Sequence[Lease]) -> list[bool]:
        with self._connections.read() as db:
            now = self._connections.now()
            return [settle.cancel_requested(db, held, now) for held in leases]

    _READ_BACK: Final = f"""
        SELECT {JOB}
          FROM th_jobs
         WHERE status = 'PROCESSING'
           AND lease_expires_at > :now
           AND lease_token = :token
    """

    def read_back(self, tokens: Sequence[Token]) -> list[Claim]:
        with self._connections.read() as db:
            now = self._connections.now()
            params = [{"now": now, "token": token.bytes} for token in dict.fromkeys(tokens)]
            held = [job(row) for each in params for row in db.execute(self._READ_BACK, each)]
            return [claim_from_job(each) for each in held]

    def dispatch(self, queue: str, *, limit: int, lock: timedelta, unclaimed: int) -> list[Dispatch]:
        with self._connections as (db, now):
            return dispatch.dispatch(db, queue, now=now, limit=limit, lock=lock, unclaimed=unclaimed)

    def record_dispatch(self, results: Sequence[Sent | Unsent | Declined]) -> list[bool]:
        with self._connections as (db, now):
            return [dispatch.record_dispatch(db, result, now) for result in results]

    def cancel(self, job_ids: Sequence[JobId]) -> list[Transitioned | IllegalTransition | JobNotFound]:
        with self._connections as (db, now):
            canceled = [control.cancel(db, job_id, now) for job_id in job_ids]
        self._notifier.notify_cancels({worker for _, worker in canceled if worker is not None})
        return [answer for answer, _ in canceled]

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
        with self._connections as (db, now):
            due = micros(scheduled_for) if scheduled_for else now + span(delay or timedelta(0))
            new = RequeueChange(token=token, budget=budget, by=by, reason=reason, queue=queue, payload=payload)
            answers = [control.requeue(db, job_id, new, due=due, now=now) for job_id in job_ids]
        if due <= now:
            self._notifier.notify_any()
        return answers

    def reschedule(
        self,
        job_ids: Sequence[JobId],
        *,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        priority: int | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        validate_change(scheduled_for=scheduled_for, delay=delay, priority=priority)
        with self._connections as (db, now):
            delayed = None if delay is None else now + span(delay)
            due = delayed if scheduled_for is None else maybe_micros(scheduled_for)
            answers = [control.reschedule(db, job_id, due=due, priority=priority) for job_id in job_ids]
        if due is not None and due <= now:
            self._notifier.notify_any()
        return answers

    def close(self) -> None:
        self._connections.close()
