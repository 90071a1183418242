from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.client import Client
from taskharbor.core.request import JobRequest
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.sqs import Endpoint
from tests.support.cli_processes import python
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskharbor.core.ids import JobId

SECRETS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Set and return the environment for a local SQS endpoint."""
    with Endpoint.start(seed=1) as endpoint:
        environ = {**SECRETS, "AWS_ENDPOINT_URL_SQS": endpoint.url, "AWS_EC2_METADATA_DISABLED": "true"}
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield environ


def _json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("environment")
def test_setup_makes_the_queues_and_can_be_called_again(capsys: pytest.CaptureFixture[str]) -> None:
    for queues in (["-q", "mail,default"], ["-q", "mail", "--queues", "default"]):
        assert run(cli, ["sqs", "setup", *queues, "--json"]) == ExitCode.OK

        assert _json(capsys)["queues"] == {
            ".unreadable": "taskharbor-unreadable",
            ".dead-events": "taskharbor-dead-events",
            "mail": "taskharbor-mail",
            "default": "taskharbor-default",
        }


@pytest.mark.usefixtures("environment")
def test_status_shows_how_many_messages_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    run(cli, ["sqs", "setup", "-q", "mail"])
    capsys.readouterr()

    assert run(cli, ["sqs", "status", "-q", "mail"]) == ExitCode.OK

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "queue\tsqs_name\tready\tin_flight\tdelayed\toldest_age_seconds",
        "mail\ttaskharbor-mail\t0\t0\t0\t-",
    ]


@pytest.mark.usefixtures("environment")
def test_status_shows_for_how_long_the_oldest_job_is_due(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        now = driver.inspector.now()
        Client(driver).enqueue(JobRequest(type="run", queue="mail", scheduled_for=now - timedelta(minutes=5)))
        Client(driver).enqueue(JobRequest(type="run", queue="later", delay=timedelta(minutes=5)))
    run(cli, ["sqs", "setup", "-q", "mail,later"])
    capsys.readouterr()

    assert run(cli, ["sqs", "status", "-q", "mail,later", "--url", url, "--json"]) == ExitCode.OK

    ages = {each["queue"]: each["oldest_age_seconds"] for each in _json(capsys)["queues"]}
    assert ages["mail"] >= 300
    assert (ages["later"], ages[".dead-events"]) == (None, None)


@pytest.mark.usefixtures("environment")
def test_status_of_a_queue_that_is_missing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["sqs", "status", "-q", "mail"]) == ExitCode.USAGE

    assert "taskharbor-mail" in capsys.readouterr().err


def test_the_policy_of_each_role_allows_what_it_needs_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["sqs", "policy", "-q", "mail", "--account", "1", "--region", "eu-west-1"]) == ExitCode.OK

    policies = _json(capsys)
    allowed = {
        role: {
            (action, resource)
            for each in policy["Statement"]
            for action in each["Action"]
            for resource in each["Resource"]
        }
        for role, policy in policies.items()
    }
    mail, events = "arn:aws:sqs:eu-west-1:1:taskharbor-mail", "arn:aws:sqs:eu-west-1:1:taskharbor-dead-events"
    assert allowed["enqueuer"] == {("sqs:GetQueueUrl", mail), ("sqs:SendMessage", mail)}
    assert allowed["worker"] == {
        ("sqs:GetQueueUrl", mail),
        ("sqs:ReceiveMessage", mail),
        ("sqs:DeleteMessage", mail),
        ("sqs:ChangeMessageVisibility", mail),
        ("sqs:GetQueueUrl", events),
        ("sqs:SendMessage", events),
    }
    assert not {action for action, _ in allowed["setup"]} & {"sqs:SendMessage", "sqs:ReceiveMessage", "sqs:*"}


def test_the_policy_of_one_role_is_printed_as_iam_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["sqs", "policy", "--role", "enqueuer"]) == ExitCode.OK

    assert set(_json(capsys)) == {"Version", "Statement"}


@pytest.mark.parametrize("words", [["sqs", "--help"], ["sqs", "setup", "--help"], ["enqueuer", "--help"]], ids=" ".join)
def test_help_needs_no_boto3(words: list[str]) -> None:
    script = f"import sys; from taskharbor.cli import main; sys.argv = {['taskharbor', *words]!r}; main(); "

    assert python("-c", script + "sys.exit('boto3' in sys.modules)").returncode == 0


@pytest.mark.parametrize("command", ["enqueuer", "sqs setup"])
def test_a_queue_with_a_bad_name_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, [*command.split(), "-q", "no spaces"]) == ExitCode.USAGE

    assert "no spaces" in capsys.readouterr().err


APP: Final = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///{folder}/jobs.db")

@harbor.task
def greet() -> str:
    return "hello"

@harbor.schedule("0 2 * * *")
@harbor.task(queue="mail")
def remind() -> str:
    return "hello"
"""
JOBS: Final = {"greet": "default", "remind": "mail"}
OF_APP: Final = {"default": "taskharbor-default", "mail": "taskharbor-mail"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tasks.py"], OF_APP),
        ([], OF_APP),
        (["-q", "other"], {"other": "taskharbor-other"}),
        (["tasks.py", "-q", "other"], {"other": "taskharbor-other"}),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("environment", "_in_a_folder")
def test_the_queues_are_those_of_the_app_unless_they_are_named(
    words: list[str], expected: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.py").write_text(APP.format(folder=tmp_path))

    assert run(cli, ["sqs", "setup", *words, "--json"]) == ExitCode.OK
    made = {name: shown for name, shown in _json(capsys)["queues"].items() if not name.startswith(".")}
    assert run(cli, ["sqs", "status", *words, "--json"]) == ExitCode.OK
    shown = [row["queue"] for row in _json(capsys)["queues"] if not row["queue"].startswith(".")]
    assert run(cli, ["sqs", "policy", *words, "--role", "enqueuer"]) == ExitCode.OK
    allowed = {resource for each in _json(capsys)["Statement"] for resource in each["Resource"]}

    assert made == expected
    assert shown == [*expected]
    assert allowed == {f"arn:aws:sqs:*:*:{name}" for name in expected.values()}


@pytest.mark.usefixtures("_in_a_folder")
def test_status_shows_the_ages_of_the_apps_own_store(
    tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert environment
    (tmp_path / "tasks.py").write_text(APP.format(folder=tmp_path))
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        Client(driver).enqueue(JobRequest(type="remind", queue="mail"))
    run(cli, ["sqs", "setup"])
    capsys.readouterr()

    run(cli, ["sqs", "status", "--json"])

    ages = {row["queue"]: row["oldest_age_seconds"] for row in _json(capsys)["queues"]}
    assert (ages["mail"] >= 0, ages["default"]) == (True, None)


def test_why_reports_a_missing_enqueuer_and_then_a_missing_queue(
    tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.py").write_text(APP.format(folder=tmp_path))
    url = f"sqlite:///{tmp_path}/jobs.db"
    driver = SqliteDriver(tmp_path / "jobs.db")
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> None:
        command = [sys.executable, "-m", "taskharbor.cli", *words]
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True))

    def why() -> dict[str, Any]:
        """Enqueue a job, so that it is not claimed from the store because it is a minute late, and ask about it."""
        job_id = Client(driver).enqueue(JobRequest(type="remind", queue="mail")).id
        wait_until(lambda: said(job_id)["cause"] != "next")
        return said(job_id)

    def said(job_id: JobId) -> dict[str, Any]:
        capsys.readouterr()
        assert run(cli, ["jobs", "why", str(job_id), "--url", url, "--json"]) == ExitCode.OK
        return dict(_json(capsys))

    try:
        start("worker", "tasks.py", "--sqs")
        wait_until(lambda: bool(driver.inspector.delivery("mail")))
        alone = why()
        start("enqueuer", "tasks.py", "--period", "100ms")
        wait_until(lambda: why()["cause"] == "send-failed")
        missing = why()
    finally:
        driver.close()
        for process in processes:
            process.send_signal(signal.SIGTERM)
        ended = [(process.communicate(timeout=30)[1], process.returncode) for process in processes]

    assert [code for _, code in ended] == [0, 0], ended
    assert alone["cause"] == "no-enqueuer"
    assert "no enqueuer serves queue 'mail': start one: taskharbor enqueuer -q mail; " in alone["text"]
    assert "queue taskharbor-mail does not exist" in missing["text"]
    assert "create it with 'taskharbor sqs setup'" in missing["text"]
    assert "INFO    taskharbor.enqueuer: enqueuer started: taskharbor " in ended[1][0]
    assert f"; store {url}; queues default, mail\n" in ended[1][0]


def test_the_bundle_option_puts_several_jobs_into_one_message(
    tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    driver = SqliteDriver(tmp_path / "jobs.db")
    Client(driver).enqueue_many([JobRequest(type="run", queue="mail")] * 40)
    run(cli, ["sqs", "setup", "-q", "mail"])
    command = [sys.executable, "-m", "taskharbor.cli", "enqueuer", "-q", "mail", "--url", url, "--bundle", "10"]

    def ready() -> int:
        capsys.readouterr()
        run(cli, ["sqs", "status", "-q", "mail", "--json"])
        return int(_json(capsys)["queues"][0]["ready"])

    with closing(driver), subprocess.Popen(command, env=environment) as enqueuer:
        try:
            wait_until(lambda: ready() > 0)
            assert ready() == 10  # of four jobs each
        finally:
            enqueuer.send_signal(signal.SIGTERM)
            enqueuer.wait(30)


@pytest.mark.parametrize("bundle", ["0", "51", "many"])
def test_a_bundle_option_out_of_bounds_is_refused(
    bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["enqueuer", "-q", "mail", "--url", f"sqlite:///{tmp_path}/jobs.db", "--bundle", bundle]

    assert run(cli, words) == ExitCode.USAGE
    assert "bundle" in capsys.readouterr().err


@pytest.mark.usefixtures("_in_a_folder")
def test_jobs_of_all_queues_of_an_app_reach_a_worker_by_messages(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "tasks.py").write_text(APP.format(folder=tmp_path))
    driver = SqliteDriver(tmp_path / "jobs.db")
    ids = [Client(driver).enqueue(JobRequest(type=type, queue=queue, payload={})).id for type, queue in JOBS.items()]
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> None:
        command = [sys.executable, "-m", "taskharbor.cli", *words]
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True))

    try:
        assert run(cli, ["sqs", "setup"]) == ExitCode.OK
        start("enqueuer")
        start("worker", "--sqs")
        wait_until(lambda: {job.status for job in driver.inspector.get(ids).values()} == {Status.SUCCEEDED})
    finally:
        driver.close()
        for process in processes:
            process.send_signal(signal.SIGTERM)
        ended = [(process.communicate(timeout=30)[1], process.returncode) for process in processes]

    assert [code for _, code in ended] == [0, 0], ended
