"""The driver under test, and the few steps every case is told in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Claim, NewJob
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Sent, Settlement
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Attempt, Job, Lease, OutboxRow
    from taskharbor.core.results import Dispatch, FinishedCount, QueueStats, Refused
    from taskharbor.drivers.base import Driver, SettleAnswer
    from taskharbor.testing.clock import ManualClock

    Insert = Callable[[Sequence[NewJob]], list[Enqueued | IdempotencyConflict]]

LEASE: Final = timedelta(seconds=30)
PATIENCE: Final = timedelta(seconds=60)
LOCK: Final = timedelta(seconds=15)
RESEND: Final = timedelta(seconds=60)
TICK: Final = timedelta(microseconds=1)
BOOM: Final = Failure(type="ValueError", message="boom", traceback="Traceback …", fingerprint="f00d")
TEN_YEARS: Final = timedelta(days=3650)
LONG_AGO: Final = datetime(2029, 12, 31, tzinfo=UTC)


def new_job(**fields: Any) -> NewJob:
    """Return a job to insert; what is not given is of no interest."""
    defaults: dict[str, Any] = {
        "id": new_job_id(),
        "type": "greet",
        "queue": "default",
        "payload": b"{}",
        "created_at": LONG_AGO,
        "max_attempts": 3,
    }
    return NewJob(**defaults | fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a driver's author hands to the kit.

    *driver* keeps no job yet and takes its time from *clock*. *spend* makes a waiting
    job spent behind the driver's back, by a raw write: no verb can, and the guards
    against it must hold all the same; None, if the store itself refuses such a row.
    *transaction* opens a transaction of the user's
    own, and gives an ``insert`` that joins it: leaving it by an error rolls back what
    was inserted. *statements* tells how many statements the driver has run so far (on
    SQLite: transactions that decide nothing in Python); None, if it cannot say.
    """

    driver: Driver
    clock: ManualClock
    spend: Callable[[JobId], None] | None
    transaction: Callable[[], AbstractContextManager[Insert]]
    statements: Callable[[], int] | None = None

    def insert(self, **fields: Any) -> JobId:
        """Store one new job."""
        [answer] = self.driver.insert([new_job(**fields)])
        assert isinstance(answer, Enqueued)
        return answer.id

    def reserve(
        self,
        queue: str = "default",
        *,
        limit: int = 1,
        token: Token | None = None,
        worker: str = "worker",
        lease: timedelta = LEASE,
        overdue_only: bool = False,
        types: Collection[str] | None = None,
        unhandled_after: timedelta | None = None,
        reclaim: bool = True,
    ) -> list[Claim]:
        return self.driver.reserve(
            queue,
            token=token or new_token(),
            worker=worker,
            lease=lease,
            limit=limit,
            overdue_after=PATIENCE,
            overdue_only=overdue_only,
            types=types,
            unhandled_after=unhandled_after,
            reclaim=reclaim,
        )

    def take(self, *, worker: str = "worker", lease: timedelta = LEASE) -> Claim:
        """Reserve the one job there is to take."""
        [claim] = self.reserve(worker=worker, lease=lease)
        return claim

    def claim(
        self,
        *job_ids: JobId,
        queue: str = "default",
        token: Token | None = None,
        worker: str = "worker",
        types: Collection[str] | None = None,
        unhandled_after: timedelta | None = None,
        reclaim: bool = True,
    ) -> list[Claim | Refused]:
        return self.driver.claim(
            job_ids,
            queue=queue,
            token=token or new_token(),
            worker=worker,
            lease=LEASE,
            types=types,
            unhandled_after=unhandled_after,
            reclaim=reclaim,
        )

    def settle(self, held: Claim | Lease, outcome: Outcome) -> SettleAnswer:
        """Record one outcome."""
        lease = held.lease if isinstance(held, Claim) else held
        [answer] = self.driver.settle([Settlement(lease, outcome)])
        return answer

    def dispatch(self, queue: str = "default", *, limit: int = 10, unclaimed: int = 1_000) -> list[Dispatch]:
        return self.driver.dispatch(queue, limit=limit, lock=LOCK, unclaimed=unclaimed)

    def send(self) -> Dispatch:
        """Dispatch the one job that is due, and say that its message went out."""
        [dispatch] = self.dispatch()
        assert self.driver.record_dispatch([Sent(dispatch, RESEND)]) == [True]
        return dispatch

    def make_spent(self, job_id: JobId) -> None:
        if self.spend is None:
            pytest.skip("this store refuses a waiting job that is spent")
        self.spend(job_id)

    def cancel(self, job_id: JobId) -> Any:
        [answer] = self.driver.cancel([job_id])
        return answer

    def requeue(self, job_id: JobId, *, budget: int = 3, token: Token | None = None, **when: Any) -> Any:
        [answer] = self.driver.requeue(
            [job_id],
            token=token or new_token(),
            budget=budget,
            by="ops",
            reason="fixed",
            **when,
        )
        return answer

    def job(self, job_id: JobId) -> Job:
        return self.driver.inspector.get([job_id])[job_id]

    def attempts(self, job_id: JobId) -> list[Attempt]:
        return self.driver.inspector.attempts([job_id])

    def outbox(self, job_id: JobId) -> list[OutboxRow]:
        return self.driver.inspector.outbox([job_id])

    def queues(self) -> list[QueueStats]:
        self.driver.maintenance.roll_up(keep=TEN_YEARS)
        return self.driver.inspector.queues()

    def finished(self, *, since: datetime) -> list[FinishedCount]:
        self.driver.maintenance.roll_up(keep=TEN_YEARS)
        return self.driver.inspector.finished_counts(since=since)

    def advance(self, by: timedelta) -> None:
        self.clock.advance(by)

    def bring(self, status: Status, **fields: Any) -> JobId:
        """Make a job and lead it to *status*, the plain way. No other job may be due."""
        job_id = self.insert(**fields)
        match status:
            case Status.PENDING:
                pass
            case Status.ENQUEUED:
                self.send()
            case Status.CANCELED:
                self.cancel(job_id)
            case _:
                claim = self.take()
                outcomes = {
                    Status.FAILED: Outcome.retry(after=timedelta(0), failure=BOOM),
                    Status.SUCCEEDED: Outcome.ack(),
                    Status.DEAD: Outcome.fail("hopeless", failure=BOOM),
                }
                if status in outcomes:
                    self.settle(claim, outcomes[status])
        assert self.job(job_id).status is status
        return job_id

    def everything(self, job_id: JobId) -> tuple[Any, ...]:
        """Return all that is stored about a job: what a refused call must not change."""
        return self.driver.inspector.get([job_id]), self.attempts(job_id), self.outbox(job_id)
