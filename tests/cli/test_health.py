"""`--health-port`: what real services on PostgreSQL answer, compared with the table in docs/probes.md."""

from __future__ import annotations

import http.client
import json
import re
import signal
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor import Client, JobRequest
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.drivers.connect import connect
from taskharbor.testing.sqs import Endpoint
from tests.support.cli_processes import LIMIT_SECONDS, NO_ENVIRON, started
from tests.support.postgres import database
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taskharbor.drivers.base import Driver
    from tests.support.cli_processes import Started

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = (DOCS / "probes.md").read_text("utf-8")
NO_ANSWER: Final = "no answer"
Answers = tuple[str, str]
"""The statuses of /livez and of /readyz."""
OK: Final = ("200", "200")
NOT_READY: Final = ("200", "503")
NOT_ALIVE: Final = ("503", "503")
STUCK_AFTER_SECONDS: Final = 60
STORE_AVAILABLE: Final = 'taskharbor_service_available{service="store"}'
SHORT_DEADLINE: Final = 1  # of calls of the store, in seconds
SLACK_SECONDS: Final = 15  # of a machine with other work
SHOP: Final = """
import asyncio
import pathlib
import re
import threading
from datetime import timedelta

from taskharbor import Harbor, PostgresDriver

def hook(event):
    if pathlib.Path("hang").exists():
        pathlib.Path("hung").touch()
        threading.Event().wait()

harbor = Harbor(PostgresDriver({conninfo!r}, deadline=timedelta(seconds={deadline})), hooks=[hook])

@harbor.task
def wait_for(began: str, end: str) -> None:
    pathlib.Path(began).touch()
    while not pathlib.Path(end).exists():
        threading.Event().wait(0.01)

@harbor.task
async def block() -> None:
    pathlib.Path("began").touch()
    threading.Event().wait()

@harbor.task
def hold_the_gil() -> None:
    pathlib.Path("began").touch()
    re.match("(a+)+$", 64 * "a" + "b")
"""


class Probed:
    """A running service and its port."""

    def __init__(self, service: Started) -> None:
        self.service = service
        self.took: dict[str, float] = {}
        wait_until(lambda: re.search(r"probes on http://[\d.]+:\d+: ", service.log()) is not None)
        found = re.search(r"probes on http://[\d.]+:(\d+): ", service.log())
        self._port = int(found[1]) if found else 0

    def answers(self) -> Answers:
        return self.status("/livez"), self.status("/readyz")

    def status(self, path: str) -> str:
        try:
            return str(self.get(path, timeout=1)[0])
        except TimeoutError:
            return NO_ANSWER

    def get(self, path: str, *, timeout: float = LIMIT_SECONDS) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)
        with closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def checks(self, path: str = "/readyz") -> dict[str, str]:
        """Return the checks that failed."""
        checks: dict[str, str] = json.loads(self.get(f"{path}?verbose")[1])["checks"]
        return {name: problem for name, problem in checks.items() if problem != "ok"}

    def expect(self, situation: str, *, within: float | None = None) -> None:
        """Wait until it answers as the table says about *situation*, and note how long that took."""
        answers, seconds = TABLE[situation]
        took = wait_until(lambda: self.answers() == answers, limit=(within or seconds) + SLACK_SECONDS)
        self.took[situation] = max(took, self.took.get(situation, 0.0))

    def stop(self) -> None:
        self.service.send_signal(signal.SIGTERM)
        assert self.service.wait(LIMIT_SECONDS) == 0


def rows() -> dict[str, tuple[Answers, float]]:
    section = PAGE.partition("| situation |")[2].partition("\n## ")[0]
    answer = r"(\S+|no answer)"
    found = re.findall(rf"^\| ([^|]+) \| {answer} \| {answer} \| (\d+) s \| [\d.]+ s \|$", section, re.MULTILINE)
    return {name: ((live, ready), float(seconds)) for name, live, ready, seconds in found}


TABLE: Final = rows()
BUSY: Final = "it runs, and all its slots are busy"
STARTING: Final = "it starts with `--wait`, and its store is away"
REFUSED: Final = "its store refuses connections"
SWALLOWED: Final = "its network swallows all packets"
LOCKED: Final = "another session locks the jobs, so that claims wait"
BACK: Final = "its store is back"
HUNG: Final = "a hook does not return, so that the claim loop hangs"
BLOCKED: Final = "an async handler blocks the event loop"
HELD: Final = "a handler holds the GIL"
STOPPING: Final = "it was asked to stop, and a job still runs"


@contextmanager
def probed(
    folder: Path,
    command: str,
    url: str,
    *args: str,
    deadline: int = SHORT_DEADLINE,
    environ: Mapping[str, str] = NO_ENVIRON,
) -> Iterator[Probed]:
    arguments = (command, "shop.py", "--health-port", "0", "--health-host", "127.0.0.1", *args)
    with started(folder, *arguments, app=SHOP.format(conninfo=url, deadline=deadline), environ=environ) as service:
        yield Probed(service)


def enqueue(driver: Driver, type_name: str, **payload: Any) -> None:
    Client(driver).enqueue(JobRequest(type=type_name, payload=payload))


def begin_job(driver: Driver, folder: Path) -> None:
    enqueue(driver, "wait_for", began=str(folder / "began"), end=str(folder / "end"))
    wait_until((folder / "began").exists)


def test_the_table_has_every_situation_that_is_tested() -> None:
    assert [*TABLE] == [BUSY, STARTING, REFUSED, SWALLOWED, LOCKED, BACK, HUNG, BLOCKED, HELD, STOPPING]
    assert {TABLE[each][0] for each in (BUSY, BACK)} == {OK}
    assert {TABLE[each][0] for each in (STARTING, REFUSED, SWALLOWED, LOCKED, STOPPING)} == {NOT_READY}
    assert {TABLE[each][0] for each in (HUNG, BLOCKED)} == {NOT_ALIVE}
    assert TABLE[HELD][0] == (NO_ANSWER, NO_ANSWER)


def test_the_times_in_the_table_were_measured() -> None:
    measured = json.loads((DOCS / "figures" / "probes.json").read_text("utf-8"))["figures"]
    shown = dict(re.findall(r"^\| ([^|]+) \|.*\| ([\d.]+) s \|$", PAGE, re.MULTILINE))

    assert shown == {situation: f"{seconds:.1f}" for situation, seconds in measured.items()}
    assert {*shown} == {*TABLE}
    assert [each for each, (_, limit) in TABLE.items() if measured[each] > limit] == []


def test_a_worker_answers_as_the_table_says(tmp_path: Path) -> None:
    assert {*outlast_outages(tmp_path)} == {BUSY, REFUSED, SWALLOWED, LOCKED, BACK, STOPPING}


def outlast_outages(folder: Path, *, deadline: int = SHORT_DEADLINE) -> dict[str, float]:
    """Bring about the situations in which a worker stays alive, and return how long its answers took."""
    with (
        database() as url,
        closing(connect(url)) as driver,
        Proxy(url) as proxy,
        probed(folder, "worker", proxy.url, "-c", "1", deadline=deadline) as worker,
    ):
        begin_job(driver, folder)
        worker.expect(BUSY)
        (folder / "end").touch()
        succeeded = 'taskharbor_jobs_finished_total{queue="default",status="SUCCEEDED"} 1.0'
        wait_until(lambda: succeeded in worker.get("/metrics")[1])
        assert 'taskharbor_worker_slots{state="total"} 1.0' in worker.get("/metrics")[1]
        assert 'taskharbor_loop_last_tick_timestamp_seconds{loop="janitor"}' in worker.get("/metrics")[1]

        proxy.refuse()
        worker.expect(REFUSED)
        assert "store" in worker.checks()
        proxy.accept()
        worker.expect(BACK)

        proxy.black_hole()
        worker.expect(SWALLOWED)
        proxy.heal()
        worker.expect(BACK)

        with psycopg.connect(url) as db:
            db.execute("LOCK TABLE th_jobs IN ACCESS EXCLUSIVE MODE")
            worker.expect(LOCKED)
            assert "claims" in worker.checks()
        worker.expect(BACK)

        for name in ("began", "end"):
            (folder / name).unlink()
        begin_job(driver, folder)
        worker.service.send_signal(signal.SIGTERM)
        worker.expect(STOPPING)
        assert worker.checks() == {"shutdown": "the service is stopping"}
        (folder / "end").touch()
        assert worker.service.wait(LIMIT_SECONDS) == 0
        return worker.took


def hang_a_hook(driver: Driver, folder: Path) -> None:
    (folder / "hang").touch()
    enqueue(driver, "block")
    wait_until((folder / "hung").exists)


def block_the_event_loop(driver: Driver, folder: Path) -> None:
    enqueue(driver, "block")
    wait_until((folder / "began").exists)


@pytest.mark.parametrize("situation", [HUNG, BLOCKED])
def test_a_worker_with_a_stuck_loop_answers_as_the_table_says(situation: str, tmp_path: Path) -> None:
    get_stuck(situation, tmp_path, stuck_after=1)


def get_stuck(situation: str, folder: Path, *, stuck_after: int) -> float:
    """Let a loop of a worker hang, and return how long its answers took."""
    begin, check = {HUNG: (hang_a_hook, "loop:source"), BLOCKED: (block_the_event_loop, "event-loop")}[situation]
    with (
        database() as url,
        closing(connect(url)) as driver,
        probed(folder, "worker", url, "--health-stuck-after", f"{stuck_after}s") as worker,
    ):
        wait_until(lambda: worker.answers() == OK)
        began_at = time.monotonic()
        begin(driver, folder)
        worker.expect(situation, within=TABLE[situation][1] - STUCK_AFTER_SECONDS + stuck_after)

        assert check in worker.checks("/livez")
        assert time.monotonic() - began_at >= stuck_after
        return worker.took[situation]


def test_a_handler_that_holds_the_gil_stops_the_answers(tmp_path: Path) -> None:
    hold_the_gil(tmp_path)


def hold_the_gil(folder: Path) -> float:
    with database() as url, closing(connect(url)) as driver, probed(folder, "worker", url) as worker:
        wait_until(lambda: worker.answers() == OK)
        enqueue(driver, "hold_the_gil")
        wait_until((folder / "began").exists)
        worker.expect(HELD)
        return worker.took[HELD]


def test_a_service_that_waits_for_its_store_is_alive_and_not_ready(tmp_path: Path) -> None:
    wait_for_the_store(tmp_path)


def wait_for_the_store(folder: Path) -> float:
    with database() as url, Proxy(url) as proxy:
        proxy.refuse()
        with probed(folder, "worker", proxy.url, "--wait") as worker:
            worker.expect(STARTING)
            assert worker.checks() == {"started": "waits for its store"}
            assert f"{STORE_AVAILABLE} 0.0" in worker.get("/metrics")[1]
            proxy.accept()
            wait_until(lambda: worker.answers() == OK)
            assert f"{STORE_AVAILABLE} 1.0" in worker.get("/metrics")[1]
            worker.stop()
            return worker.took[STARTING]


def test_a_janitor_is_alive_and_not_ready_while_its_store_is_away(tmp_path: Path) -> None:
    with database() as url, Proxy(url) as proxy, probed(tmp_path, "janitor", proxy.url) as janitor:
        wait_until(lambda: janitor.answers() == OK)
        assert f"{STORE_AVAILABLE} 1.0" in janitor.get("/metrics")[1]
        proxy.refuse()
        wait_until(lambda: janitor.answers() == NOT_READY)
        wait_until(lambda: f"{STORE_AVAILABLE} 0.0" in janitor.get("/metrics")[1])


def test_a_janitor_exports_the_gauges_of_its_store_if_asked(tmp_path: Path) -> None:
    waiting = 'taskharbor_jobs{queue="default",status="PENDING"}'
    with database() as url:
        with closing(connect(url)) as driver:
            enqueue(driver, "wait_for", began="began", end="end")
        with probed(tmp_path, "janitor", url, "--metrics") as janitor:
            wait_until(lambda: f"{waiting} 1.0" in janitor.get("/metrics")[1])
        with probed(tmp_path, "janitor", url) as janitor:
            wait_until(lambda: janitor.answers() == OK)
            assert waiting not in janitor.get("/metrics")[1]


def test_an_enqueuer_is_not_ready_while_it_cannot_send(tmp_path: Path) -> None:
    with database() as url, closing(connect(url)) as driver, Endpoint.start(seed=1) as endpoint:
        environ = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_SQS": endpoint.url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        with probed(tmp_path, "enqueuer", url, "-q", "default", environ=environ) as enqueuer:
            wait_until(lambda: enqueuer.answers() == OK)
            enqueue(driver, "block")  # no queue of SQS was set up
            wait_until(lambda: enqueuer.answers() == NOT_READY)
            assert enqueuer.checks() == {"queue:default": "sending failed"}
            enqueuer.stop()


def test_the_options_are_read_from_the_environment(tmp_path: Path) -> None:
    app = (
        "from taskharbor import Harbor\nharbor = Harbor('sqlite:///jobs.db')\n@harbor.task\ndef greet() -> None: ...\n"
    )
    environ = {"TASKHARBOR_HEALTH_PORT": "0", "TASKHARBOR_HEALTH_HOST": "127.0.0.1"}
    with started(tmp_path, "worker", "shop.py", app=app, environ=environ) as service:
        worker = Probed(service)
        wait_until(lambda: worker.answers() == OK)
        worker.stop()


@pytest.mark.usefixtures("_nothing_starts", "_in_a_folder")
@pytest.mark.parametrize(
    ("name", "value"),
    [("TASKHARBOR_HEALTH_PORT", "http"), ("TASKHARBOR_HEALTH_PORT", "65536"), ("TASKHARBOR_HEALTH_STUCK_AFTER", "5")],
)
def test_an_invalid_variable_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)

    assert run(cli, ["janitor", "--url", "sqlite:///jobs.db"]) == ExitCode.USAGE

    assert name in capsys.readouterr().err


@pytest.mark.usefixtures("_nothing_starts", "_in_a_folder")
def test_gauges_that_no_port_would_answer_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["janitor", "--url", "sqlite:///jobs.db", "--metrics"]) == ExitCode.USAGE

    assert "--metrics needs --health-port" in capsys.readouterr().err
