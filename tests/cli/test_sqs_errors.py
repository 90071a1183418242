"""Errors of an SQS that is not set up correctly: one line with a fix, and jobs are still stored."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Client, JobRequest
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.drivers.connect import connect
from taskharbor.testing.sqs import Endpoint, EndpointFaults
from tests.support.cli_processes import LIMIT_SECONDS, PYTHON, taskharbor
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APP: Final = "handlers = {'greet': print}\n"
KEYS: Final = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
BARE: Final = {"PATH": os.defpath, "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null"}
REGION: Final = {"AWS_REGION": "eu-central-1"}
DENIED: Final = EndpointFaults(errors={"AccessDenied": 1})
BAD_KEY: Final = EndpointFaults(errors={"InvalidClientTokenId": 1})

WRONG: Final = [
    # A queue that is missing in this region may exist in another.
    pytest.param(
        KEYS | REGION,
        EndpointFaults(),
        ["does not exist at", "(eu-central-1)", "taskharbor sqs setup", "correct the region"],
        id="missing queue or wrong region",
    ),
    pytest.param(KEYS, EndpointFaults(), ["no AWS region", "set AWS_REGION"], id="no region"),
    pytest.param(KEYS | REGION, DENIED, ["is denied", "taskharbor sqs policy"], id="denied access"),
    pytest.param(KEYS | REGION, BAD_KEY, ["rejected the credentials", "correct the key"], id="bad credentials"),
    pytest.param(REGION, EndpointFaults(), ["no credentials", "set AWS_ACCESS_KEY_ID"], id="no credentials"),
]


@pytest.mark.parametrize(("given", "faults", "words"), WRONG)
def test_an_sqs_error_ends_a_command_with_one_line_and_a_fix(
    given: dict[str, str], faults: EndpointFaults, words: list[str]
) -> None:
    with Endpoint.start(faults=faults) as endpoint:
        done = taskharbor("sqs", "status", **BARE, **given, AWS_ENDPOINT_URL_SQS=endpoint.url)

    assert done.returncode == ExitCode.USAGE
    assert done.stdout == ""
    assert done.stderr.startswith("error: queue service refused: ")
    assert done.stderr.count("\n") == 1
    assert [word for word in words if word not in done.stderr] == []


def test_an_unavailable_sqs_ends_a_command_with_3() -> None:
    with Endpoint.start() as endpoint:
        endpoint.go_away()
        done = taskharbor("sqs", "status", **BARE, **KEYS, **REGION, AWS_ENDPOINT_URL_SQS=endpoint.url)

    assert done.returncode == ExitCode.CANNOT_CONNECT
    assert done.stderr.startswith("error: queue service unavailable: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("_nothing_starts")
def test_an_enqueuer_without_a_region_ends_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (BARE | KEYS).items():
        monkeypatch.setenv(name, value)

    code = run(cli, ["enqueuer", "-q", "mail", "--url", f"sqlite:///{tmp_path}/jobs.db", "--migrate"])

    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("error: queue service refused: no AWS region configured; set AWS_REGION")
    assert code == ExitCode.USAGE


def test_a_worker_without_a_region_logs_it_once_and_continues(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    words = ["worker", "shop.py", "--sqs", "--url", f"sqlite:///{tmp_path}/jobs.db"]
    log = tmp_path / "worker"
    with started(tmp_path, BARE | KEYS, *words) as worker:
        wait_until(lambda: "queue service refused" in log.read_text())
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(LIMIT_SECONDS)

    assert code == ExitCode.OK
    assert log.read_text().count("no AWS region configured; set AWS_REGION") == 1


@pytest.mark.parametrize(("given", "faults", "words"), [each for each in WRONG if each.id != "no region"])
def test_worker_and_enqueuer_log_an_sqs_error_once_and_continue(
    tmp_path: Path, given: dict[str, str], faults: EndpointFaults, words: list[str]
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/jobs.db"
    driver = connect(url)
    with Endpoint.start(faults=faults) as endpoint:
        environ = {**BARE, **given, "AWS_ENDPOINT_URL_SQS": endpoint.url}
        with (
            started(tmp_path, environ, "enqueuer", "--url", url, "--period", "100ms") as enqueuer,
            started(tmp_path, environ, "worker", "shop.py", "--sqs", "--url", url) as worker,
        ):
            job_id = Client(driver).enqueue(JobRequest(type="greet")).id
            logs = [tmp_path / "enqueuer", tmp_path / "worker"]
            wait_until(lambda: all("queue service refused" in log.read_text() for log in logs))
            for process in (enqueuer, worker):
                process.send_signal(signal.SIGTERM)
            codes = [process.wait(LIMIT_SECONDS) for process in (enqueuer, worker)]
    stored = driver.inspector.get([job_id])
    driver.close()

    refusals = [[line for line in log.read_text().splitlines() if "service refused" in line] for log in logs]
    assert codes == [0, 0]
    assert [*stored] == [job_id]
    assert [len(lines) for lines in refusals] == [1, 1]
    assert [(line, word) for [line] in refusals for word in words if word not in line] == []


@contextmanager
def started(folder: Path, environ: dict[str, str], *args: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; its log is in a file with its name."""
    with (folder / args[0]).open("w") as stderr:
        command = [*PYTHON, "-m", "taskharbor.cli", *args]
        process = subprocess.Popen(command, cwd=folder, stderr=stderr, text=True, env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
