"""The fields of the running job in the user's own log lines: always those of the right job, or none."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import JobLogFilter, MemoryDriver
from taskharbor.cli.log_output import JsonFormatter, TextFormatter
from taskharbor.observability.job_log import CurrentAttempt, current_attempt, job_fields
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, drained, enqueue, running_worker, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import Job
    from taskharbor.worker import Context

LOG: Final = logging.getLogger("shop")
FIELDS: Final = ("job_id", "type", "queue", "attempt", "worker", "trace_id")
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"


class Lines(logging.Handler):
    """Keeps the records of the logger ``shop`` by their messages."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(JobLogFilter())
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def fields(self, message: str) -> dict[str, Any]:
        [record] = [each for each in self.records if each.getMessage() == message]
        return {name: vars(record)[name] for name in FIELDS if name in vars(record)}


@pytest.fixture
def lines() -> Iterator[Lines]:
    with kept_lines() as lines:
        yield lines


@contextmanager
def kept_lines() -> Iterator[Lines]:
    lines, level = Lines(), LOG.level
    LOG.addHandler(lines)
    LOG.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        LOG.removeHandler(lines)
        LOG.setLevel(level)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_line_of_a_handler_has_the_fields_of_its_job(is_async: bool, lines: Lines) -> None:
    def run(_job: Job) -> None:
        LOG.info("paid %d", 7)

    async def run_async(job: Job) -> None:
        await asyncio.sleep(0)
        run(job)

    driver = MemoryDriver()
    traceparent = f"00-{TRACE}-00f067aa0ba902b7-01"
    job_id = enqueue(driver, "pay", queue="money", metadata={"traceparent": traceparent})
    drained(driver, {"pay": run_async if is_async else run}, queues=["money"], name="worker-1")

    assert lines.fields("paid 7") == {
        "job_id": str(job_id),
        "type": "pay",
        "queue": "money",
        "attempt": 1,
        "worker": "worker-1",
        "trace_id": TRACE,
    }


def test_jobs_that_run_at_the_same_time_never_mix_their_fields(lines: Lines) -> None:
    both = threading.Barrier(2, timeout=LIMIT_SECONDS)
    arrived = dict[str, int]()

    def run(job: Job) -> None:
        for turn in range(50):
            both.wait()
            LOG.info("%s %d", job.id, turn)

    async def run_async(job: Job) -> None:
        for turn in range(50):
            arrived[job.type] = turn
            async with asyncio.timeout(LIMIT_SECONDS):
                while set(arrived.values()) != {turn}:  # noqa: ASYNC110  both must arrive
                    await asyncio.sleep(0)
            LOG.info("%s %d", job.id, turn)
            await asyncio.sleep(0)

    driver = MemoryDriver()
    jobs = {enqueue(driver, job_type): job_type for job_type in ("one", "two")}
    drained(driver, {"one": run, "two": run})
    arrived |= {"three": -1, "four": -1}
    jobs |= {enqueue(driver, job_type): job_type for job_type in ("three", "four")}
    drained(driver, {"three": run_async, "four": run_async})

    assert len(lines.records) == 4 * 50
    for job_id, job_type in jobs.items():
        found = [lines.fields(f"{job_id} {turn}") for turn in range(50)]
        assert {(each["job_id"], each["type"]) for each in found} == {(str(job_id), job_type)}


def test_a_thread_pool_has_the_fields_only_in_a_copy_of_the_context(lines: Lines) -> None:
    both = threading.Barrier(2, timeout=LIMIT_SECONDS)
    with ThreadPoolExecutor(2) as pool:

        def run(job: Job) -> None:
            both.wait()
            pool.submit(LOG.info, "plain %s", job.id).result(LIMIT_SECONDS)
            pool.submit(copy_context().run, LOG.info, "copied %s", job.id).result(LIMIT_SECONDS)

        async def run_async(job: Job) -> None:
            await asyncio.to_thread(LOG.info, "in a thread %s", job.id)

        driver = MemoryDriver()
        jobs = [enqueue(driver, "run") for _ in range(2)]
        drained(driver, {"run": run})
        jobs_async = [enqueue(driver, "run") for _ in range(2)]
        drained(driver, {"run": run_async})

    for job_id in jobs:
        assert lines.fields(f"plain {job_id}") == {}  # the pool's thread has no context of a job
        assert lines.fields(f"copied {job_id}")["job_id"] == str(job_id)
    for job_id in jobs_async:
        assert lines.fields(f"in a thread {job_id}")["job_id"] == str(job_id)


def test_a_task_of_a_handler_has_its_fields_until_the_handler_returns(lines: Lines) -> None:
    may_end, has_ended = threading.Event(), threading.Event()
    tasks = list[asyncio.Task[None]]()

    async def outlive() -> None:
        LOG.info("early")
        while not may_end.is_set():  # noqa: ASYNC110  an event of another thread
            await asyncio.sleep(0.001)
        LOG.info("late")
        has_ended.set()

    async def run(_job: Job) -> None:
        tasks.append(asyncio.create_task(outlive()))
        await asyncio.sleep(0.01)

    driver = MemoryDriver()
    with running_worker(driver, {"run": run}):
        job_id = enqueue(driver, "run")
        wait_until(lambda: stored(driver, job_id).status.is_final)
        may_end.set()
        assert has_ended.wait(LIMIT_SECONDS)

    assert lines.fields("early")["job_id"] == str(job_id)
    assert lines.fields("late") == {}


def test_a_thread_that_outlives_its_sync_handler_loses_the_fields(lines: Lines) -> None:
    may_end, threads = threading.Event(), list[threading.Thread]()

    def outlive() -> None:
        LOG.info("early")
        may_end.wait(LIMIT_SECONDS)
        LOG.info("late")

    def run(_job: Job) -> None:
        thread = threading.Thread(target=copy_context().run, args=(outlive,))
        threads.append(thread)
        thread.start()
        wait_until(lambda: lines.records != [])

    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run})
    may_end.set()
    threads[0].join(LIMIT_SECONDS)

    assert lines.fields("early")["job_id"] == str(job_id)
    assert lines.fields("late") == {}


def test_a_record_about_another_job_and_the_users_own_attributes_stay(lines: Lines) -> None:
    def run(_job: Job) -> None:
        LOG.info("another", extra={"job_id": "other", "queue": "its own"})
        LOG.info("own", extra={"queue": "of people", "type": "vip"})

    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run})

    assert lines.fields("another") == {"job_id": "other", "queue": "its own"}
    own = lines.fields("own")
    assert (own["job_id"], own["queue"], own["type"], own["attempt"]) == (str(job_id), "of people", "vip", 1)


def test_a_line_outside_a_handler_has_no_fields(lines: Lines) -> None:
    LOG.info("outside")

    assert lines.fields("outside") == {}


def test_the_workers_own_lines_about_a_job_have_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Job] = []

    def run(job: Job, ctx: Context) -> None:
        seen.append(job)
        wait_until(lambda: ctx.is_cancelled)

    driver = MemoryDriver()
    enqueue(driver, "run", timeout=0.05, max_attempts=1)
    with caplog.at_level(logging.INFO, "taskharbor"):
        drained(driver, {"run": run})

    about = [vars(each) for each in caplog.records if str(seen[0].id) in each.getMessage()]
    assert len(about) >= 2  # that it still runs at its timeout, and that it has died
    for each in about:
        assert {name: each[name] for name in FIELDS} == job_fields(seen[0])


def test_text_lines_of_a_handler_show_the_end_of_the_job_id_once() -> None:
    driver = MemoryDriver()
    job = stored(driver, enqueue(driver, "run"))
    formatter, keep = TextFormatter(), JobLogFilter()

    def line(message: str) -> str:
        record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": message})
        keep.filter(record)
        return formatter.format(record).partition(": ")[2]

    def handle() -> list[str]:
        current_attempt.set(CurrentAttempt(job))
        return [line("paid"), line(f"job {job.id}: done")]

    assert copy_context().run(handle) == [f"[{str(job.id)[-12:]}] paid", f"job {job.id}: done"]
    assert line("paid") == "paid"


@pytest.mark.parametrize("metadata", [{}, {"traceparent": "garbage"}, {"traceparent": ""}, {"team": "a"}])
def test_a_job_without_a_readable_traceparent_has_no_trace_id(metadata: dict[str, str]) -> None:
    driver = MemoryDriver()
    job = stored(driver, enqueue(driver, "run", metadata=metadata))

    assert job_fields(job)["trace_id"] is None


def test_json_lines_of_a_handler_have_the_fields() -> None:
    record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "paid"})
    driver = MemoryDriver()
    job = stored(driver, enqueue(driver, "run"))

    def handle() -> str:
        current_attempt.set(CurrentAttempt(job))
        JobLogFilter().filter(record)
        return JsonFormatter().format(record)

    assert f'"job_id": "{job.id}", "type": "run"' in copy_context().run(handle)
