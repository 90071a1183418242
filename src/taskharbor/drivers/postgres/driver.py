"""The PostgreSQL driver: each method that changes jobs runs one conditional statement."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

from taskharbor.core.claims import Claimant
from taskharbor.core.request import validate_requeue
from taskharbor.core.states import Event
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres import claim, control, dispatch, insert, settle
from taskharbor.drivers.postgres.claim import ScanCursors
from taskharbor.drivers.postgres.control import PostgresControl
from taskharbor.drivers.postgres.inspector import PostgresInspector
from taskharbor.drivers.postgres.maintenance import PostgresMaintenance
from taskharbor.drivers.postgres.notify import (
    ANY_QUEUE,
    ListenerRegistry,
    PostgresListener,
    PostgresNotifier,
    ready_queues,
)
from taskharbor.drivers.postgres.pool import PostgresPool, run_statements
from taskharbor.drivers.postgres.rows import JOB, NOW, claimed
from taskharbor.drivers.postgres.schema import MIGRATIONS, PostgresSchema
from taskharbor.drivers.postgres.server import ReplyLost, ServerAddress
from taskharbor.drivers.postgres.settings import PostgresSettings
from taskharbor.drivers.postgres.transactions import AsyncPostgresTransaction, PostgresTransaction
from taskharbor.drivers.records import RequeueChange

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
NEWEST_VERSION: Final = len(MIGRATIONS)
NO_DELAY: Final = timedelta(0)


class PostgresDriver:
    """A driver that stores jobs in PostgreSQL, for any number of processes on any number of machines.

    It uses the database's clock, unless a test passes a *clock*. The schema must exist;
    ``taskharbor migrate up`` creates it. The driver connects on first use. If the URL has no
    password, *password* is called for each new connection. Pass *is_pooled* if connections go
    through a pooler in transaction mode. *size* bounds the number of connections. Not included
    are one that extends leases, one that all listeners share, and up to four for reads of the API.
    """

    group_commits: Final = True

    def __init__(
        self,
        url: str,
        *,
        schema: str = "public",
        password: Callable[[], str] | None = None,
        is_pooled: bool = False,
        size: int = 10,
        deadline: timedelta = DEADLINE,
        clock: Clock | None = None,
    ) -> None:
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
        self._cursors = ScanCursors()
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

    @property
    def statements(self) -> int:
        """The number of statements that were run so far."""
        return self._connections.statements + self._heartbeat_pool.statements + self._read_pool.statements

    def listen(self, queues: Collection[str]) -> PostgresListener:
        return PostgresListener(self._listeners, queues)

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        answers = self._repeat_if_lost(
            lambda: self._insert(jobs, repeat=repeat), lambda: self._insert(jobs, repeat=True)
        )
        self._notifier.notify(ready_queues(jobs))
        return answers

    def _insert(self, jobs: Sequence[NewJob], *, repeat: bool) -> list[Enqueued | IdempotencyConflict]:
        if not repeat and len(jobs) >= insert.MIN_COPY_JOBS:
            return insert.copy(self._connections, jobs)
        if insert.is_one_statement(jobs):
            return run_statements(insert.insert(jobs, repeat=repeat), self._connections.fetch)
        return self._connections.transact(lambda: insert.insert(jobs, repeat=repeat))

    def remember(self, name: str, value: str) -> str:
        return self._settings.remember(name, value)

    def join(self, connection: Connection[Any], *, notify: bool = True) -> PostgresTransaction:
        """Return an object that stores and settles jobs in the transactions of *connection*.

        The connection is the caller's, and is open on the same database. Jobs are stored when the
        caller commits, and are not if it rolls back. Without *notify* the commit contains no
        NOTIFY, and workers find the jobs at their next poll.
        """
        return PostgresTransaction(connection, self._connections, self._settings, notify=notify)

    def ajoin(self, connection: AsyncConnection[Any], *, notify: bool = True) -> AsyncPostgresTransaction:
        """Do what `join` does, for an async connection: insert and settle are awaited."""
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
            claims = (
                claim.claim_overdue(self._connections, queue, claimant, limit=limit, overdue_after=overdue_after)
                if overdue_only
                else self._claim_due(queue, claimant, limit, overdue_after)
            )
            if len(claims) < limit and reclaim:
                claims += claim.reclaim_expired(self._connections, queue, claimant, limit=limit - len(claims))
            return claims

        return self._repeat_if_lost(reserve_jobs, lambda: self.read_back([token]) or None)

    def _claim_due(self, queue: str, claimant: Claimant, limit: int, overdue_after: timedelta) -> list[Claim]:
        start = self._cursors.start(queue, limit)
        claims = claim.claim_due(
            self._connections, queue, claimant, limit=limit, overdue_after=overdue_after, after=start.position
        )
        self._cursors.note(queue, claims, limit=limit, start=start)
        if start.position is not None and len(claims) < limit:
            left = limit - len(claims)
            claims += claim.claim_due(
                self._connections, queue, claimant, limit=left, overdue_after=overdue_after, after=None
            )
            # Keep one claim per job: a process that was suspended between the two statements may have lost a lease of
            # the first, and claimed the job again.
            claims = sorted({claim.job.id: claim for claim in claims}.values(), key=claim.position_of)
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
        if any(each.outcome.event is Event.RELEASE for each in settlements):
            self._notifier.notify([ANY_QUEUE])
        return answers

    def save_progress(self, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
        return self._repeat_if_lost(lambda: settle.save_progress(self._heartbeat_pool, notes))

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
        return control.cancel(self._connections, job_ids)

    def requeue(
        self,
        job_ids: Sequence[JobId],
        *,
        token: Token,
        budget: int,
        by: str,
        reason: str,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        queue: str | None = None,
        payload: bytes | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        validate_requeue(job_ids, budget=budget, payload=payload)
        new = RequeueChange(token=token, budget=budget, by=by, reason=reason, queue=queue, payload=payload)
        answers = self._repeat_if_lost(
            lambda: control.requeue(
                self._connections, job_ids, new, scheduled_for=scheduled_for, delay=delay or NO_DELAY
            )
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
