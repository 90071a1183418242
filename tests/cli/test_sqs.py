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
    for _ in range(2):
        assert run(cli, ["sqs", "setup", "-q", "mail,default", "--json"]) == ExitCode.OK

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


def test_jobs_reach_a_worker_by_messages(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "tasks.py").write_text("handlers = {'greet': lambda job: 'hello'}\n")
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert run(cli, ["sqs", "setup"]) == ExitCode.OK
    assert run(cli, ["migrate", "up", "--url", url]) == ExitCode.OK
    driver = SqliteDriver(tmp_path / "jobs.db")
    job_id = Client(driver).enqueue(JobRequest(type="greet")).id
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> None:
        command = [sys.executable, "-m", "taskharbor.cli", *words, "--url", url]
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True))

    try:
        start("enqueuer")
        start("worker", "tasks.py", "--sqs")
        wait_until(lambda: driver.inspector.get([job_id])[job_id].status is Status.SUCCEEDED)
    finally:
        driver.close()
        for process in processes:
            process.send_signal(signal.SIGTERM)
        ended = [(process.communicate(timeout=30)[1], process.returncode) for process in processes]

    assert [code for _, code in ended] == [0, 0], ended
