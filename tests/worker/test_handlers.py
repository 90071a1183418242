"""Handlers: how a worker calls them, and in which thread."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.client import Client
from taskharbor.core.errors import UsageError
from taskharbor.core.request import JobRequest
from taskharbor.core.states import Status
from taskharbor.crypto import AesGcmCodec
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.worker import current_attempt
from tests.support.postgres import emptied
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, drained, ended, enqueue, running_worker, stored, worker_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.worker import Context

MINE: Final[ContextVar[str]] = ContextVar("mine", default="untouched")


def test_each_job_is_run_by_the_handler_of_its_type(driver: Driver) -> None:
    ran: list[tuple[str, str]] = []
    types = ("mail.send", "mail.send.late", "mail")
    jobs = {enqueue(driver, job_type): job_type for job_type in types}

    drained(driver, {each: lambda job, each=each: ran.append((each, jobs[job.id])) for each in types})

    assert sorted(ran) == sorted((job_type, job_type) for job_type in types)


def test_a_handler_gets_its_job_as_the_store_has_it(driver: Driver) -> None:
    seen: list[tuple[Job, Job]] = []
    job_id = enqueue(driver, "look", {"name": "Ada"}, timeout=timedelta(minutes=5), max_attempts=3)

    drained(driver, {"look": lambda job: seen.append((job, stored(driver, job.id)))})

    [(given, found)] = seen
    assert given == found
    assert (given.id, given.type, given.queue, given.data) == (job_id, "look", "default", {"name": "Ada"})
    assert (given.timeout, given.max_attempts) == (timedelta(minutes=5), 3)


def _sync(job: Job) -> list[Any]:
    return ["sync", job.data]


def _sync_with_context(job: Job, ctx: Context) -> list[Any]:
    return ["sync", job.data] if ctx.claim.job == job else []


async def _async(job: Job) -> list[Any]:
    await asyncio.sleep(0)
    return ["async", job.data]


async def _async_with_context(job: Job, ctx: Context) -> list[Any]:
    return ["async", job.data] if ctx.claim.job == job else []


class _AsyncObject:
    async def __call__(self, job: Job) -> list[Any]:
        return ["async", job.data]


HANDLERS: Final = {
    "sync": _sync,
    "sync with a context": _sync_with_context,
    "async": _async,
    "async with a context": _async_with_context,
    "object": _AsyncObject(),
    "partial": partial(_async_with_context),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_what_a_handler_returns_is_stored_as_the_result(driver: Driver, handler: Callable[..., Any]) -> None:
    job_id = enqueue(driver, "greet", {"name": "Ada"})

    drained(driver, {"greet": handler})

    job = stored(driver, job_id)
    assert job.status is Status.SUCCEEDED
    assert json.loads(job.result or b"")[1] == {"name": "Ada"}


def test_no_transaction_or_lock_is_held_while_a_handler_runs_on_postgres() -> None:
    url = emptied()
    was_free: list[bool] = []

    def handler(job: Job) -> None:
        with psycopg.connect(url, autocommit=True, options="-c lock_timeout=5s") as db:
            db.execute("SELECT FROM th_jobs WHERE id = %s FOR UPDATE", [job.id])
            wait_until(lambda: db.execute(OPEN_TRANSACTIONS).fetchall() == [])
        was_free.append(True)

    with closing(PostgresDriver(url)) as driver:
        job_id = enqueue(driver, "look")
        drained(driver, {"look": handler})

        assert was_free == [True]
        assert stored(driver, job_id).status is Status.SUCCEEDED


OPEN_TRANSACTIONS: Final = """
    SELECT pid
      FROM pg_stat_activity
     WHERE datname = current_database()
       AND state LIKE 'idle in transaction%'
"""


def test_no_transaction_is_held_while_a_handler_runs_on_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    was_free: list[bool] = []

    def handler(_job: Job) -> None:
        with closing(sqlite3.connect(file, timeout=5, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # waits for other writers
            db.execute("ROLLBACK")
        was_free.append(True)

    with closing(SqliteDriver(file)) as driver:
        job_id = enqueue(driver, "look")
        drained(driver, {"look": handler})

        assert was_free == [True]
        assert stored(driver, job_id).status is Status.SUCCEEDED


def test_a_handler_that_returns_nothing_leaves_no_result(driver: Driver) -> None:
    job_id = enqueue(driver, "greet")

    drained(driver, {"greet": lambda _job: None})

    assert stored(driver, job_id).status is Status.SUCCEEDED
    assert stored(driver, job_id).result is None


def test_a_handler_that_takes_neither_a_job_nor_a_job_and_a_context_is_refused() -> None:
    with pytest.raises(UsageError, match=r"takes \(job\) or \(job, ctx\)"):
        worker_for(MemoryDriver(), {"greet": lambda: None})


def test_sync_handlers_run_concurrently(driver: Driver) -> None:
    meeting = threading.Barrier(4)
    for _ in range(4):
        enqueue(driver, "meet")

    drained(driver, {"meet": lambda _job: meeting.wait(LIMIT_SECONDS) and None}, concurrency=4)

    assert meeting.n_waiting == 0
    assert not meeting.broken


def test_async_handlers_share_one_thread_and_do_not_wait_for_each_other(driver: Driver) -> None:
    threads: set[int] = set()
    here: list[int] = []

    async def meet(_job: Job) -> None:
        threads.add(threading.get_ident())
        here.append(1)
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(here) < 4:  # noqa: ASYNC110  an event would be bound to the worker's event loop
                await asyncio.sleep(0.001)

    jobs = [enqueue(driver, "meet") for _ in range(4)]

    drained(driver, {"meet": meet}, concurrency=4)

    assert len(threads) == 1
    assert {stored(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_handler_knows_which_attempt_it_is(driver: Driver, is_async: bool) -> None:
    seen: list[Any] = []

    def run(_job: Job, ctx: Context) -> None:
        seen.append((current_attempt.get(), ctx.claim.lease.token))

    async def run_async(job: Job, ctx: Context) -> None:
        await asyncio.sleep(0)
        run(job, ctx)

    job_id = enqueue(driver, "look")

    drained(driver, {"look": run_async if is_async else run})

    [(attempt, token)] = seen
    assert (attempt.job_id, attempt.attempt, attempt.token) == (job_id, 1, token)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_context_variables_of_a_handler_do_not_leak_into_the_next_one(driver: Driver, is_async: bool) -> None:
    seen: list[str] = []

    def run(_job: Job) -> None:
        seen.append(MINE.get())
        MINE.set("touched")

    async def run_async(job: Job) -> None:
        run(job)

    for _ in range(3):
        enqueue(driver, "touch")

    drained(driver, {"touch": run_async if is_async else run}, concurrency=1)

    assert seen == ["untouched"] * 3


def test_a_payload_that_was_encrypted_is_read_with_the_workers_own_codec(driver: Driver) -> None:
    codec = AesGcmCodec({"key": bytes(32)})
    job_id = Client(driver, codec=codec).enqueue(JobRequest(type="greet", payload="a secret")).id
    seen: list[object] = []

    def read(job: Job) -> str:
        seen.append(job.data)
        return "another"

    drained(driver, {"greet": read}, codec=codec)

    result = stored(driver, job_id).result
    assert seen == ["a secret"]
    assert result is not None
    assert codec.decode(result, context=b"result:%b" % job_id.bytes) == "another"


def test_a_job_that_a_handler_enqueues_runs_before_the_worker_is_drained(driver: Driver) -> None:
    ran: list[int] = []

    def follow(job: Job) -> None:
        ran.append(job.data)
        if job.data < 5:
            enqueue(driver, "follow", job.data + 1)

    enqueue(driver, "follow", 1)

    drained(driver, {"follow": follow})

    assert ran == [1, 2, 3, 4, 5]


def test_two_workers_never_run_one_job_both(driver: Driver) -> None:
    ran: list[object] = []
    handlers = {"count": lambda job: ran.append(job.data)}

    with running_worker(driver, handlers), running_worker(driver, handlers):
        jobs = [enqueue(driver, "count", n) for n in range(50)]
        statuses = {ended(driver, job_id).status for job_id in jobs}

    assert statuses == {Status.SUCCEEDED}
    assert sorted(map(str, ran)) == sorted(map(str, range(50)))
