"""`Subject`, the driver under test with the helpers that cases use, and the constants of the kit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, first_id_at, new_job_id, new_token
from taskharbor.core.model import Claim, NewJob
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, Sent, Settlement
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.ids import Token
    from taskharbor.core.model import Attempt, Job, Lease, OutboxRow
    from taskharbor.core.results import Dispatch, FinishedCount, QueueStats, Refused
    from taskharbor.drivers.base import Driver, SettleAnswer
    from taskharbor.testing.clock import ManualClock

    Insert = Callable[[Sequence[NewJob]], list[Enqueued | IdempotencyConflict]]

LEASE: Final = timedelta(seconds=30)
OVERDUE_AFTER: Final = timedelta(seconds=60)
LOCK: Final = timedelta(seconds=15)
RESEND: Final = timedelta(seconds=60)
TICK: Final = timedelta(microseconds=1)
BOOM: Final = Failure(type="ValueError", message="boom", traceback="Traceback …", fingerprint="f00d")
TEN_YEARS: Final = timedelta(days=3650)
LONG_AGO: Final = datetime(2029, 12, 31, tzinfo=UTC)


def id_at(time: datetime) -> JobId:
    """Return a new job id of *time*. Later calls return higher ids for the same time."""
    return JobId(UUID(int=first_id_at(time).int + next(_NUMBERS)))


_NUMBERS: Final = count(1)


def new_job(**fields: Any) -> NewJob:
    """Return a job to insert, with defaults for the fields that are not given."""
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
    """The driver under test and what the kit needs to test it. The driver's author provides it.

    Args:
        driver: A driver with an empty store that takes its time from *clock*.
        clock: The clock of the store.
        spend: Uses up the attempts of a waiting job with a raw write. No method of a driver can do this, but a driver
            must handle such a job. None if the store rejects such a row.
        transaction: Opens a transaction of the user's own and returns an ``insert`` that joins it. An exception inside
            the block rolls the insert back.
        statements: Returns how many statements the driver has run so far (on SQLite: transactions without decisions
            in Python). None if the driver does not count them.
    """

    driver: Driver
    clock: ManualClock
    spend: Callable[[JobId], None] | None
    transaction: Callable[[], AbstractContextManager[Insert]]
    statements: Callable[[], int] | None = None

    def insert(self, **fields: Any) -> JobId:
        """Insert one job."""
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
            overdue_after=OVERDUE_AFTER,
            overdue_only=overdue_only,
            types=types,
            unhandled_after=unhandled_after,
            reclaim=reclaim,
        )

    def take(self, *, worker: str = "worker", lease: timedelta = LEASE) -> Claim:
        """Reserve the only job that is due."""
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
        """Settle one attempt."""
        lease = held.lease if isinstance(held, Claim) else held
        [answer] = self.driver.settle([Settlement(lease, outcome)])
        return answer

    def dispatch(self, queue: str = "default", *, limit: int = 10, unclaimed: int = 1_000) -> list[Dispatch]:
        return self.driver.dispatch(queue, limit=limit, lock=LOCK, unclaimed=unclaimed)

    def send(self) -> Dispatch:
        """Dispatch the only job that is due, and record its message as sent."""
        [dispatch] = self.dispatch()
        assert self.driver.record_dispatch([Sent(dispatch, RESEND)]) == [True]
        return dispatch

    def exhaust(self, job_id: JobId) -> None:
        """Use up the attempts of a waiting job, or skip the test if the store rejects such a row."""
        if self.spend is None:
            pytest.skip("this store rejects a waiting job without attempts left")
        self.spend(job_id)

    def cancel(self, job_id: JobId) -> Any:
        [answer] = self.driver.cancel([job_id])
        return answer

    def requeue(self, job_id: JobId, *, budget: int | None = 3, token: Token | None = None, **when: Any) -> Any:
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
        """Insert a job and bring it to *status*. No other job may be due."""
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
        """Return everything stored about a job, to check that a refused call changed nothing."""
        return self.driver.inspector.get([job_id]), self.attempts(job_id), self.outbox(job_id)
