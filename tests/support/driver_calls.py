"""One case for each verb of the PostgreSQL driver: a call, and a check of its effect."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import IllegalTransition
from taskharbor.core.ids import new_token
from taskharbor.core.model import Claim, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import (
    Declined,
    Expired,
    Extended,
    JobFilter,
    Sent,
    Settled,
    Settlement,
    Transitioned,
    Unsent,
)
from taskharbor.core.states import Event, Status
from taskharbor.drivers.postgres.insert import MIN_COPY_JOBS
from taskharbor.testing.conformance.subject import BOOM, LEASE, LOCK, OVERDUE_AFTER, RESEND, new_job
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskharbor.core.model import NewJob
    from taskharbor.drivers.postgres import PostgresDriver as Driver

NONE: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class VerbCase:
    """A call and a check of its effect. *check* gets the answer, or None if the store was unavailable."""

    call: Callable[[Driver], Any]
    check: Callable[[Any], None]
    is_answered: bool = True  # whether the driver repeats the call after a lost reply and returns the answer


def queue_of(driver: Driver, *, jobs: int = 1, **fields: Any) -> list[NewJob]:
    new = [new_job(**fields) for _ in range(jobs)]
    driver.insert(new)
    return new


def reserved(driver: Driver, *, jobs: int = 1, lease: timedelta = LEASE, **fields: Any) -> list[Claim]:
    queue_of(driver, jobs=jobs, **fields)
    return reserve(driver, limit=jobs, lease=lease)


def reserve(driver: Driver, *, limit: int, lease: timedelta = LEASE) -> list[Claim]:
    token = new_token()
    return driver.reserve("default", token=token, worker="w", lease=lease, limit=limit, overdue_after=OVERDUE_AFTER)


def statuses(driver: Driver) -> list[tuple[Status, int]]:
    """Return the status and attempt count of every row in all partitions. A duplicate row would appear twice."""
    jobs = driver.inspector.find(JobFilter(), limit=1_000).jobs
    assert len({job.id for job in jobs}) == len(jobs), "one id, two rows"
    return [(job.status, job.attempt_count) for job in jobs]


def inserting(count: int, keys: Iterable[str | None]) -> Callable[[Driver], VerbCase]:
    def case(direct: Driver) -> VerbCase:
        jobs = [new_job(idempotency_key=key) for _, key in zip(range(count), keys, strict=False)]

        def check(answers: Any) -> None:
            assert [answer.id for answer in answers] == [job.id for job in jobs]
            assert statuses(direct) == [(Status.PENDING, 0)] * len(jobs)

        return VerbCase(lambda driver: driver.insert(jobs), check)

    return case


def reserving(direct: Driver) -> VerbCase:
    queue_of(direct, jobs=3)
    token = new_token()

    def call(driver: Driver) -> list[Claim]:
        return driver.reserve("default", token=token, worker="w", lease=LEASE, limit=2, overdue_after=OVERDUE_AFTER)

    def check(claims: Any) -> None:
        held = direct.read_back([token])
        if claims is None:  # nothing was reserved, and a repeat uses a new token
            assert held == []
            claims = held = reserve(direct, limit=2)
        assert len({claim.lease.token for claim in claims}) == 1
        assert {claim.job.id for claim in claims} == {claim.job.id for claim in held}
        assert sorted(statuses(direct)) == [(Status.PENDING, 0), (Status.PROCESSING, 1), (Status.PROCESSING, 1)]

    return VerbCase(call, check, is_answered=False)


def reclaiming(direct: Driver) -> VerbCase:
    reserved(direct, jobs=2, lease=NONE)
    token = new_token()

    def call(driver: Driver) -> list[Claim]:
        return driver.reserve("default", token=token, worker="w", lease=LEASE, limit=2, overdue_after=OVERDUE_AFTER)

    def check(claims: Any) -> None:
        held = direct.read_back([token])
        if claims is None:  # as above
            assert held == []
            claims = held = reserve(direct, limit=2)
        assert {claim.job.id for claim in claims} == {claim.job.id for claim in held}
        assert statuses(direct) == [(Status.PROCESSING, 2)] * 2
        assert len(direct.inspector.attempts([claim.job.id for claim in claims])) == 2

    return VerbCase(call, check, is_answered=False)


def claiming(direct: Driver) -> VerbCase:
    first, second = queue_of(direct, jobs=2)
    direct.dispatch("default", limit=2, lock=LOCK, unclaimed=10)
    token = new_token()

    def call(driver: Driver) -> Any:
        return driver.claim([first.id, second.id], queue="default", token=token, worker="w", lease=LEASE)

    def check(claims: Any) -> None:
        if claims is None:  # as above
            assert direct.read_back([token]) == []
            claims = direct.claim([first.id, second.id], queue="default", token=new_token(), worker="w", lease=LEASE)
        assert [claim.job.id for claim in claims if isinstance(claim, Claim)] == [first.id, second.id]
        assert statuses(direct) == [(Status.PROCESSING, 1)] * 2

    return VerbCase(call, check, is_answered=False)


def extending(direct: Driver) -> VerbCase:
    [claim] = reserved(direct)

    def check(answers: Any) -> None:
        [answer] = answers
        assert isinstance(answer, Extended)
        assert direct.inspector.get([claim.job.id])[claim.job.id].lease_expires_at == answer.lease.expires_at

    return VerbCase(lambda driver: driver.extend([claim.lease], lease=2 * LEASE), check)


def saving_progress(direct: Driver) -> VerbCase:
    [claim] = reserved(direct)

    def check(answers: Any) -> None:
        assert answers == [True]
        assert direct.inspector.get([claim.job.id])[claim.job.id].progress == Progress(1, 2)

    return VerbCase(lambda driver: driver.save_progress([(claim.lease, Progress(1, 2))]), check)


def settling(direct: Driver) -> VerbCase:
    acked, retried, failed = reserved(direct, jobs=3)
    outcomes = [Outcome.ack(b"1"), Outcome.retry(after=LEASE, failure=BOOM), Outcome.fail("no", failure=BOOM)]
    settlements = [
        Settlement(claim.lease, outcome) for claim, outcome in zip([acked, retried, failed], outcomes, strict=True)
    ]
    wanted = [Status.SUCCEEDED, Status.FAILED, Status.DEAD]

    def check(answers: Any) -> None:
        ids = [each.lease.job_id for each in settlements]
        assert answers == [Settled(job_id, status) for job_id, status in zip(ids, wanted, strict=True)]
        assert sorted(statuses(direct)) == sorted((status, 1) for status in wanted)
        assert (len(direct.inspector.attempts(ids)), len(direct.inspector.outbox(ids))) == (2, 1)

    return VerbCase(lambda driver: driver.settle(settlements), check)


def requeueing(direct: Driver) -> VerbCase:
    [claim] = reserved(direct)
    direct.settle([Settlement(claim.lease, Outcome.fail("no", failure=BOOM))])
    token, ids = new_token(), [claim.job.id]

    def check(answers: Any) -> None:
        assert answers == [Transitioned(claim.job.id, Status.PENDING)]
        assert direct.inspector.get(ids)[claim.job.id].life == 2
        assert [each.event for each in direct.inspector.attempts(ids)] == [Event.FAIL, Event.REQUEUE]

    return VerbCase(lambda driver: driver.requeue(ids, token=token, budget=3, by="ops", reason="fixed"), check)


def rescheduling(direct: Driver) -> VerbCase:
    [job] = queue_of(direct)
    when = datetime(2031, 1, 1, tzinfo=UTC)

    def check(answers: Any) -> None:
        assert answers == [Transitioned(job.id, Status.PENDING)]
        assert direct.inspector.get([job.id])[job.id].scheduled_for == when

    return VerbCase(lambda driver: driver.reschedule([job.id], scheduled_for=when), check)


def canceling(direct: Driver) -> VerbCase:
    [job] = queue_of(direct)

    def check(answers: Any) -> None:
        if answers is None:  # a repeat returns whether the first call was committed
            [answer] = direct.cancel([job.id])
            assert isinstance(answer, Transitioned | IllegalTransition)
        assert statuses(direct) == [(Status.CANCELED, 0)]

    return VerbCase(lambda driver: driver.cancel([job.id]), check, is_answered=False)


def dispatching(direct: Driver) -> VerbCase:
    [job] = queue_of(direct)

    def call(driver: Driver) -> Any:
        return driver.dispatch("default", limit=1, lock=LOCK, unclaimed=10)

    def check(answers: Any) -> None:
        stored = direct.inspector.get([job.id])[job.id]
        assert (stored.sends, stored.status) in {(0, Status.PENDING), (1, Status.ENQUEUED)}
        # Nothing is dispatched if a request that was cut before is executed only now, on a busy machine.
        assert not answers or (answers[0].seq, answers[0].dispatch_at) == (stored.sends, stored.dispatch_at)

    return VerbCase(call, check, is_answered=False)


def reporting(direct: Driver) -> VerbCase:
    queue_of(direct, jobs=3)
    sent, unsent, declined = direct.dispatch("default", limit=3, lock=LOCK, unclaimed=10)
    results: list[Any] = [Sent(sent, RESEND), Unsent(unsent), Declined(declined.job_id, declined.seq)]

    def check(answers: Any) -> None:
        assert answers in (None, [True, True, True])
        direct.record_dispatch(results)
        jobs = direct.inspector.get([sent.job_id, unsent.job_id, declined.job_id])
        assert jobs[sent.job_id].sent_at is not None
        assert [job.resends for job in jobs.values()] == [1, 0, 1], "counted back once, not twice"

    return VerbCase(lambda driver: driver.record_dispatch(results), check, is_answered=False)


def expiring(direct: Driver) -> VerbCase:
    [claim] = reserved(direct, lease=NONE)

    def has_expired() -> bool:
        direct.maintenance.expire(limit=10)
        return statuses(direct) == [(Status.FAILED, 1)]

    def check(answers: Any) -> None:
        assert answers in (None, [Expired(claim.job.id, claim.lease.token, Status.FAILED)])
        wait_until(has_expired)  # a statement that lost its connection may still hold the lock
        assert len(direct.inspector.attempts([claim.job.id])) == 1

    return VerbCase(lambda driver: driver.maintenance.expire(limit=10), check, is_answered=False)


def reading(direct: Driver) -> VerbCase:
    [job] = queue_of(direct)

    def check(found: Any) -> None:
        assert found is None or [*found] == [job.id]

    return VerbCase(lambda driver: driver.inspector.get([job.id]), check, is_answered=False)


VERBS: Final[dict[str, Callable[[Driver], VerbCase]]] = {
    "insert one": inserting(1, repeat(None)),
    "insert under keys": inserting(3, ["a", "b", "c"]),
    "insert by COPY": inserting(MIN_COPY_JOBS, repeat(None)),
    "insert under keys by COPY": inserting(MIN_COPY_JOBS, [str(n) for n in range(MIN_COPY_JOBS)]),
    "reserve": reserving,
    "reclaim": reclaiming,
    "claim": claiming,
    "extend": extending,
    "save progress": saving_progress,
    "settle": settling,
    "requeue": requeueing,
    "reschedule": rescheduling,
    "cancel": canceling,
    "dispatch": dispatching,
    "record_dispatch": reporting,
    "expire": expiring,
    "read": reading,
}
