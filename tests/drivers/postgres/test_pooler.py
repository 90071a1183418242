"""The PostgreSQL driver behind a pooler in transaction mode: a real PgBouncer."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Enqueued, JobFilter, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.connect import connect
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance import Subject, cancel, claim, dispatch, extend, races, requeue, reserve, soak
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from tests.drivers.postgres.test_network_faults import retried
from tests.support.pgbouncer import SERVERS, pooler
from tests.support.postgres import database, emptied, server
from tests.support.tcp_proxy import Cut, Proxy
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Insert

KIT: Final = [claim, dispatch, extend, cancel, races, requeue, reserve, soak]
CASES: Final = {name: case for module in KIT for name, case in vars(module).items() if name.startswith("test_")}
WORKERS: Final = 12


@pytest.fixture(scope="module")
def bouncer() -> Iterator[str]:
    with pooler(server().url) as url:
        yield url.rpartition("/")[0]


@pytest.fixture
def url(bouncer: str) -> str:
    return f"{bouncer}/{emptied().rpartition('/')[2]}"


@pytest.fixture
def subject(url: str) -> Iterator[Subject]:
    clock = ManualClock()

    def spend(job_id: JobId) -> None:
        with psycopg.connect(url) as db:
            db.execute("UPDATE th_jobs SET attempt_count = max_attempts WHERE id = %s", [job_id])

    @contextmanager
    def transaction() -> Iterator[Insert]:
        with psycopg.connect(url, prepare_threshold=None) as db:
            yield driver.join(db).insert

    with closing(PostgresDriver(url, clock=clock, is_pooled=True)) as driver:
        yield Subject(driver=driver, clock=clock, spend=spend, transaction=transaction)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_driver_contract_holds_behind_a_pooler(case: Callable[[Subject], None], subject: Subject) -> None:
    case(subject)


def test_many_threads_run_every_job_once_behind_a_pooler(url: str) -> None:
    with closing(connect(f"{url}?pooler=transaction")) as driver:
        accepted = insert_in_every_way(driver, url)
        with ThreadPoolExecutor(WORKERS) as pool:
            settled = [each for ids in pool.map(work, [driver] * WORKERS, timeout=LIMIT_SECONDS) for each in ids]
        jobs = {job.id: job for job in driver.inspector.find(JobFilter(), limit=2_000).jobs}
        driver.maintenance.roll_up(keep=timedelta(days=1))
        [queue] = driver.inspector.queues()

    assert jobs.keys() == {*accepted}
    assert {job.status for job in jobs.values()} == {Status.SUCCEEDED}
    assert Counter(settled) == Counter(accepted)
    assert queue.counts[Status.SUCCEEDED] == len(accepted)


def insert_in_every_way(driver: Any, url: str) -> list[JobId]:
    one, joined = new_job(), new_job(idempotency_key="k", digest=b"1")
    batch, copied = [new_job() for _ in range(50)], [new_job() for _ in range(600)]
    driver.insert([one])
    driver.insert(batch)
    driver.insert(copied)
    with psycopg.connect(url, prepare_threshold=None) as shop:
        driver.join(shop).insert([joined])
        again = driver.join(shop).insert([new_job(idempotency_key="k", digest=b"1")])
    assert again == [Enqueued(joined.id, existed=True)]
    return [job.id for job in (one, joined, *batch, *copied)]


def work(driver: Any) -> list[JobId]:
    """Reserve, extend and settle until no job is left; some jobs succeed at the second attempt."""
    settled: list[JobId] = []
    while True:
        token = new_token()
        claims = driver.reserve("default", token=token, worker="w", lease=LEASE, limit=7, overdue_after=OVERDUE_AFTER)
        if not claims:
            return settled
        driver.extend([claim.lease for claim in claims], lease=LEASE)
        late = [claim for n, claim in enumerate(claims) if n == 3 and claim.job.attempt_count == 1]
        outcome = {claim.job.id: Outcome.retry(after=timedelta(0)) for claim in late}
        answers = driver.settle([Settlement(each.lease, outcome.get(each.job.id, Outcome.ack())) for each in claims])
        assert all(isinstance(answer, Settled) for answer in answers)
        settled += [answer.job_id for answer in answers if answer.status is Status.SUCCEEDED]


def test_settings_apply_behind_a_pooler_and_do_not_leak_to_others(url: str) -> None:
    query = "SELECT current_setting('plan_cache_mode'), current_setting('statement_timeout')"
    with closing(PostgresDriver(url, is_pooled=True, deadline=timedelta(seconds=3))) as driver:
        [ours] = driver._connections.fetch(query)  # noqa: SLF001  no method returns it
        with ThreadPoolExecutor(SERVERS) as pool:
            theirs = {*pool.map(lambda _: first_row(url, query), range(4 * SERVERS), timeout=LIMIT_SECONDS)}

    assert ours == ("force_generic_plan", "3s")
    assert theirs == {("auto", "0")}


def first_row(url: str, query: Any) -> Any:
    with psycopg.connect(url, prepare_threshold=None) as db:
        return db.execute(query).fetchone()


def test_a_reply_lost_behind_a_pooler_is_an_error_and_the_repeat_finds_the_job() -> None:
    job = new_job()
    with (
        database() as direct,
        pooler(direct) as pooled,
        Proxy(pooled) as proxy,
        closing(PostgresDriver(proxy.url, is_pooled=True)) as driver,
    ):
        driver.inspector.now()
        proxy.cut(Cut.UNHEARD, exchange=4)  # BEGIN, the settings, the statement, COMMIT
        with pytest.raises(StoreUnavailable):
            driver.insert([job])

        assert driver.insert([job], repeat=True) == [Enqueued(job.id, existed=True)]


def test_a_pooler_without_free_connections_fails_at_the_deadline() -> None:
    with database() as direct, pooler(direct, default_pool_size="1") as pooled, psycopg.connect(pooled) as other:
        other.execute("SELECT 1")  # holds the pooler's only connection until its transaction ends
        with closing(PostgresDriver(pooled, is_pooled=True, deadline=timedelta(seconds=1))) as driver:
            with pytest.raises(StoreUnavailable):
                driver.inspector.now()
            other.rollback()

            assert len(retried(lambda: driver.insert([new_job()]))) == 1
