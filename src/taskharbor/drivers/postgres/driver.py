"""The verbs that move jobs: each is one conditional statement."""

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
"""How long a read of `PostgresDriver.bounded_inspector` may take."""
READ_CONNECTIONS: Final = 4
"""How many such reads run at a time."""
NEWEST: Final = len(MIGRATIONS)
NO_DELAY: Final = timedelta(0)


class PostgresDriver:
    """Keeps jobs in PostgreSQL, for any number of processes on any number of machines.

    The database's clock decides, unless a test brings a *clock*. The schema must be there:
    ``taskharbor migrate up`` makes it. Nothing is connected before it is needed. *password*
    is asked for each new connection, where the URL has none. *is_pooled* says that a pooler
    in transaction mode is in between. *size* bounds the connections, but for one that only
    extends leases, one by which all listeners hear, and up to four for reads of the API.
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
        # Of the heartbeat's own: nobody else's work may keep a lease from it. Who has a lease has seen the schema.
        self._heartbeat_connection = PostgresPool(
            address, clock=clock, size=1, check=lambda: NEWEST, on_read_only=self._find_primary
        )
        self._lines = ScanCursors()
        self._audience = ListenerRegistry(address)
        self._bell = PostgresNotifier(self._connections, self._audience)
        self.maintenance = PostgresMaintenance(self._connections, self._bell)
        self._settings = PostgresSettings(self._connections)
        self.inspector = PostgresInspector(self._connections, self._settings)
        # For requests from outside, such as the API's: however slow or many, they take nothing from the driver's own.
        self._reading = PostgresPool(
            replace(address, deadline=min(deadline, READ_DEADLINE)),
            clock=clock,
            size=READ_CONNECTIONS,
            check=lambda: self._connections.schema_version,
            on_read_only=self._find_primary,
        )
        self.bounded_inspector = PostgresInspector(self._reading, self._settings)
        self.control = PostgresControl(self._connections, self._settings)

    @property
    def statements(self) -> int:
        """How many statements were run so far."""
        return self._connections.statements + self._heartbeat_connection.statements + self._reading.statements

    def listen(self, queues: Collection[str]) -> PostgresListener:
        return PostgresListener(self._audience, queues)

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        answers = self._safely(lambda: self._insert(jobs, repeat=repeat), lambda: self._insert(jobs, repeat=True))
        self._bell.notify(ready_queues(jobs))
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
        """Return what stores and settles jobs in transactions of *connection*, yours and open on the same database.

        That is done when you commit, and never was if you roll back. Without *notify* your
        commit is spared the NOTIFY, and workers find the jobs when they look next.
        """
        return PostgresTransaction(connection, self._connections, self._settings, notify=notify)

    def ajoin(self, connection: AsyncConnection[Any], *, notify: bool = True) -> AsyncPostgresTransaction:
        """Return what `joined` returns, for a connection that is awaited: so are its insert and settle."""
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
        taker = Claimant(token, worker, lease, types, reclaim, unhandled_after)

        def take() -> list[Claim]:
            claims = (
                claim.claim_overdue(self._connections, queue, taker, limit=limit, patience=overdue_after)
                if overdue_only
                else self._take_due(queue, taker, limit, overdue_after)
            )
            if len(claims) < limit and reclaim:
                claims += claim.reclaim_expired(self._connections, queue, taker, limit=limit - len(claims))
            return claims

        return self._safely(take, lambda: self.read_back([token]) or None)

    def _take_due(self, queue: str, taker: Claimant, limit: int, patience: timedelta) -> list[Claim]:
        start = self._lines.start(queue, limit)
        claims = claim.claim_due(self._connections, queue, taker, limit=limit, patience=patience, after=start.place)
        self._lines.note(queue, claims, limit=limit, start=start)
        if start.place is not None and len(claims) < limit:
            left = limit - len(claims)
            claims += claim.claim_due(self._connections, queue, taker, limit=left, patience=patience, after=None)
            # One job once: a process that stood still in between may have lost what it took, and taken it again.
            claims = sorted({claim.job.id: claim for claim in claims}.values(), key=claim.place)
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
        taker = Claimant(token, worker, lease, types, reclaim, unhandled_after)

        def taken() -> list[Claim | Refused] | None:
            held = {claim.job.id: claim for claim in self.read_back([token])}
            return [held[each] for each in job_ids] if len(held) == len(job_ids) else None

        return self._safely(lambda: claim.claim(self._connections, queue, job_ids, taker), taken)

    def extend(
        self,
        leases: Sequence[Lease],
        *,
        lease: timedelta,
    ) -> list[Extended | Skipped | JobNotFound | LeaseLost]:
        return self._safely(lambda: settle.extend(self._heartbeat_connection, leases, lease))

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        answers = self._safely(lambda: settle.settle(self._connections, settlements))
        if any(each.outcome.event is Event.RELEASE for each in settlements):
            self._bell.notify([ANY_QUEUE])
        return answers

    def save_progress(self, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
        return self._safely(lambda: settle.save_progress(self._heartbeat_connection, notes))

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
        return dispatch.dispatched(self._connections, results)

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
        answers = self._safely(
            lambda: control.requeue(
                self._connections, job_ids, new, scheduled_for=scheduled_for, delay=delay or NO_DELAY
            )
        )
        if scheduled_for is None and not delay:
            self._bell.notify([ANY_QUEUE])
        return answers

    def reschedule(
        self,
        job_ids: Sequence[JobId],
        *,
        scheduled_for: datetime | None = None,
        delay: timedelta | None = None,
        priority: int | None = None,
    ) -> list[Transitioned | IllegalTransition | JobNotFound]:
        asked: dict[str, Any] = {"scheduled_for": scheduled_for, "delay": delay, "priority": priority}
        answers = self._safely(lambda: control.reschedule(self._connections, job_ids, **asked))
        self._bell.notify([ANY_QUEUE])
        return answers

    def close(self) -> None:
        self._bell.close()
        self._connections.close()
        self._heartbeat_connection.close()
        self._reading.close()

    def _find_primary(self) -> None:
        """Leave a server that has become read-only; each connection is replaced when it is needed next."""
        self._connections.renew()
        self._heartbeat_connection.renew()
        self._reading.renew()
        self._audience.renew()

    def _safely(self, call: Callable[[], T], again: Callable[[], T | None] | None = None) -> T:
        """Make a call whose reply may be lost: it is over then, one way or the other, before *again* asks.

        If *again* returns None, the reply stays lost: a token is for one call, and only the caller has another.
        """
        try:
            return call()
        except ReplyLost as lost:
            self._connections.resolve(lost)
            answer = (again or call)()
            if answer is None:
                raise
            return answer
