"""`taskharbor worker` and `taskharbor janitor`: their options, and real processes on every durable store."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click
import pytest

from taskharbor import Client, JobRequest, Status
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.cli.options import duration, queues
from taskharbor.core.ids import new_token
from taskharbor.core.model import AttemptOutcome
from taskharbor.drivers.connect import connect
from tests.support.cli_processes import LIMIT_SECONDS, PYTHON, taskharbor
from tests.support.cli_processes import started as started_in
from tests.support.postgres import database
from tests.support.waiting import has_ended_by, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver
    from tests.support.cli_processes import Started

APP: Final = """
import asyncio
import logging
import pathlib
import threading

def greet(job):
    logging.getLogger("shop").info("hello %s", job.data["name"])
    return "greeted"

def stay(job, ctx):
    pathlib.Path(job.data["sign"]).touch()
    while not ctx.is_cancelled:
        threading.Event().wait(0.01)
    ctx.raise_if_cancelled()

def never_return(job):
    pathlib.Path(job.data["sign"]).touch()
    threading.Event().wait()

async def leave_a_thread(job):
    await asyncio.to_thread(threading.Event().wait)

handlers = {"greet": greet, "stay": stay, "never-return": never_return, "leave-a-thread": leave_a_thread}
"""
HARBOR: Final = """
from taskharbor import Harbor

shop = Harbor({url!r})

@shop.task(queue="mail")
def greet(name: str) -> str:
    return f"hello {{name}}"

app = shop
"""
SECOND: Final = timedelta(seconds=1)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with database() as url:
        yield url


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    driver = connect(url)
    yield driver
    driver.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_runs_jobs_until_a_signal_and_then_exits_with_0(
    number: signal.Signals, url: str, driver: Driver, tmp_path: Path
) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url) as worker:
        job_id = enqueue(driver, "greet", name="Ada")
        wait_until(lambda: status_of(driver, job_id) is Status.SUCCEEDED)

        worker.send_signal(number)

        assert worker.wait(LIMIT_SECONDS) == 0
    log = worker.log()
    assert re.search(
        rf" INFO    taskharbor.worker: job {job_id} \(greet\) attempt 1 of 20: succeeded in [\d.]+ ms\n", log
    )
    assert f"shop: [{str(job_id)[-12:]}] hello Ada\n" in log
    assert log.endswith(" stopped\n")


def test_a_job_that_outlasts_the_grace_time_is_released(url: str, driver: Driver, tmp_path: Path) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "--grace", "10ms") as worker:
        job_id = enqueue(driver, "stay", sign=str(tmp_path / "sign"))
        wait_until((tmp_path / "sign").exists)

        worker.send_signal(signal.SIGTERM)

        assert worker.wait(LIMIT_SECONDS) == 0
    job = driver.inspector.get([job_id])[job_id]
    [attempt] = driver.inspector.attempts([job_id])
    assert (job.status, job.attempt_count) == (Status.PENDING, 0)
    assert attempt.outcome is AttemptOutcome.RELEASED


def test_a_second_signal_ends_a_worker_immediately(url: str, driver: Driver, tmp_path: Path) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "--grace", "1h") as worker:
        job_id = enqueue(driver, "never-return", sign=str(tmp_path / "sign"))
        wait_until((tmp_path / "sign").exists)
        worker.send_signal(signal.SIGTERM)
        wait_until(lambda: " stopping: " in worker.log())

        wait_until(lambda: has_ended_by(worker, signal.SIGTERM))  # signals that arrive together are one

        assert worker.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
    assert status_of(driver, job_id) is Status.PROCESSING
    first = " stopping: 1 job is running; waiting up to 1 h; press Ctrl-C again to exit now\n"
    second = ": exiting now; 1 running job can run elsewhere when the leases expire, within 30 s\n"
    assert first in worker.log()
    assert worker.log().endswith(second)


def test_a_worker_that_lost_half_of_its_slots_ends_with_12(url: str, driver: Driver, tmp_path: Path) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "-c", "2", "--lease", "2s") as worker:
        payload = {"sign": str(tmp_path / "sign")}
        request = JobRequest(type="never-return", payload=payload, timeout=timedelta(milliseconds=500), max_attempts=1)
        job_id = Client(driver).enqueue(request).id

        code = worker.wait(LIMIT_SECONDS)

        assert code == ExitCode.SLOTS_LOST
        assert "in never_return" in worker.log()
        assert "1 of 2 slots lost; draining, then ending with exit code 12" in worker.log()
    assert status_of(driver, job_id) is Status.DEAD


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_thread_left_by_a_handler_does_not_keep_its_worker_running(url: str, driver: Driver, tmp_path: Path) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "--max-jobs", "1") as worker:
        job_id = Client(driver).enqueue(JobRequest(type="leave-a-thread", timeout=0.2, max_attempts=1)).id

        code = worker.wait(LIMIT_SECONDS)

        assert code == ExitCode.RECYCLED
        assert worker.log().endswith("exiting although threads are still running: asyncio_0\n")
    assert status_of(driver, job_id) is Status.DEAD
    assert driver.inspector.workers() == []


def test_unknown_types_are_dead_lettered_or_left_as_configured(url: str, driver: Driver, tmp_path: Path) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "--unknown-types", "dead-letter") as worker:
        at_once = enqueue(driver, "unheard-of")
        wait_until(lambda: status_of(driver, at_once) is Status.DEAD)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0

    left = enqueue(driver, "unheard-of")
    driver.reschedule([left], scheduled_for=driver.inspector.now() - timedelta(minutes=6))
    with started(tmp_path, "worker", "shop.py", "--url", url, "--unknown-types", "leave") as worker:
        run_job = enqueue(driver, "greet", name="Ada")
        wait_until(lambda: status_of(driver, run_job) is Status.SUCCEEDED)
        assert status_of(driver, left) is Status.PENDING
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0

    fresh = enqueue(driver, "unheard-of")
    with started(tmp_path, "worker", "shop.py", "--url", url) as worker:
        wait_until(lambda: status_of(driver, left) is Status.DEAD)
        assert status_of(driver, fresh) is Status.PENDING
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0


@pytest.mark.parametrize("options", [["-q", "mail:2,reports"], ["-q", "mail:2", "--queues", "reports"]])
def test_a_worker_serves_only_its_queues(url: str, driver: Driver, tmp_path: Path, options: list[str]) -> None:
    other = enqueue(driver, "greet", name="Grace")
    with started(tmp_path, "worker", "shop.py", "--url", url, *options) as worker:
        served = [enqueue(driver, "greet", queue=queue, name="Ada") for queue in ("mail", "reports")]
        wait_until(lambda: {status_of(driver, job_id) for job_id in served} == {Status.SUCCEEDED})
        [record] = driver.inspector.workers()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0

    assert record.queues == ("mail", "reports")
    assert status_of(driver, other) is Status.PENDING


def test_the_url_option_takes_precedence_over_the_harbors_store(url: str, driver: Driver, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    app = HARBOR.format(url=url)
    job_id = enqueue(driver, "greet", queue="mail", name="Ada")
    with started(tmp_path, "worker", "shop.py", "--url", other, app=app) as worker:
        wait_until(lambda: "1 task: greet" in worker.log())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0
    assert status_of(driver, job_id) is Status.PENDING

    with started(tmp_path, "worker", "shop.py", app=app) as worker:
        wait_until(lambda: status_of(driver, job_id) is Status.SUCCEEDED)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0


def test_json_log_lines_of_handlers_contain_job_and_attempt(url: str, driver: Driver, tmp_path: Path) -> None:
    with started(tmp_path, "worker", "shop.py", "--url", url, "--json") as worker:
        job_id = enqueue(driver, "greet", name="Ada")
        wait_until(lambda: status_of(driver, job_id) is Status.SUCCEEDED)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT_SECONDS) == 0

    lines = [json.loads(line) for line in worker.log().splitlines()]
    assert {*lines[0]} == {"at", "level", "logger", "message"}
    [of_handler] = [line for line in lines if line["logger"] == "shop"]
    assert (of_handler["message"], of_handler["job_id"], of_handler["attempt"]) == ("hello Ada", str(job_id), 1)


def test_a_janitor_expires_leases_and_exits_with_0_at_a_signal(url: str, driver: Driver, tmp_path: Path) -> None:
    job_id = enqueue(driver, "greet", name="Ada")
    lease = timedelta(milliseconds=1)
    driver.reserve("default", token=new_token(), worker="gone", lease=lease, limit=1, overdue_after=SECOND)
    with started(tmp_path, "janitor", "--url", url) as janitor:
        wait_until(lambda: status_of(driver, job_id) is Status.FAILED)

        janitor.send_signal(signal.SIGTERM)

        assert janitor.wait(LIMIT_SECONDS) == 0
    assert janitor.log().endswith("janitor stopped\n")


PUBLISHING: Final = """
import pathlib

from taskharbor import Harbor

def publish(event):
    with open({file!r}, "a") as file:
        print(event.event_id, file=file)

shop = Harbor(publisher=publish, hooks=[lambda fact: pathlib.Path({file!r} + ".hook").write_text(fact.reason)])
"""


def test_a_janitor_reports_a_death_and_publishes_its_event(url: str, driver: Driver, tmp_path: Path) -> None:
    events = tmp_path / "events"
    job_id = Client(driver).enqueue(JobRequest(type="greet", max_attempts=1)).id
    lease = timedelta(milliseconds=1)
    driver.reserve("default", token=new_token(), worker="gone", lease=lease, limit=1, overdue_after=SECOND)
    app = PUBLISHING.format(file=str(events))
    with started(tmp_path, "janitor", "shop.py:shop", "--url", url, app=app) as janitor:
        wait_until(lambda: events.exists() and events.read_text() == f"{job_id}:1\n")
        wait_until(lambda: driver.inspector.outbox([job_id])[0].published_at is not None)
        janitor.send_signal(signal.SIGTERM)
        assert janitor.wait(LIMIT_SECONDS) == 0

    line = f"job {job_id} (greet) attempt 1: lease expired (worker gone); now a dead letter: attempts exhausted\n"
    assert line in janitor.log()
    assert events.with_name("events.hook").read_text() == "attempts exhausted"


@pytest.mark.usefixtures("_in_a_folder", "_nothing_starts")
@pytest.mark.parametrize("command", [["worker", "shop.py"], ["janitor"]])
def test_an_unavailable_store_ends_with_3_and_one_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(APP)

    ended = run(cli, [*command, "--url", f"sqlite:///{tmp_path}/none/jobs.db"])

    assert ended == ExitCode.CANNOT_CONNECT
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["worker", "janitor"])
def test_help_imports_neither_the_worker_nor_a_store(command: str) -> None:
    script = f"import sys, taskharbor.cli as c; sys.argv = ['th', '{command}', '--help']; c.main(); "
    loaded = "[name for name in sys.modules if name.startswith(('taskharbor.worker', 'taskharbor.drivers', 'asyncio'))]"

    done = subprocess.run(
        [*PYTHON, "-c", f"{script}print({loaded}, file=sys.stderr)"], capture_output=True, text=True, check=True, env={}
    )

    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25s", timedelta(seconds=25)),
        ("500ms", timedelta(milliseconds=500)),
        ("2m", timedelta(minutes=2)),
        ("1.5h", timedelta(minutes=90)),
        ("0s", timedelta(0)),
        ("7d", timedelta(days=7)),
    ],
)
def test_a_duration_is_a_number_with_its_unit(text: str, value: timedelta) -> None:
    assert duration(text) == value


@pytest.mark.parametrize("text", ["25", "", "s", "-1s", "1e3s", "2 weeks", "1m30s", "٣s", "367d", "nan s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        duration(text)


def test_queues_are_names_with_or_without_a_limit() -> None:
    assert queues("mail:10, default") == {"mail": 10, "default": None}


@pytest.mark.parametrize("text", ["", "mail:", "mail:0", "mail:-1", "mail:ten", ":5", "mail,,default", "mail,mail:2"])
def test_what_names_no_queue_or_no_limit_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        queues(text)


@pytest.mark.usefixtures("_nothing_starts")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            "--grace 25",
            "invalid value for '--grace': '25': write a duration with its unit, such as 500ms, 25s or 7d; .*",
        ),
        ("--lease 10ms", "invalid value for '--lease': '10ms': at least 100ms; .*"),
        ("--poll 0s", "invalid value for '--poll': '0s': at least 10ms; .*"),
        (
            "-q mail:0",
            "invalid value for '-q' / '--queues': 'mail:0': write a queue's name, or .*, such as mail:10; .*",
        ),
        ("-q mail,mail:2", "invalid value for '-q' / '--queues': 'mail': a queue may be named only once; .*"),
        ("-q two/words", "queue is 'two/words': must match .*"),
        ("-c 0", "invalid value for '-c' / '--concurrency': .*"),
        ("--prefetch -1", "invalid value for '--prefetch': .*"),
        (
            "--unknown-types keep",
            r"invalid value for '--unknown-types': 'keep': write dead-letter:5m \(.*\(at once\) or leave; .*",
        ),
        (
            "--unknown-types dead-letter:5",
            "invalid value for '--unknown-types': 'dead-letter:5': write dead-letter:5m .*",
        ),
    ],
)
@pytest.mark.usefixtures("_in_a_folder")
def test_an_option_that_cannot_be_read_ends_with_2_and_says_how_to_write_it(
    options: str,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "shop.py").write_text(APP)

    ended = run(cli, ["worker", "shop.py", "--url", "memory://", *options.split(maxsplit=1)])

    assert ended == ExitCode.USAGE
    assert re.fullmatch(f"error: {line}\n", capsys.readouterr().err)


def test_a_worker_without_a_store_says_where_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)

    done = taskharbor("worker", str(tmp_path / "shop.py"))

    assert done.returncode == ExitCode.USAGE
    assert "TASKHARBOR_URL" in done.stderr


def started(folder: Path, *args: str, app: str = APP) -> AbstractContextManager[Started]:
    return started_in(folder, *args, app=app)


def enqueue(driver: Driver, type: str, *, queue: str = "default", **payload: Any) -> JobId:
    return Client(driver).enqueue(JobRequest(type=type, queue=queue, payload=payload)).id


def status_of(driver: Driver, job_id: JobId) -> Status:
    return driver.inspector.get([job_id])[job_id].status
