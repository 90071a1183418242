from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.doctor import sqlite
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.sqs import Endpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    SqliteDriver(tmp_path / "jobs.db").close()
    return f"sqlite:///{tmp_path}/jobs.db"


def break_schema(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
        db.execute("INSERT INTO th_migrations (number, name, applied_at) VALUES (99, 'later', 0)")


def test_a_store_in_order_is_ok_line_by_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["doctor", "--url", url]) == ExitCode.OK

    out, err = capsys.readouterr()
    assert {line[:5] for line in out.splitlines()} == {"ok   "}
    assert err == ""


def test_a_failed_check_has_its_remedy_and_an_exit_code(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_schema(tmp_path)

    assert run(cli, ["doctor", "--url", url]) == ExitCode.PROBLEMS_FOUND

    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail ")]
    assert line.startswith("fail schema: ")


def test_a_warning_fails_only_a_strict_doctor(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOW_SPACE", 2**62)

    assert run(cli, ["doctor", "--url", url]) == ExitCode.OK
    assert run(cli, ["doctor", "--url", url, "--strict", "--json"]) == ExitCode.PROBLEMS_FOUND

    lines = capsys.readouterr().out.splitlines()
    warned = next(number for number, line in enumerate(lines) if line.startswith("warn free space: "))
    assert lines[warned + 1] == "     → free space, or shorten the retention (--keep)"
    found = {each["check"]: each for each in json.loads(lines[-1])["findings"]}
    assert found["free space"]["level"] == "warn"
    assert found["schema"] == {"check": "schema", "level": "ok", "text": "the schema is up to date", "remedy": ""}


def test_in_a_container_only_problems_of_the_store_are_printed(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["doctor", "--url", url, "--container"]) == ExitCode.OK
    assert capsys.readouterr() == ("", "")

    break_schema(tmp_path)
    assert run(cli, ["doctor", "--url", url, "--container"]) == ExitCode.PROBLEMS_FOUND
    [finding] = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert finding.startswith("fail schema: ")


def test_a_file_that_does_not_exist_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "typo.db"

    assert run(cli, ["doctor", "--url", f"sqlite:///{file}"]) == ExitCode.CANNOT_CONNECT

    assert not file.exists()
    assert str(file) in capsys.readouterr().err


def test_with_sqs_the_queues_are_checked_too(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Endpoint.start(seed=1) as endpoint:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_SQS": endpoint.url,
        }.items():
            monkeypatch.setenv(name, value)

        assert run(cli, ["doctor", "--url", url, "--sqs", "-q", "mail"]) == ExitCode.PROBLEMS_FOUND
        assert "fail sqs queues: queue taskharbor-mail does not exist at " in capsys.readouterr().out

        run(cli, ["sqs", "setup", "-q", "mail"])
        assert run(cli, ["doctor", "--url", url, "--sqs", "-q", "mail"]) == ExitCode.OK
        assert "ok   sqs queues: 3 queues exist with the right attributes" in capsys.readouterr().out
