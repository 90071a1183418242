"""What the commands that run until a signal write to their log, as text and as JSON lines."""

from __future__ import annotations

import json
import logging
import re
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click
import pytest

from taskharbor import Client, Harbor, JobRequest, Status
from taskharbor.cli.log_output import JsonFormatter, log_to_stderr
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.cli.options import log_options
from taskharbor.cli.startup import store_name
from taskharbor.cli.worker_service import warn_about_queues
from taskharbor.core.model import WorkerRecord
from taskharbor.core.states import FINAL
from taskharbor.drivers.connect import connect
from tests.support.cli_processes import LIMIT_SECONDS, started
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver
    from tests.support.cli_processes import Started

SHOP: Final = """
import logging
from datetime import timedelta

from taskharbor import Fixed, Harbor, RetryPolicy

harbor = Harbor()

@harbor.task
def greet(name: str) -> str:
    logging.getLogger("shop").debug("greeting %s", name)
    logging.getLogger("shop").info("hello %s", name)
    return f"hello {name}"

@harbor.task(retry=RetryPolicy(backoff=Fixed(timedelta(hours=1))))
def charge(order: int) -> None:
    raise ConnectionError(f"order {order} refused")

@harbor.task(max_attempts=1)
def export(day: str) -> None:
    raise LookupError(f"no rows of {day}")
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    driver = connect(url)
    yield driver
    driver.close()


def enqueue(driver: Driver, type: str, **payload: Any) -> JobId:
    return Client(driver).enqueue(JobRequest(type=type, payload=payload, max_attempts=1 if type == "export" else 20)).id


def ran(driver: Driver, tmp_path: Path, url: str, *options: str) -> tuple[dict[str, JobId], Started]:
    """Run one job that succeeds, one that fails and one that dies; return their ids and the ended worker."""
    jobs = {
        "greet": enqueue(driver, "greet", name="Ada"),
        "charge": enqueue(driver, "charge", order=7),
        "export": enqueue(driver, "export", day="Monday"),
    }
    with started(tmp_path, "worker", "shop.py", "--url", url, *options, app=SHOP) as worker:
        wait_until(lambda: all(each.status in {*FINAL, Status.FAILED} for each in stored(driver, *jobs.values())))
        wait_until(lambda: all(str(job_id) in worker.log() for job_id in [*jobs.values()][1:]))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0
    return jobs, worker


def stored(driver: Driver, *job_ids: JobId) -> list[Any]:
    return list(driver.inspector.get(job_ids).values())


def test_each_attempt_is_one_line_and_a_death_has_its_traceback(driver: Driver, url: str, tmp_path: Path) -> None:
    jobs, worker = ran(driver, tmp_path, url)

    took = r"[\d.]+ m?s"
    log = worker.log()
    assert re.search(rf" INFO    \S+: job {jobs['greet']} \(greet\) attempt 1 of 20: succeeded in {took}\n", log)
    assert re.search(
        rf" WARNING \S+: job {jobs['charge']} \(charge\) attempt 1 of 20: failed after {took}; retrying in 1 h: "
        "ConnectionError: order 7 refused\n",
        log,
    )
    assert re.search(
        rf" ERROR   \S+: job {jobs['export']} \(export\) attempt 1 of 1: failed after {took}; now a dead letter: "
        r"attempts exhausted: LookupError\n  Traceback \(most recent call last\):\n",
        log,
    )
    assert log.count("no rows of Monday") == 1
    assert log.count("order 7 refused") == 1


def test_json_lines_have_the_data_of_an_attempt_as_fields(driver: Driver, url: str, tmp_path: Path) -> None:
    jobs, worker = ran(driver, tmp_path, url, "--json")

    lines = [json.loads(line) for line in worker.log().splitlines()]
    by_job = {line["job_id"]: line for line in lines if "job_id" in line and line["logger"] == "taskharbor.worker"}
    [own] = [line for line in lines if line["logger"] == "shop"]
    success, failure, death = (by_job[str(jobs[name])] for name in ("greet", "charge", "export"))
    every = {"at", "level", "logger", "message", "job_id", "type", "queue", "attempt", "max_attempts", "duration_ms"}
    every |= {"worker"}
    assert {*own} == {"at", "level", "logger", "message", "job_id", "type", "queue", "attempt", "worker"}
    assert own["job_id"] == str(jobs["greet"])
    assert {*success} == every
    assert {*failure} == {*every, "error_class", "error", "retry_at"}
    assert {*death} == {*every, "error_class", "error", "traceback"}
    assert (failure["error_class"], failure["error"]) == ("ConnectionError", "order 7 refused")
    assert (death["type"], death["queue"], death["attempt"], death["max_attempts"]) == ("export", "default", 1, 1)
    assert death["traceback"].endswith("\nLookupError: no rows of Monday\n")


def test_a_handlers_own_line_shows_the_end_of_its_job_id(driver: Driver, url: str, tmp_path: Path) -> None:
    jobs, worker = ran(driver, tmp_path, url)

    assert f" INFO    shop: [{str(jobs['greet'])[-12:]}] hello Ada\n" in worker.log()
    assert driver.attempt_logs.read([jobs["greet"]]) == []


def test_lines_are_captured_below_the_level_of_the_log(driver: Driver, url: str, tmp_path: Path) -> None:
    jobs, worker = ran(driver, tmp_path, url, "--quiet", "--capture-logs", "debug")

    [log] = driver.attempt_logs.read([jobs["greet"]])
    assert [(line.level, line.text) for line in log.lines] == [("DEBUG", "greeting Ada"), ("INFO", "hello Ada")]
    assert "hello Ada" not in worker.log()
    assert " INFO " not in worker.log()


def test_quiet_logs_warnings_and_errors_only(driver: Driver, url: str, tmp_path: Path) -> None:
    jobs, worker = ran(driver, tmp_path, url, "--quiet")

    assert " INFO " not in worker.log()
    assert str(jobs["greet"]) not in worker.log()


QUEUES: Final = """
from taskharbor import Harbor

harbor = Harbor()

@harbor.task(queue="mail")
def send() -> None: ...

@harbor.task(queue="images")
def resize() -> None: ...
"""


STUCK: Final = """
import threading
from taskharbor import Harbor

harbor = Harbor()

@harbor.task(timeout=0.1, max_attempts=1)
def wait() -> None:
    threading.Event().wait(600)
"""


def test_a_stop_does_not_claim_to_wait_for_handlers_that_ignore_their_timeout(
    driver: Driver, url: str, tmp_path: Path
) -> None:
    Client(driver).enqueue(JobRequest(type="wait", payload={}, max_attempts=1, timeout=timedelta(seconds=0.1)))
    with started(tmp_path, "worker", "shop.py", "--url", url, "--lease", "1s", app=STUCK) as worker:
        wait_until(lambda: "1 of 16 slots lost" in worker.log())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0

    waiting_for = "no jobs are running; not waiting for 1 handler still running long after the timeout\n"
    assert f" stopping: {waiting_for}" in worker.log()


def first_lines(tmp_path: Path, url: str, *options: str, app: str = QUEUES) -> list[str]:
    """Start a worker, stop it, and return what it logged before that."""
    with started(tmp_path, "worker", "shop.py", "--url", url, *options, app=app) as worker:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0
    *lines, stopping, _ = worker.log().splitlines()
    assert stopping.endswith(" stopping: no jobs are running")
    return [line.partition(" taskharbor.")[2] for line in lines]


def test_the_first_line_says_what_a_worker_runs_and_how(url: str, tmp_path: Path) -> None:
    [line] = first_lines(tmp_path, url, "--lease", "90s", "-q", "mail:4,images:2")

    assert re.fullmatch(
        r"worker: worker \S+ started: taskharbor [\d.]+; "
        rf"store {url}; queues mail \(4\), images \(2\); concurrency 6; prefetch 0; 2 tasks: resize, send; "
        "lease 90 s; delivery polling; jobs of unknown types: dead letters 5 min after they are due",
        line,
    )


def test_many_tasks_are_counted_and_some_are_named(url: str, tmp_path: Path) -> None:
    many = "handlers = {f'task-{n:02}': print for n in range(12)}"

    [line] = first_lines(tmp_path, url, "--unknown-types", "leave", "--prefetch", "70", app=many)

    names = ", ".join(f"task-{n:02}" for n in range(10))
    assert f"; concurrency 16; prefetch 70; 12 tasks: {names} and 2 more; " in line
    assert line.endswith("; jobs of unknown types: left for other workers")


def test_a_queue_without_tasks_and_a_task_without_a_worker_are_warned_of(url: str, tmp_path: Path) -> None:
    _, unused, unserved = first_lines(tmp_path, url, "-q", "mail,reports")

    assert unused == "worker: queue reports: served, but no task of this app has it"
    assert unserved == (
        "worker: queue images: no live worker serves it; add it to --queues, or start another worker for 1 task: resize"
    )


def test_a_queue_that_may_be_mistyped_is_reported_with_the_nearest_one(caplog: pytest.LogCaptureFixture) -> None:
    with Harbor("memory://") as harbor:

        @harbor.task(queue="mail")
        def send() -> None: ...

        warn_about_queues(harbor.worker(queues=["mial", "mail"]), harbor, ["mial", "mail"])

    assert caplog.messages == ["queue mial: served, but no task of this app has it; did you mean 'mail'?"]


def test_a_queue_that_another_worker_serves_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with Harbor("memory://") as harbor:

        @harbor.task(queue="images")
        def resize() -> None: ...

        now = harbor.driver.inspector.now()
        worker = harbor.worker(queues=["mail"])
        warn_about_queues(worker, harbor, [])
        before = len(caplog.messages)
        other = WorkerRecord(
            id="other", host="h", pid=1, queues=("images",), types=("resize",), concurrency=1, started_at=now
        )
        harbor.driver.maintenance.record_worker(other)
        warn_about_queues(worker, harbor, [])

    assert (before, len(caplog.messages)) == (1, 1)


def test_the_password_of_the_store_is_not_logged() -> None:
    harbor = Harbor("postgresql://app:hunter2@db/app")

    assert store_name(harbor) == "postgresql://app:***@db/app"


def test_a_json_line_has_the_extra_attributes_of_any_record() -> None:
    record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "msg": "paid %d", "args": (7,), "order": 7})

    line = json.loads(JsonFormatter().format(record))

    assert {*line} == {"at", "level", "logger", "message", "order"}
    assert (line["message"], line["order"]) == ("paid 7", 7)


@pytest.mark.parametrize("command", ["worker", "janitor", "enqueuer", "api", "dev"])
def test_every_command_that_logs_has_the_options_of_the_log(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, [command, "--help"]) == ExitCode.OK

    assert "--log-level [debug|info|warning|error]" in capsys.readouterr().out


def test_the_help_of_worker_says_what_to_do_about_cpu_work(capsys: pytest.CaptureFixture[str]) -> None:
    run(cli, ["worker", "--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert "For tasks that compute, a higher concurrency does not help: run one process for each core" in text


@pytest.mark.parametrize(
    ("environ", "options", "level"),
    [
        ("", [], None),
        ("ERROR", [], "ERROR"),
        ("error", ["--quiet"], "warning"),
        ("", ["--log-level", "Debug"], "debug"),
    ],
)
def test_the_level_comes_from_the_option_else_from_the_environment(
    environ: str, options: list[str], level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHARBOR_LOG_LEVEL", environ)
    found = list[str | None]()

    @click.command()
    @log_options
    def command(*, log_level: str | None) -> None:
        found.append(log_level)

    command.main(options, standalone_mode=False)

    assert found == [level]


def test_an_unknown_level_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASKHARBOR_LOG_LEVEL", "loud")

    assert run(cli, ["janitor", "--url", "memory://"]) == ExitCode.USAGE
    assert "'loud': TASKHARBOR_LOG_LEVEL must be one of debug, info, warning, error" in capsys.readouterr().err


@pytest.mark.parametrize(("configured", "expected"), [(logging.NOTSET, logging.INFO), (logging.DEBUG, logging.DEBUG)])
def test_debug_of_the_aws_sdk_is_logged_only_if_the_app_configures_it(
    configured: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(configured, "botocore")  # and afterwards both levels are what they were
    caplog.set_level(logging.NOTSET, "taskharbor")

    log_to_stderr(as_json=False, level="debug")

    assert logging.getLogger("botocore").level == expected


@pytest.mark.parametrize("name", ["botocore", "django.tasks"])
@pytest.mark.parametrize(("configured", "expected"), [(logging.NOTSET, logging.WARNING), (logging.INFO, logging.INFO)])
def test_info_of_repetitive_loggers_is_logged_only_if_the_app_configures_it(
    configured: int, expected: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger(name)
    monkeypatch.setattr(logger, "level", configured)

    log_to_stderr(as_json=False, level=None)

    assert logger.level == expected
