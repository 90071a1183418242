"""The captured log lines of attempts: of the right attempt, bounded, redacted, and never in the way of an outcome."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import sqlite3
import threading
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import Harbor, MemoryDriver, Snooze, SqliteDriver, Status, UsageError, Worker
from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.core.log_lines import KEPT_ATTEMPTS, MAX_LINE_CHARS, MAX_LINES, MAX_LOG_BYTES, encode_lines
from taskharbor.observability.job_log import current_attempt
from taskharbor.observability.log_capture import CaptureHandler
from taskharbor.worker import log_writer
from taskharbor.worker.executor import Executor
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, LONG, Outage, drained, ended, enqueue, meddled, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.core.log_lines import AttemptLines
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.worker import Context

LOG: Final = logging.getLogger("shop")
LINES: Final = 1_000_000


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    before = LOG.level
    LOG.setLevel(logging.DEBUG)
    yield
    LOG.setLevel(before)
    assert not any(isinstance(each, CaptureHandler) for each in logging.getLogger().handlers)


def logs_of(driver: Driver, job_id: JobId) -> list[AttemptLines]:
    return driver.attempt_logs.read([job_id])


def texts(driver: Driver, job_id: JobId) -> list[str]:
    return [line.text for log in logs_of(driver, job_id) for line in log.lines]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_lines_of_an_attempt_are_saved_with_it(is_async: bool) -> None:
    def run(job: Job) -> None:
        LOG.debug("left out")
        LOG.info("attempt %d", job.attempt_count)
        if job.attempt_count == 1:
            raise ValueError("no")

    async def run_async(job: Job) -> None:
        await asyncio.sleep(0)
        run(job)

    driver = MemoryDriver()
    job_id = enqueue(driver, "run", max_attempts=2)
    worker = Worker(driver, name="w", poll=0.05, capture_logs=True)
    worker.register("run", run_async if is_async else run)
    worker.start()
    wait_until(lambda: stored(driver, job_id).status is Status.FAILED)
    driver.reschedule([job_id], delay=timedelta(0))
    ended(driver, job_id)
    worker.stop()

    logs = logs_of(driver, job_id)
    assert [(each.attempt, each.worker_id, each.dropped) for each in logs] == [(1, "w", 0), (2, "w", 0)]
    assert [(line.level, line.logger, line.text) for log in logs for line in log.lines] == [
        ("INFO", "shop", "attempt 1"),
        ("INFO", "shop", "attempt 2"),
    ]


def test_an_exception_that_a_handler_logs_is_part_of_its_line() -> None:
    def run(_job: Job) -> None:
        try:
            int("many")
        except ValueError:
            LOG.exception("cannot pay")

    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run}, capture_logs="error")

    [text] = texts(driver, job_id)
    assert re.fullmatch(r"cannot pay\nTraceback .*\nValueError: .* 'many'", text, re.DOTALL)


def test_nothing_is_captured_by_default() -> None:
    handlers = list[logging.Handler]()

    def run(_job: Job) -> None:
        LOG.warning("here")
        handlers.extend(logging.getLogger().handlers)

    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run})

    assert logs_of(driver, job_id) == []
    assert not any(isinstance(each, CaptureHandler) for each in handlers)


def test_a_task_says_whether_its_lines_are_captured() -> None:
    harbor = Harbor("memory://")

    @harbor.task(capture_logs="debug")
    def all_lines() -> None:
        LOG.debug("debug")

    @harbor.task(capture_logs=True)
    def some_lines() -> None:
        LOG.debug("debug")
        LOG.info("info")

    @harbor.task(capture_logs=False)
    def no_lines() -> None:
        LOG.error("a secret")

    @harbor.task
    def default() -> None:
        LOG.info("info")
        LOG.warning("warning")

    handles = [each.enqueue() for each in (all_lines, some_lines, no_lines, default)]
    harbor.worker(capture_logs="warning").drain(LONG)
    found = [texts(harbor.driver, each.id) for each in handles]
    again = default.enqueue()
    harbor.worker().drain(LONG)

    assert found == [["debug"], [], [], ["warning"]]
    assert texts(harbor.driver, again.id) == []


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(UsageError, match=r"capture_logs.*'loud'.*must be true, false or one of DEBUG"):
        Worker(MemoryDriver(), capture_logs="loud")
    with pytest.raises(UsageError, match="capture_logs"):
        Harbor("memory://").task(capture_logs="loud")(lambda: None)


def test_jobs_of_two_workers_at_the_same_time_never_mix_their_lines() -> None:
    both = threading.Barrier(2, timeout=LIMIT_SECONDS)

    def run(job: Job) -> None:
        for turn in range(50):
            both.wait()
            LOG.info("%s %d", job.id, turn)

    async def run_async(job: Job) -> None:
        for turn in range(50):
            await asyncio.sleep(0)
            await asyncio.gather(*(asyncio.to_thread(LOG.info, "%s %d", job.id, 2 * turn + each) for each in range(2)))

    driver = MemoryDriver()
    jobs = [enqueue(driver, "run") for _ in range(2)] + [enqueue(driver, "async") for _ in range(2)]
    workers = [Worker(driver, poll=0.05, concurrency=2, capture_logs=True) for _ in range(2)]
    for worker in workers:
        worker.register("run", run)
        worker.register("async", run_async)
        worker.start()
    for job_id in jobs:
        ended(driver, job_id)
    for worker in workers:
        worker.stop()

    for job_id in jobs[:2]:
        assert texts(driver, job_id) == [f"{job_id} {turn}" for turn in range(50)]
    for job_id in jobs[2:]:
        assert sorted(texts(driver, job_id)) == sorted(f"{job_id} {turn}" for turn in range(100))


def test_lines_after_the_handler_has_returned_are_not_captured() -> None:
    may_end, threads = threading.Event(), list[threading.Thread]()

    def outlive() -> None:
        may_end.wait(LIMIT_SECONDS)
        LOG.info("late")

    def run(_job: Job) -> None:
        threads.append(threading.Thread(target=copy_context().run, args=(outlive,)))
        threads[-1].start()
        LOG.info("in time")

    outage, driver = Outage("settle"), MemoryDriver()
    outage.begin()
    worker = Worker(meddled(driver, outage), poll=0.05, capture_logs=True)
    worker.register("run", run)
    worker.start()
    job_id = enqueue(driver, "run")
    wait_until(lambda: outage.refused != [])  # the handler has returned, and its lines are not saved yet
    may_end.set()
    threads[0].join(LIMIT_SECONDS)
    outage.end()
    ended(driver, job_id)
    worker.stop()

    assert texts(driver, job_id) == ["in time"]


def test_a_million_lines_stay_within_the_limits(tmp_path: Path) -> None:
    sizes = list[int]()

    def run(_job: Job) -> None:
        attempt = current_attempt.get()
        assert attempt is not None
        record = logging.makeLogRecord({"name": "shop", "levelno": 20, "levelname": "INFO", "msg": "line"})
        [handler] = [each for each in logging.getLogger().handlers if isinstance(each, CaptureHandler)]
        for number in range(LINES):
            record.msg = number
            handler.emit(record)
            if number % 100_000 == 0:
                sizes.append(len(attempt.capture._lines))  # type: ignore[union-attr]  # noqa: SLF001  what it keeps

    driver = SqliteDriver(tmp_path / "jobs.db")
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run}, capture_logs=True)

    [log] = logs_of(driver, job_id)
    assert max(sizes) == MAX_LINES
    assert [line.text for line in log.lines] == [str(number) for number in range(LINES - MAX_LINES, LINES)]
    assert log.dropped == LINES - MAX_LINES
    driver.close()


def test_huge_lines_and_garbage_are_cut_and_made_storable(tmp_path: Path) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("no")

    def run(_job: Job) -> None:
        LOG.info("\x00 \ud800 \udcff \U0001f600 \x1b[2J %s", b"\xff\xfe")
        LOG.info("a %s b", "x" * 5_000_000)
        LOG.info("%s", Unprintable())
        LOG.info("%d of them", "none")
        LOG.info("")

    driver = SqliteDriver(tmp_path / "jobs.db")
    job_id = enqueue(driver, "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "raiseExceptions", False)  # the handlers of pytest cannot format these lines, either
        drained(driver, {"run": run}, capture_logs=True)

    garbage, huge, *broken, empty = texts(driver, job_id)
    assert garbage == "\\x00 \\ud800 \\udcff \U0001f600 \x1b[2J b'\\xff\\xfe'"
    assert len(huge) == MAX_LINE_CHARS
    assert "characters left out" in huge
    assert broken == ["(not shown: formatting raised ValueError)", "(not shown: formatting raised TypeError)"]
    assert empty == ""
    assert stored(driver, job_id).status is Status.SUCCEEDED
    driver.close()


def test_the_stored_form_of_the_lines_is_bounded() -> None:
    def run(_job: Job) -> None:
        for _ in range(100):
            LOG.info('"' * MAX_LINE_CHARS)  # twice as long in JSON

    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run}, capture_logs=True)

    [log] = logs_of(driver, job_id)
    assert len(encode_lines(log.lines).encode()) <= MAX_LOG_BYTES
    assert len(log.lines) == MAX_LOG_BYTES // (2 * MAX_LINE_CHARS + 100)
    assert log.dropped == 100 - len(log.lines)


def test_lines_of_the_newest_attempts_of_a_job_are_kept() -> None:
    def run(job: Job) -> None:
        LOG.info("%d", job.releases)
        if len(runs) < KEPT_ATTEMPTS + 3:
            runs.append(1)
            LOG.info("run %d", len(runs))
            raise Snooze(0)
        LOG.info("last")

    runs = list[int]()
    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run}, capture_logs=True)

    assert len(logs_of(driver, job_id)) == KEPT_ATTEMPTS
    assert texts(driver, job_id)[-1] == "last"


def test_secrets_are_redacted_as_in_errors() -> None:
    def run(_job: Job) -> None:
        LOG.info("card 4111-1111 of %s", "Ada")
        LOG.info("broken")

    def redact(text: str) -> str:
        if text == "broken":
            raise LookupError
        return text.replace("4111-1111", "***")

    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    drained(driver, {"run": run}, capture_logs=True, redact=redact)

    assert texts(driver, job_id) == ["card *** of Ada", "(not shown: redact raised LookupError)"]


def test_an_outage_delays_the_lines_and_not_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "RETRY_PAUSE", timedelta(milliseconds=20))
    outage, driver = Outage("save"), MemoryDriver()
    outage.begin()
    worker = Worker(meddled(driver, outage), poll=0.05, capture_logs=True)
    worker.register("run", lambda job: LOG.info("job %s", job.id))
    worker.start()
    jobs = [enqueue(driver, "run") for _ in range(5)]
    for job_id in jobs:
        ended(driver, job_id)
    wait_until(lambda: len(outage.refused) > 2)
    outage.end()
    wait_until(lambda: all(texts(driver, job_id) == [f"job {job_id}"] for job_id in jobs))
    worker.stop()


def test_attempts_of_a_job_that_wait_together_keep_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "RETRY_PAUSE", timedelta(milliseconds=20))

    def run(_job: Job) -> None:
        runs.append(1)
        LOG.info("run %d", len(runs))
        if len(runs) < 4:
            raise Snooze(0)

    outage, driver, runs = Outage("save"), MemoryDriver(), list[int]()
    outage.begin()
    worker = Worker(meddled(driver, outage), poll=0.05, capture_logs=True)
    worker.register("run", run)
    worker.start()
    job_id = enqueue(driver, "run")
    ended(driver, job_id)
    wait_until(lambda: outage.refused != [])
    outage.end()
    wait_until(lambda: "run 4" in texts(driver, job_id))
    worker.stop()

    assert texts(driver, job_id) == ["run 1", "run 2", "run 3", "run 4"]


def test_a_stop_during_an_outage_does_not_wait_for_lines(caplog: pytest.LogCaptureFixture) -> None:
    outage, driver = Outage("save"), MemoryDriver()
    outage.begin()
    worker = Worker(meddled(driver, outage), poll=0.05, capture_logs=True)
    worker.register("run", lambda job: LOG.info("job %s", job.id))
    worker.start()
    ended(driver, enqueue(driver, "run"))
    wait_until(lambda: outage.refused != [])
    worker.begin_stop()
    wait_until(lambda: worker.is_over)
    wait_until(lambda: "not saved" in caplog.text)

    assert "captured log lines not saved, store unavailable; attempts: 1" in caplog.messages


def test_a_stop_waits_for_the_lines_of_jobs_that_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = list[bool]()
    release_waiting = Executor.release_waiting

    def counted(executor: Executor) -> None:
        polls.append(worker.is_over)
        release_waiting(executor)

    def meddle(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "save":
            saves.append(verb)
            wait_until(lambda: worker.is_over or len(polls) > 1)  # the stop has checked what it waits for
        return call()

    monkeypatch.setattr(Executor, "release_waiting", counted)
    driver, saves = MemoryDriver(), list[str]()
    worker = Worker(meddled(driver, meddle), poll=0.05, capture_logs=True)
    worker.register("run", lambda job: LOG.info("job %s", job.id))
    worker.start()
    jobs = [enqueue(driver, "run")]
    wait_until(lambda: saves != [])
    jobs.append(enqueue(driver, "run"))  # its lines wait until those of the first job are saved
    ended(driver, jobs[1])
    wait_until(lambda: worker.running_jobs == 0)
    worker.stop()

    assert [texts(driver, job_id) for job_id in jobs] == [[f"job {job_id}"] for job_id in jobs]


def test_more_lines_than_may_wait_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_writer, "MAX_PENDING_LOGS", 2)
    monkeypatch.setattr(log_writer, "LOG_BATCH", 1)
    monkeypatch.setattr(log_writer, "RETRY_PAUSE", timedelta(milliseconds=20))
    outage, driver = Outage("save"), MemoryDriver()
    outage.begin()
    worker = Worker(meddled(driver, outage), poll=0.05, capture_logs=True)
    worker.register("run", lambda job: LOG.info("job %s", job.id))
    worker.start()
    jobs = []
    for _ in range(6):
        jobs.append(enqueue(driver, "run"))
        ended(driver, jobs[-1])
        wait_until(lambda: outage.refused != [])  # the lines of the first job are being saved
    outage.end()
    wait_until(lambda: texts(driver, jobs[-1]) != [])
    worker.stop()

    assert sum(texts(driver, job_id) != [] for job_id in jobs) == 3  # one that is being saved, and two that wait
    assert "captured log lines not saved, store unavailable; attempts: 3" in caplog.messages


def test_lines_that_cannot_be_stored_do_not_block_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_writer, "LOG_BATCH", 1)
    driver = MemoryDriver()
    refused, other = enqueue(driver, "run", priority=1), enqueue(driver, "run", priority=2)
    save = driver.attempt_logs.save

    def save_or_fail(logs: Sequence[AttemptLines], *, keep: int) -> list[bool]:
        if logs[0].job_id == refused:
            raise UnicodeError
        return save(logs, keep=keep)

    monkeypatch.setattr(driver.attempt_logs, "save", save_or_fail)
    handlers = {"run": lambda _job: LOG.info("here")}
    drained(driver, handlers, capture_logs=True, concurrency=1, lease=3, grace=1)

    assert (texts(driver, refused), texts(driver, other)) == ([], ["here"])
    assert "saving captured log lines of 1 attempts, which are lost" in caplog.text


def test_an_older_schema_turns_the_capture_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_writer, "LOG_BATCH", 1)  # so that each job would have a warning of its own
    driver = MemoryDriver()

    def meddle(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "save":
            raise SchemaOutOfDate("3", "4", "run 'taskharbor migrate up'")
        return call()

    jobs = [enqueue(driver, "run") for _ in range(3)]
    drained(meddled(driver, meddle), {"run": lambda _job: LOG.info("here")}, capture_logs=True, concurrency=1)

    assert {stored(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}
    [line] = [each for each in caplog.messages if "not captured" in each]
    assert line == (
        "log lines are not captured: the store's schema is 3, this code needs 4: run 'taskharbor migrate up'"
    )


def test_a_process_without_handlers_still_prints_its_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_job: Job) -> None:
        LOG.info("of the job")
        LOG.warning("a warning")

    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    driver = MemoryDriver()
    job_id = enqueue(driver, "run")
    other = Worker(driver, queues=["other"], capture_logs=True)
    other.register("run", run)
    other.start()
    drained(driver, {"run": run}, capture_logs=True)
    other.stop()

    assert stream.getvalue().count("a warning\n") == 1
    assert "of the job" not in stream.getvalue()
    assert texts(driver, job_id) == ["of the job", "a warning"]


def test_a_job_completed_in_its_own_transaction_keeps_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    driver = SqliteDriver(file)

    def run(_job: Job, ctx: Context) -> None:
        LOG.info("paying")
        with sqlite3.connect(file) as db:
            ctx.complete_in(db)

    job_id = enqueue(driver, "run")
    drained(driver, {"run": run}, capture_logs=True)

    assert texts(driver, job_id) == ["paying"]
    driver.close()
