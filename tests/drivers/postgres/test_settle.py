"""Settling next to locked rows, next to data that cannot be stored, and after lost replies."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor import Client, JobRequest
from taskharbor.core.errors import JobNotFound, LeaseExpired, LeaseMismatch, OutcomeNotStorable, StoreUnavailable
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Settled, Settlement, Skipped
from taskharbor.core.states import Status
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.conformance.subject import BOOM, LEASE, LOCK, OVERDUE_AFTER, new_job
from tests.support.postgres import emptied
from tests.support.tcp_proxy import Cut, Proxy
from tests.support.waiting import LIMIT_SECONDS, wait_until
from tests.support.worker_rig import running_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Claim, Job

NONE: Final = timedelta(0)


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(url)) as driver:
        yield driver


def reserve(
    driver: PostgresDriver, *, limit: int = 1, lease: timedelta = LEASE, token: Token | None = None
) -> list[Claim]:
    options: dict[str, Any] = {"worker": "w", "lease": lease, "limit": limit, "overdue_after": OVERDUE_AFTER}
    return driver.reserve("default", token=token or new_token(), **options)


def jobs_of(driver: PostgresDriver) -> dict[JobId, Job]:
    return driver.inspector.get([job.id for job in driver.inspector.find(JobFilter(), limit=100_000).jobs])


def lock(db: psycopg.Connection, *job_ids: JobId) -> None:
    db.execute("SELECT FROM th_jobs WHERE id = ANY (%s) FOR UPDATE", [[*job_ids]])


def waits_for_a_lock(url: str) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url) as db:
        return db.execute(query).fetchone() != (0,)


@pytest.mark.parametrize("locked", [1, 6, 12])
def test_outcomes_of_locked_rows_are_skipped_and_the_others_are_recorded(
    driver: PostgresDriver, url: str, locked: int
) -> None:
    driver.insert([new_job() for _ in range(12)])
    claims = reserve(driver, limit=12)
    outcomes = [Outcome.ack(), Outcome.retry(after=LEASE, failure=BOOM)] * 6
    settlements = [Settlement(claim.lease, each) for claim, each in zip(claims, outcomes, strict=True)]
    ends = [Status.SUCCEEDED, Status.FAILED] * 6
    settled = [Settled(claim.job.id, end) for claim, end in zip(claims, ends, strict=True)]

    with psycopg.connect(url) as other:
        lock(other, *[claim.job.id for claim in claims[:locked]])
        start = time.monotonic()
        answers = driver.settle(settlements)
        took = time.monotonic() - start
        jobs = jobs_of(driver)

    assert answers == [Skipped(claim.lease) for claim in claims[:locked]] + settled[locked:]
    assert took < 4
    processing = [claim.job.id for claim in claims if jobs[claim.job.id].status is Status.PROCESSING]
    assert processing == [claim.job.id for claim in claims[:locked]]
    assert driver.settle(settlements) == settled


def test_jobs_missing_from_the_count_of_a_batch_are_answered_by_job(driver: PostgresDriver) -> None:
    driver.insert([new_job() for _ in range(4)])
    [expired] = reserve(driver, lease=NONE)
    before, held, other = reserve(driver, limit=3)
    [settled_before] = driver.settle([Settlement(before.lease, Outcome.ack(b"1"))])
    forged = Lease(other.job.id, new_token(), other.lease.expires_at)
    unknown = Lease(new_job_id(), new_token(), other.lease.expires_at)

    leases = [expired.lease, before.lease, held.lease, forged, unknown]
    answers = driver.settle([Settlement(lease, Outcome.ack()) for lease in leases])

    assert settled_before == Settled(before.job.id, Status.SUCCEEDED)
    assert answers[1:3] == [settled_before, Settled(held.job.id, Status.SUCCEEDED)]
    assert [type(each) for each in (answers[0], *answers[3:])] == [LeaseExpired, LeaseMismatch, JobNotFound]
    assert jobs_of(driver)[before.job.id].result == b"1"


def test_a_batch_without_a_settled_job_is_answered_by_job(driver: PostgresDriver) -> None:
    driver.insert([new_job() for _ in range(2)])
    claims = reserve(driver, limit=2, lease=NONE)

    answers = driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])

    assert [type(each) for each in answers] == [LeaseExpired, LeaseExpired]


def test_the_outcome_of_a_locked_row_with_an_expired_lease_is_rejected(driver: PostgresDriver, url: str) -> None:
    driver.insert([new_job()])
    [claim] = reserve(driver, limit=1, lease=NONE)

    with psycopg.connect(url) as other:
        lock(other, claim.job.id)
        [answer] = driver.settle([Settlement(claim.lease, Outcome.ack())])

    assert isinstance(answer, LeaseExpired)


def test_in_a_users_transaction_a_locked_row_is_waited_for(driver: PostgresDriver, url: str) -> None:
    driver.insert([new_job()])
    [claim] = reserve(driver, limit=1)

    with psycopg.connect(url) as other, psycopg.connect(url) as shop, ThreadPoolExecutor(1) as pool:
        lock(other, claim.job.id)
        answer = pool.submit(driver.join(shop).settle, [Settlement(claim.lease, Outcome.ack())])
        wait_until(lambda: waits_for_a_lock(url))
        other.rollback()

        assert answer.result(LIMIT_SECONDS) == [Settled(claim.job.id, Status.SUCCEEDED)]


def test_a_locked_row_does_not_slow_down_a_worker(url: str) -> None:
    """While one row stays locked, 200 other jobs run within a fraction of the deadline."""
    is_locked, locked = threading.Event(), list[Any]()
    deadline = timedelta(seconds=LIMIT_SECONDS)
    with closing(PostgresDriver(url, deadline=deadline)) as driver, psycopg.connect(url) as other:

        def run(job: Job) -> None:
            if job.data == "lock":
                lock(other, job.id)
                locked.append(job.id)
                is_locked.set()

        with running_worker(driver, {"run": run}, concurrency=4):
            client = Client(driver)
            client.enqueue(JobRequest(type="run", payload="lock"))
            assert is_locked.wait(LIMIT_SECONDS)
            start = time.monotonic()
            ids = [each.id for each in client.enqueue_many([JobRequest(type="run") for _ in range(200)])]
            wait_until(lambda: all(job.status is Status.SUCCEEDED for job in driver.inspector.get(ids).values()))
            took = time.monotonic() - start
            before = jobs_of(driver)[locked[0]].status
            other.rollback()
            wait_until(lambda: jobs_of(driver)[locked[0]].status is Status.SUCCEEDED)

    assert before is Status.PROCESSING
    assert took < LIMIT_SECONDS / 2


def test_an_unstorable_outcome_is_reported_and_the_others_are_recorded(
    driver: PostgresDriver,
) -> None:
    driver.insert([new_job() for _ in range(8)])
    claims = reserve(driver, limit=8)
    good = [Outcome.ack(b"1"), Outcome.retry(after=LEASE, failure=BOOM)] * 3
    bad = [Outcome.release(bound=2**40), Outcome.release(bound=2**70)]
    outcomes = [*good[:3], *bad, *good[3:]]

    answers = driver.settle([Settlement(claim.lease, each) for claim, each in zip(claims, outcomes, strict=True)])

    reasons = [answer.reason for answer in answers if isinstance(answer, OutcomeNotStorable)]
    assert [type(answer) for answer in answers] == [Settled] * 3 + [OutcomeNotStorable] * 2 + [Settled] * 3
    assert reasons == ["NumericValueOutOfRange"] * 2
    assert [jobs_of(driver)[claim.job.id].status for claim in claims[3:5]] == [Status.PROCESSING] * 2


def test_an_error_that_is_not_about_the_data_of_an_outcome_is_raised(driver: PostgresDriver, url: str) -> None:
    driver.insert([new_job()])
    [claim] = reserve(driver)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE FUNCTION fail_58030() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'could not read block' USING ERRCODE = '58030'; END $$"
        )
        db.execute(
            "CREATE TRIGGER fails BEFORE UPDATE ON th_jobs_processing FOR EACH ROW EXECUTE FUNCTION fail_58030()"
        )
        try:
            with pytest.raises((psycopg.Error, StoreUnavailable)):
                driver.settle([Settlement(claim.lease, Outcome.ack())])
        finally:
            db.execute("DROP FUNCTION fail_58030 CASCADE")

    assert driver.settle([Settlement(claim.lease, Outcome.ack())]) == [Settled(claim.job.id, Status.SUCCEEDED)]


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_a_password_function_that_fails_means_that_the_store_is_unavailable(
    url: str, error: type[BaseException]
) -> None:
    def password() -> str:
        raise error("canary")

    with closing(PostgresDriver(url, password=password)) as driver, pytest.raises(StoreUnavailable) as failed:
        driver.insert([new_job()])

    assert f"password() raised {error.__name__}" in str(failed.value)
    assert "canary" not in str(failed.value)
    assert isinstance(failed.value.__cause__, error)


def raise_timeout() -> str:
    raise TimeoutError("the token service is unavailable")


@pytest.mark.parametrize("fail", [raise_timeout, lambda: "\udcff"], ids=["raises", "unencodable"])
def test_success_is_recorded_after_a_failover_during_which_the_password_function_fails(
    url: str, fail: Callable[[], str]
) -> None:
    fails, ran, may_end = threading.Event(), threading.Event(), threading.Event()

    def password() -> str:
        return fail() if fails.is_set() else ""

    def run(_job: Job) -> None:
        ran.set()
        assert may_end.wait(LIMIT_SECONDS)

    with (
        Proxy(url) as proxy,
        closing(PostgresDriver(url)) as direct,
        closing(PostgresDriver(proxy.url, password=password)) as driver,
        running_worker(driver, {"run": run}),
    ):
        job_id = Client(direct).enqueue(JobRequest(type="run")).id
        assert ran.wait(LIMIT_SECONDS)
        fails.set()
        proxy.reset()
        settles = SettleCounter(driver)
        may_end.set()
        wait_until(lambda: settles.count > 3)
        fails.clear()
        wait_until(lambda: direct.inspector.get([job_id])[job_id].status.is_final)
        job = direct.inspector.get([job_id])[job_id]

    assert (job.status, job.attempt_count) == (Status.SUCCEEDED, 1)


class SettleCounter:
    """Counts the calls of `settle` of a driver."""

    def __init__(self, driver: PostgresDriver) -> None:
        self.count = 0
        self._settle = driver.settle
        driver.settle = self._counted  # type: ignore[method-assign]

    def _counted(self, settlements: Any) -> Any:
        self.count += 1
        return self._settle(settlements)


def end_lease(url: str) -> None:
    with psycopg.connect(url) as db:
        db.execute("UPDATE th_jobs_processing SET lease_expires_at = lease_expires_at - interval '1 hour'")


class Interrupted:
    """Runs a function between the loss of a reply and the read-back."""

    def __init__(self, driver: PostgresDriver, then: Any) -> None:
        self._resolve, self._then = driver._connections.resolve, then  # noqa: SLF001  the only hook at this time
        driver._connections.resolve = self._resolved  # type: ignore[method-assign]  # noqa: SLF001  as above

    def _resolved(self, lost: Any) -> None:
        self._resolve(lost)
        self._then()


@pytest.mark.parametrize("verb", ["reserve", "claim"])
@pytest.mark.parametrize("when", Cut)
def test_no_token_is_used_again_after_a_lost_reply_whose_lease_has_ended(verb: str, when: Cut, url: str) -> None:
    token = new_token()
    with closing(PostgresDriver(url)) as direct, Proxy(url) as proxy, closing(PostgresDriver(proxy.url)) as driver:
        job = new_job()
        direct.insert([job])
        if verb == "claim":
            direct.dispatch("default", limit=1, lock=LOCK, unclaimed=10)
        calls: dict[str, Callable[[], object]] = {
            "reserve": lambda: reserve(driver, token=token),
            "claim": lambda: driver.claim([job.id], queue="default", token=token, worker="w", lease=LEASE),
        }
        driver.inspector.now()
        Interrupted(driver, lambda: end_lease(url))
        proxy.cut(when, exchange=1)

        with pytest.raises(StoreUnavailable):
            calls[verb]()

        held = direct.inspector.get([job.id])[job.id]
        assert held.attempt_count <= 1
        assert direct.inspector.attempts([job.id]) == []
        direct.maintenance.expire(limit=10)
        tokens = [attempt.token for attempt in direct.inspector.attempts([job.id])]
        assert tokens == [token] * held.attempt_count


def test_a_job_whose_attempt_already_has_a_row_does_not_block_others(driver: PostgresDriver, url: str) -> None:
    """An older version could claim a job twice under one token, which left such a row."""

    def claims_with_row(lease: timedelta) -> list[Claim]:
        driver.insert([new_job() for _ in range(2)])
        claims = reserve(driver, limit=2, lease=lease)
        with psycopg.connect(url) as db:
            db.execute(
                "INSERT INTO th_attempts (job_id, token, life, attempt, ended_at, event, status, outcome)"
                " VALUES (%s, %s, 1, 1, now(), 'reclaim', 'PROCESSING', 'LOST')",
                [claims[0].job.id, claims[0].lease.token],
            )
        return claims

    retried = [Settlement(claim.lease, Outcome.retry(after=LEASE, failure=BOOM)) for claim in claims_with_row(LEASE)]
    settled = driver.settle(retried)
    claims_with_row(NONE)
    reclaimed = reserve(driver, limit=2, lease=NONE)
    claims_with_row(NONE)
    expired = driver.maintenance.expire(limit=10)

    assert [type(answer) for answer in settled] == [Settled, Settled]
    assert [claim.job.attempt_count for claim in reclaimed] == [2, 2]
    assert [each.status for each in expired] == [Status.FAILED] * 4
