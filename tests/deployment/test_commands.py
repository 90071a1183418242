"""What the files of deploy/ run before and beside the services: setup, migrations and health checks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.testing.sqs import Endpoint
from tests.support.deploy_files import DEPLOY, commands, pods
from tests.support.postgres import database
from tests.support.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN: Final = Path(sys.executable).parent
LIMIT_SECONDS: Final = 60


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a database without tables."""
    with database(migrated=False) as found:
        yield found


@pytest.fixture
def environ(url: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of the services of compose.yaml, with an SQS endpoint."""
    with Endpoint.start(seed=1) as endpoint:
        yield {
            "PATH": os.pathsep.join([str(BIN), os.defpath]),
            "HOME": str(tmp_path),
            "KEYS": str(tmp_path),
            "TASKHARBOR_URL": url,
            "AWS_ENDPOINT_URL_SQS": endpoint.url,
            "AWS_REGION": "eu-west-1",
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@pytest.fixture
def app(tmp_path: Path) -> Path:
    shutil.copy(DEPLOY / "compose" / "tasks.py", tmp_path)
    return tmp_path


def run(words: list[str], folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )


def test_the_setup_of_compose_can_be_repeated_and_keeps_its_key(app: Path, environ: dict[str, str]) -> None:
    script = ["sh", str(DEPLOY / "compose" / "setup.sh")]

    first = run(script, app, environ)
    key = (app / "api").read_text()
    second = run(script, app, environ)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert key.startswith("thk_")
    assert (app / "api").read_text() == key


def test_the_services_of_compose_run_a_job_by_a_message(app: Path, environ: dict[str, str]) -> None:
    assert run(["sh", str(DEPLOY / "compose" / "setup.sh")], app, environ).returncode == 0
    shell = Shell(app, environ={name: value for name, value in environ.items() if name != "PATH"})
    lines = {name: shlex.join(["taskharbor", *commands()[f"compose {name}"]]) for name in ("api", "worker", "enqueuer")}
    lines["api"] = lines["api"].replace("--port 8000", "--port 0")

    with (
        shell.background(lines["api"]) as api,
        shell.background(lines["worker"]) as worker,
        shell.background(lines["enqueuer"]) as enqueuer,
    ):
        for service in (worker, enqueuer):
            service.wait_for("started")
        api.wait_for("http://")
        ran = shell.run("taskharbor enqueue greet name=Ada --wait")

    assert (ran.code, ran.out) == (0, '"hello Ada"\n'), ran
    assert "delivery SQS" in worker.log()


def test_the_health_check_fails_before_the_migration_and_passes_after_it(app: Path, environ: dict[str, str]) -> None:
    check = ["taskharbor", *commands()["docker health check"]]
    migrate = ["taskharbor", *dict(pods())["taskharbor-migrate"]["containers"][0]["args"]]

    before = run(check, app, environ)
    migrated = run(migrate, app, environ)
    after = run(check, app, environ)

    assert before.returncode != 0
    assert migrated.returncode == 0, migrated.stderr
    assert (after.returncode, after.stdout) == (0, ""), after.stderr


def test_the_migration_job_can_be_repeated(app: Path, environ: dict[str, str]) -> None:
    migrate = ["taskharbor", *commands()["systemd taskharbor-migrate@.service"]]

    assert [run(migrate, app, environ).returncode for _ in range(2)] == [0, 0]
