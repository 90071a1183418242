"""Bulk inserts, from the requests to the rows."""

from __future__ import annotations

from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from taskharbor import Client, Harbor, JobRequest, JsonCodec
from taskharbor.core.errors import IdempotencyConflict, InvalidRequest
from taskharbor.core.job_batch import JobBatch
from taskharbor.core.results import Enqueued
from taskharbor.drivers.postgres import PostgresDriver, insert
from taskharbor.drivers.postgres.insert import MIN_COPY_JOBS
from taskharbor.drivers.postgres.server import ServerConnection
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import new_job
from tests.support.postgres import emptied
from tests.support.traces import Traces, traceparent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import NewJob

ABSENT = "postgresql://postgres@127.0.0.1:1/postgres?connect_timeout=1"


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    """A driver with one connection: code that keeps it, or needs a second one, fails."""
    with closing(PostgresDriver(url, size=1)) as driver:
        yield driver


def stored(url: str) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute("SELECT payload, metadata FROM th_jobs ORDER BY id").fetchall()


def test_a_payload_that_cannot_be_encoded_rejects_the_whole_batch(driver: PostgresDriver, url: str) -> None:
    client, good = Client(driver), [JobRequest(type="greet", payload=n) for n in range(2 * MIN_COPY_JOBS)]

    with pytest.raises(InvalidRequest) as refused:
        client.enqueue_many([*good, JobRequest(type="greet", payload={"at": object()})])

    assert [problem.field for problem in refused.value.problems] == [f"jobs[{2 * MIN_COPY_JOBS}].payload.at"]
    assert stored(url) == []
    assert len(client.enqueue_many(good)) == len(stored(url)) == 2 * MIN_COPY_JOBS


TIMES = [datetime(year, 2, 3, 4, 5, 6, 789, UTC) for year in (1970, 1999, 2000, 2031, 8999)]
VALUES: dict[str, list[Any]] = {
    "type": ["greet", "mail.send"],
    "queue": ["default", "other"],
    "payload": [b"", b"7", bytes(range(256)), b"x" * 10_000],
    "created_at": TIMES,
    "scheduled_for": [None, None, *TIMES, datetime(2031, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30)))],
    "delay": [timedelta(0), timedelta(days=3, microseconds=7)],
    "priority": [0, -32_768, 32_767],
    "max_attempts": [1, 20, 1_000_000],
    "idempotency_key": [None, None, "é\\N\t"],
}
MORE: dict[str, list[Any]] = {
    "timeout": [None, timedelta(microseconds=1), timedelta(days=366), timedelta(hours=25, microseconds=7)],
    "metadata": [{}, {"tag": "wüst\n\\N\u2028"}, {"a": "", "b": "\U0001f600"}],
}


@pytest.mark.parametrize("values", [VALUES, VALUES | MORE], ids=["without metadata or timeouts", "of every kind"])
def test_every_value_of_a_job_is_copied_as_it_is(url: str, values: dict[str, list[Any]]) -> None:
    chosen, clock = Random(7), ManualClock()
    picked = [{name: chosen.choice(each) for name, each in values.items()} for _ in range(2 * MIN_COPY_JOBS)]
    for number, each in enumerate(picked):
        each["idempotency_key"] = each["idempotency_key"] and f"{each['idempotency_key']}{number}"
    jobs = [new_job(**each) for each in picked for _ in range(1 if each["idempotency_key"] else 2)]

    with closing(PostgresDriver(url, clock=clock)) as driver:
        driver.insert(jobs)
        stored_jobs = driver.inspector.get([job.id for job in jobs])

    for job in jobs:
        found = stored_jobs[job.id]
        assert {name: getattr(found, name) for name in values if name not in {"delay", "scheduled_for"}} == {
            name: getattr(job, name) for name in values if name not in {"delay", "scheduled_for"}
        }
        assert found.scheduled_for == (job.scheduled_for or clock.now() + job.delay)


def test_an_invalid_request_is_rejected_before_the_store_is_used() -> None:
    requests = [JobRequest(type="greet")] * MIN_COPY_JOBS

    with (
        closing(PostgresDriver(ABSENT)) as driver,
        pytest.raises(InvalidRequest, match=rf"jobs\[{MIN_COPY_JOBS}\]\.priority"),
    ):
        Client(driver).enqueue_many([*requests, JobRequest(type="greet", priority=10**6)])


def test_jobs_with_and_without_metadata_keep_their_order(driver: PostgresDriver, url: str) -> None:
    special = {MIN_COPY_JOBS: {"tag": "a"}, MIN_COPY_JOBS + 2: {"tag": "b"}}
    requests = [JobRequest(type="greet", payload=n, metadata=special.get(n, {})) for n in range(2 * MIN_COPY_JOBS)]

    answers = Client(driver).enqueue_many(requests)

    assert stored(url) == [(str(n).encode(), special.get(n, {})) for n in range(2 * MIN_COPY_JOBS)]
    assert [answer.id for answer in answers] == sorted(answer.id for answer in answers)


def like_jobs(count: int, **fields: Any) -> JobBatch:
    return JobBatch(new_job(**fields), [new_job().id for _ in range(count)], [b"%d" % n for n in range(count)])


def test_the_columns_of_a_batch_are_stored_without_its_jobs(driver: PostgresDriver, url: str) -> None:
    batch = like_jobs(2 * MIN_COPY_JOBS)

    answers = driver.insert(batch)

    assert answers == [Enqueued(job_id, existed=False) for job_id in batch.ids]
    assert stored(url) == [(b"%d" % n, {}) for n in range(2 * MIN_COPY_JOBS)]
    assert "_jobs" not in vars(batch)


def test_each_of_many_calls_gets_the_context_of_the_span(url: str) -> None:
    traces = Traces()
    with Harbor(url, tracing=traces.provider) as harbor:

        @harbor.task
        def greet(number: int) -> None: ...

        for _ in range(2):  # a call is written without its request from the second time on
            harbor.enqueue_many(greet.call(n) for n in range(3))

    contexts = [{"traceparent": traceparent(span)} for span in traces.spans for _ in range(3)]
    assert [metadata for _, metadata in stored(url)] == contexts


class StoreReadingCodec(JsonCodec):
    """Reads from the store for each payload, like a codec that loads its keys from there."""

    def __init__(self, driver: PostgresDriver) -> None:
        super().__init__()
        self._driver = driver

    def encode(self, value: object, *, context: bytes) -> bytes:
        self._driver.inspector.now()
        return super().encode(value, context=context)


def test_payloads_are_encoded_before_a_connection_is_acquired(driver: PostgresDriver, url: str) -> None:
    client = Client(driver, codec=StoreReadingCodec(driver))

    client.enqueue_many([JobRequest(type="greet", payload=n) for n in range(MIN_COPY_JOBS)])

    assert len(stored(url)) == MIN_COPY_JOBS


STATEMENT_JOBS = 50
PAUSE_SECONDS = 0.005  # that the server takes for each job
# Few long pauses, and not one for each job: on a busy machine a pause of 5 ms takes several times as long.
PAUSE = f"IF nextval('at_rows') % 25 = 0 THEN PERFORM pg_sleep({25 * PAUSE_SECONDS}); END IF;"


@pytest.fixture
def _small_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert, "MAX_STATEMENT_JOBS", STATEMENT_JOBS)


@contextmanager
def at_each_row(url: str, body: str) -> Iterator[None]:
    """Run *body* before each job is stored."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            f"CREATE FUNCTION at_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$".encode()
        )
        db.execute("CREATE SEQUENCE at_rows")
        db.execute("CREATE TRIGGER at_row BEFORE INSERT ON th_jobs_waiting FOR EACH ROW EXECUTE FUNCTION at_row()")
        try:
            yield
        finally:
            db.execute("DROP FUNCTION at_row CASCADE")
            db.execute("DROP SEQUENCE at_rows")


def many(count: int, *, keys: bool = False, **fields: Any) -> list[NewJob]:
    return [new_job(idempotency_key=str(n) if keys else None, **fields) for n in range(count)]


REPEATS = pytest.mark.parametrize("repeat", [False, True], ids=["copied", "repeated"])


@pytest.mark.usefixtures("_small_statements")
@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with keys"])
@REPEATS
def test_a_batch_that_takes_longer_than_the_deadline_is_stored(url: str, *, repeat: bool, keys: bool) -> None:
    deadline, jobs = timedelta(seconds=1), many(2 * MIN_COPY_JOBS, keys=keys)
    assert len(jobs) * PAUSE_SECONDS >= 2 * deadline.total_seconds()

    with (
        at_each_row(url, PAUSE),
        closing(PostgresDriver(url, deadline=deadline)) as driver,
    ):
        answers = driver.insert(jobs, repeat=repeat)

    assert answers == [Enqueued(job.id, existed=False) for job in jobs]
    assert len(stored(url)) == len(jobs)


@pytest.mark.usefixtures("_small_statements")
def test_a_batch_of_like_jobs_is_split_as_any_other(url: str) -> None:
    deadline, batch = timedelta(seconds=1), like_jobs(2 * MIN_COPY_JOBS)
    assert len(batch) * PAUSE_SECONDS >= 2 * deadline.total_seconds()

    with (
        at_each_row(url, PAUSE),
        closing(PostgresDriver(url, deadline=deadline)) as driver,
    ):
        driver.insert(batch)

    assert len(stored(url)) == len(batch)


def test_if_the_only_statement_of_a_batch_fails_no_job_is_stored(url: str, driver: PostgresDriver) -> None:
    jobs = many(MIN_COPY_JOBS)

    with pytest.raises(psycopg.errors.UniqueViolation):
        driver.insert([*jobs, jobs[0]])

    assert stored(url) == []
    assert len(driver.insert(jobs)) == len(stored(url)) == len(jobs)


def test_only_a_batch_of_several_statements_begins_a_transaction(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[ServerConnection] = []
    begin = ServerConnection.transaction
    driver.insert(many(1))  # before its first statement, a driver reads the version of the schema in a transaction

    def count(db: ServerConnection) -> Any:
        begun.append(db)
        return begin(db)

    monkeypatch.setattr(ServerConnection, "transaction", count)

    driver.insert(many(MIN_COPY_JOBS))
    assert begun == []
    driver.insert([*many(MIN_COPY_JOBS), new_job(idempotency_key="k", digest=b"1")])
    assert begun
    assert len(stored(url)) == 2 * MIN_COPY_JOBS + 2


@pytest.mark.usefixtures("_small_statements")
@REPEATS
def test_if_one_of_many_statements_fails_no_job_is_stored(url: str, driver: PostgresDriver, *, repeat: bool) -> None:
    jobs = [*many(2 * MIN_COPY_JOBS), new_job(type="bad")]
    failing = "IF NEW.type = 'bad' THEN RAISE USING ERRCODE = '23514'; END IF;"

    with at_each_row(url, failing), pytest.raises(psycopg.errors.CheckViolation):
        driver.insert(jobs, repeat=repeat)

    assert stored(url) == []
    assert len(driver.insert(jobs, repeat=repeat)) == len(stored(url)) == len(jobs)


@pytest.mark.usefixtures("_small_statements")
@REPEATS
def test_results_of_many_statements_are_in_the_order_of_the_jobs(
    url: str, driver: PostgresDriver, *, repeat: bool
) -> None:
    first = many(MIN_COPY_JOBS, keys=True)
    driver.insert(first)
    same = many(MIN_COPY_JOBS, keys=True)
    other = [new_job(idempotency_key=str(n), digest=b"another") for n in range(MIN_COPY_JOBS)]
    fresh = [new_job(idempotency_key=f"new {n}") for n in range(MIN_COPY_JOBS)]
    jobs = [job for each in zip(same, other, fresh, many(MIN_COPY_JOBS), strict=True) for job in each]

    answers = driver.insert(jobs, repeat=repeat)

    for n, held in enumerate(first):
        existed, conflict, new, keyless = answers[4 * n : 4 * n + 4]
        assert existed == Enqueued(held.id, existed=True)
        assert isinstance(conflict, IdempotencyConflict)
        assert conflict.holder == held.id
        assert new == Enqueued(fresh[n].id, existed=False)
        assert keyless == Enqueued(jobs[4 * n + 3].id, existed=False)
    assert len(stored(url)) == 3 * MIN_COPY_JOBS


@pytest.mark.usefixtures("_small_statements")
def test_a_repeat_finds_jobs_stored_by_many_statements(url: str, driver: PostgresDriver) -> None:
    jobs = many(2 * MIN_COPY_JOBS)
    driver.insert(jobs)

    answers = driver.insert(jobs, repeat=True)

    assert answers == [Enqueued(job.id, existed=True) for job in jobs]
    assert len(stored(url)) == len(jobs)


def test_large_payloads_are_stored_by_several_statements_in_one_transaction(
    url: str, driver: PostgresDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insert, "MAX_STATEMENT_BYTES", 1_000)
    jobs = [*many(10, payload=b"1" * 400), new_job(type="bad")]
    before = driver.statements

    with (
        at_each_row(url, "IF NEW.type = 'bad' THEN RAISE USING ERRCODE = '23514'; END IF;"),
        pytest.raises(psycopg.errors.CheckViolation),
    ):
        driver.insert(jobs)

    assert driver.statements - before == 5
    assert stored(url) == []
