"""The PostgreSQL driver: each method that changes jobs runs one conditional statement."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

from psycopg.errors import UniqueViolation

from taskharbor.core.claims import Claimant
from taskharbor.core.durations import Duration, as_timedelta
from taskharbor.core.job_batch import JobBatch, distinct
from taskharbor.core.request import validate_change, validate_requeue
from taskharbor.core.states import Event
from taskharbor.drivers import migrate
from taskharbor.drivers.notices import ANY_QUEUE, cancel_topic
from taskharbor.drivers.postgres import claim, control, dispatch, insert, settle
from taskharbor.drivers.postgres.asyncpg_transactions import AsyncpgTransaction
from taskharbor.drivers.postgres.attempt_logs import PostgresAttemptLogs
from taskharbor.drivers.postgres.audit import PostgresAuditor
from taskharbor.drivers.postgres.control import PostgresControl
from taskharbor.drivers.postgres.inspector import PostgresInspector
from taskharbor.drivers.postgres.listen import ListenerRegistry, PostgresListener
from taskharbor.drivers.postgres.maintenance import PostgresMaintenance
from taskharbor.drivers.postgres.notify import PostgresNotifier, channel_name, ready_queues
from taskharbor.drivers.postgres.operations import PostgresOperations
from taskharbor.drivers.postgres.pool import PostgresPool, run_statements
from taskharbor.drivers.postgres.rows import JOB, NOW, claimed
from taskharbor.drivers.postgres.scans import PostgresQueueScans
from taskharbor.drivers.postgres.schema import MIGRATIONS, OPERATORS_VERSION, PostgresSchema
from taskharbor.drivers.postgres.server import ReplyLost, ServerAddress
from taskharbor.drivers.postgres.settings import PostgresSettings
from taskharbor.drivers.postgres.transactions import AsyncPostgresTransaction, Notification, PostgresTransaction
from taskharbor.drivers.records import RequeueChange
from taskharbor.drivers.unwrap import is_asyncpg

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from psycopg import AsyncConnection, Connection

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

T = TypeVar("T")

DEADLINE: Final = timedelta(seconds=5)
READ_DEADLINE: Final = timedelta(seconds=2)
"""The deadline of reads by `PostgresDriver.bounded_inspector`."""
MAX_READ_CONNECTIONS: Final = 4
"""The number of such reads that run at the same time."""
POOL_SIZE: Final = 10
NEWEST_VERSION: Final = len(MIGRATIONS)
_RELEASED: Final = Event.RELEASE  # the lookup of an enum member takes as long as the rest of a loop


class PostgresDriver:
    """A driver that stores jobs in PostgreSQL, for any number of processes on any number of machines.

    It uses the database's clock, unless a test passes a *clock*. The schema must exist;
    ``taskharbor migrate up`` creates it. The driver connects on first use. If the URL has no
    password, *password* is called for each new connection. Pass *is_pooled* if connections go
    through a pooler in transaction mode. With *claims_asynchronously*, `reserve` does not wait
    until its leases are on disk; a crash of the server may undo them. *size* bounds the number of
    connections. Not included are one that extends leases, one that all listeners share, and up to
    four for reads of the API.
    """

    group_commits: Final = True

    def __init__(
        self,
        url: str,
        *,
        schema: str = "public",
        password: Callable[[], str] | None = None,
        is_pooled: bool = False,
        claims_asynchronously: bool = False,
        size: int = POOL_SIZE,
        deadline: Duration = DEADLINE,
        clock: Clock | None = None,
    ) -> None:
        deadline = as_timedelta(deadline, "deadline")
        address = ServerAddress(
            url=url, schema=schema, deadline=deadline, password=password, is_pooled=is_pooled, is_timed=True
        )
        self._connections = PostgresPool(
            address,
            clock=clock,
            size=size,
            check=lambda: migrate.check_compatible(PostgresSchema(address), MIGRATIONS),
            on_read_only=self._find_primary,
        )
        # A separate connection, so that no other statement delays the extension of leases. Its schema is not checked:
        # a worker that holds a lease has checked it.
        self._heartbeat_pool = PostgresPool(
            address, clock=clock, size=1, check=lambda: NEWEST_VERSION, on_read_only=self._find_primary
        )
        self.server_address: Final = address.host_and_port
        self._claims_asynchronously = claims_asynchronously
        self._scans = PostgresQueueScans(self._connections, asynchronous=claims_asynchronously)
        self._listeners = ListenerRegistry(address)
        self._notifier = PostgresNotifier(self._connections, self._listeners)
        self.maintenance = PostgresMaintenance(self._connections, self._notifier)
        self._settings = PostgresSettings(self._connections)
        self.inspector = PostgresInspector(self._connections, self._settings)
        # Separate connections for reads by the API: slow or numerous reads must not delay the driver's statements.
        self._read_pool = PostgresPool(
            replace(address, deadline=min(deadline, READ_DEADLINE)),
            clock=clock,
            size=MAX_READ_CONNECTIONS,
            check=lambda: self._connections.schema_version,
            on_read_only=self._find_primary,
        )
        self.bounded_inspector = PostgresInspector(self._read_pool, self._settings)
        self.control = PostgresControl(self._connections, self._settings)
        self.attempt_logs = PostgresAttemptLogs(self._connections, self._read_pool)
        self.operations = PostgresOperations(self._connections, self._notifier)
        self.auditor = PostgresAuditor(self._connections)

    def migrate(self) -> list[str]:
        """Apply the pending migrations, as ``taskharbor migrate up`` does, and return the names of those applied."""
        applied = migrate.migrate_up(PostgresSchema(self._connections.address), MIGRATIONS)
        self._connections.check_schema_again()
        return [migration.name for migration in applied]

    @property
    def statements(self) -> int:
        """The number of statements that were run so far."""
        return self._connections.statements + self._heartbeat_pool.statements + self._read_pool.statements

    def listen(self, queues: Collection[str], *, worker: str | None = None) -> PostgresListener:
        return PostgresListener(self._listeners, queues, worker)

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        return self._repeat_if_lost(
            lambda: self._insert_and_notify(jobs, repeat=repeat), lambda: self._insert_and_notify(jobs, repeat=True)
        )

    def _insert_and_notify(self, jobs: Sequence[NewJob], *, repeat: bool) -> list[Enqueued | IdempotencyConflict]:
        queues = ready_queues(distinct(jobs))
        is_single = len(jobs) == 1 and bool(queues) and jobs[0].idempotency_key is None and not repeat
        if is_single and self._has_tallies and self._notifier.may_join():
            steps = insert.insert_and_notify(jobs[0], channel_name(self._connections.address.schema))
            answers = self._notifier.join(lambda: run_statements(steps, self._connections.fetch))
            if answers is not None:
                return answers
        answers = self._insert_again(jobs) if repeat else self._insert(jobs, repeat=False)
        self._notifier.notify(queues)
        return answers

    @property
    def _has_tallies(self) -> bool:
        return self._connections.schema_version >= OPERATORS_VERSION

    def _insert(self, jobs: Sequence[NewJob], *, repeat: bool) -> list[Enqueued | IdempotencyConflict]:
        if not repeat and isinstance(jobs, JobBatch) and insert.is_one_statement(jobs) and self._has_tallies:
            return run_statements(insert.insert_batch(jobs), self._connections.fetch)
        if not repeat and len(jobs) >= insert.MIN_COPY_JOBS:
            return insert.copy(self._connections, jobs)
        if insert.is_one_statement(jobs):
            return run_statements(insert.insert(jobs, repeat=repeat, counts=self._has_tallies), self._connections.fetch)
        return self._connections.transact(lambda: insert.insert(jobs, repeat=repeat))

    def _insert_again(self, jobs: Sequence[NewJob]) -> list[Enqueued | IdempotencyConflict]:
        """Insert those of *jobs* that are not stored. If one whose reply was lost is committed now, look again."""
        try:
            return self._insert(jobs, repeat=True)
        except UniqueViolation:
            return self._insert(jobs, repeat=True)

    def remember(self, name: str, value: str) -> str:
        return self._settings.remember(name, value)

    def join(self, connection: Connection[Any], *, notify: bool = True) -> PostgresTransaction:
        """Return an object that stores and settles jobs in the transactions of *connection*.

        The connection is the caller's, and is open on the same database. Jobs are stored when the
        caller commits, and are not if it rolls back. Without *notify* the commit contains no
        NOTIFY, and workers find the jobs at their next poll.
        """
        return PostgresTransaction(connection, self._connections, self._settings, notify=notify)

    def ajoin(
        self, connection: AsyncConnection[Any], *, notify: bool = True
    ) -> AsyncPostgresTransaction | AsyncpgTransaction:
        """Do what `join` does, for an async connection of psycopg or asyncpg: insert and settle are awaited."""
        if is_asyncpg(connection):
            notification = Notification(self._connections, is_on=notify)
            return AsyncpgTransaction(connection, self._connections, self._settings, notification)
        return AsyncPostgresTransaction(connection, self._connections, self._settings, notify=notify)

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

        def reserve_jobs() -> list[Claim]:
            claims = self._scans.claim(
                queue, claimant, limit=limit, overdue_after=overdue_after, overdue_only=overdue_only
            )
            if len(claims) < limit and reclaim:
                claims += claim.reclaim_expired(
                    self._connections,
                    queue,
                    claimant,
                    limit=limit - len(claims),
                    asynchronous=self._claims_asynchronously,
                )
            return claims

        return self._repeat_if_lost(reserve_jobs, lambda: self.read_back([token]) or None)

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

        def read_claims() -> list[Claim | Refused] | None:
            held = {claim.job.id: claim for claim in self.read_back([token])}
            return [held[each] for each in job_ids] if len(held) == len(job_ids) else None

        return self._repeat_if_lost(lambda: claim.claim(self._connections, queue, job_ids, claimant), read_claims)

    def extend(
        self,
        leases: Sequence[Lease],
        *,
        lease: timedelta,
    ) -> list[Extended | Skipped | JobNotFound | LeaseLost]:
        return self._repeat_if_lost(lambda: settle.extend(self._heartbeat_pool, leases, lease))

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        answers = self._repeat_if_lost(lambda: settle.settle(self._connections, settlements))
        if any(each.outcome.event is _RELEASED for each in settlements):
            self._notifier.notify([ANY_QUEUE])
        return answers

    def save_progress(self, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
        return self._repeat_if_lost(lambda: settle.save_progress(self._heartbeat_pool, notes))

    def cancel_requested(self, leases: Sequence[Lease]) -> list[bool]:
        return settle.cancel_requested(self._heartbeat_pool, leases)

    _READ_BACK: LiteralString = f"""
        SELECT {JOB}
          FROM th_jobs_processing AS job
         WHERE job.lease_token = ANY (%(tokens)s)
           AND job.lease_expires_at > {NOW}
    """

    def read_back(self, tokens: Sequence[Token]) -> list[Claim]:
        return [claimed(row) for row in self._connections.fetch(self._READ_BACK, tokens=list(tokens))]

    def dispatch(self, queue: str, *, limit: int, lock: timedelta, unclaimed: int) -> list[Dispatch]:
        return dispatch.dispatch(self._connections, queue, limit=limit, lock=lock, unclaimed=unclaimed)

    def record_dispatch(self, results: Sequence[Sent | Unsent | Declined]) -> list[bool]:
        return dispatch.record_dispatch(self._connections, results)

    def cancel(self, job_ids: Sequence[JobId]) -> list[Transitioned | IllegalTransition | JobNotFound]:
        answers, workers = control.cancel(self._connections, job_ids)
        self._notifier.notify({cancel_topic(worker) for worker in workers})
        return answers

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
        new = RequeueChange(token=token, budget=budget, by=by, reason=reason, queue=queue, payload=payload)
        answers = self._repeat_if_lost(
            lambda: control.requeue(self._connections, job_ids, new, scheduled_for=scheduled_for, delay=delay)
        )
        if scheduled_for is None and not delay:
            self._notifier.notify([ANY_QUEUE])
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
        changes: dict[str, Any] = {"scheduled_for": scheduled_for, "delay": delay, "priority": priority}
        answers = self._repeat_if_lost(lambda: control.reschedule(self._connections, job_ids, **changes))
        self._notifier.notify([ANY_QUEUE])
        return answers

    def close(self) -> None:
        self._notifier.close()
        self._connections.close()
        self._heartbeat_pool.close()
        self._read_pool.close()

    def _find_primary(self) -> None:
        """Disconnect from a server that has become read-only; each connection is replaced at its next use."""
        self._connections.renew()
        self._heartbeat_pool.renew()
        self._read_pool.renew()
        self._listeners.renew()

    def _repeat_if_lost(self, call: Callable[[], T], again: Callable[[], T | None] | None = None) -> T:
        """Return what *call* returns; if its reply is lost, end its statement and return what *again* returns.

        If *again* returns None, raise `ReplyLost`: a token is for one call, and only the caller can make a new one.
        """
        try:
            return call()
        except ReplyLost as lost:
            self._connections.resolve(lost)
            answer = (again or call)()
            if answer is None:
                raise
            return answer
