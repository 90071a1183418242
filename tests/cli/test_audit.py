from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from taskharbor.cli.commands import audit
from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.core.results import Enqueued
from taskharbor.drivers.connect import connect
from taskharbor.testing.conformance.subject import new_job

if TYPE_CHECKING:
    from pathlib import Path

    from taskharbor.core.ids import JobId


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def jobs(url: str) -> list[JobId]:
    with closing(connect(url)) as driver:
        return [each.id for each in driver.insert([new_job() for _ in range(3)]) if isinstance(each, Enqueued)]


def exhaust(tmp_path: Path, *jobs: JobId) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db, db:
        for job_id in jobs:
            db.execute("UPDATE th_jobs SET attempt_count = max_attempts WHERE id = ?", (job_id.bytes,))


@pytest.mark.usefixtures("jobs")
def test_an_audit_of_a_healthy_store_finds_nothing(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["audit", "--url", url]) == ExitCode.OK

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("checked 3 rows in ")
    assert err.endswith(": no violation\n")


def test_a_violation_is_named_with_its_job_and_exit_code(
    url: str, jobs: list[JobId], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exhaust(tmp_path, jobs[1])

    assert run(cli, ["audit", "--url", url]) == ExitCode.PROBLEMS_FOUND

    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "invariant\tjob\tdetail",
        f"21\t{jobs[1]}\tit waits, but has no attempts left",
    ]
    assert "invariant 21, no waiting job is exhausted: broken 1 time\n" in err
    assert err.endswith(": 1 violation\n")


def test_as_json_an_audit_lists_its_violations(
    url: str, jobs: list[JobId], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exhaust(tmp_path, jobs[0])

    assert run(cli, ["audit", "--url", url, "--json"]) == ExitCode.PROBLEMS_FOUND

    assert json.loads(capsys.readouterr().out) == {
        "checked": 3,
        "violations": [
            {
                "invariant": 21,
                "rule": "no waiting job is exhausted",
                "job_id": str(jobs[0]),
                "detail": "it waits, but has no attempts left",
            }
        ],
        "omitted": 0,
        "next": None,
    }


def test_many_violations_are_counted_and_the_first_ones_listed(
    url: str,
    jobs: list[JobId],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "MAX_SHOWN", 2)
    exhaust(tmp_path, *jobs)

    run(cli, ["audit", "--url", url, "--json"])

    found = json.loads(capsys.readouterr().out)
    assert ([each["job_id"] for each in found["violations"]], found["omitted"]) == ([str(each) for each in jobs[:2]], 1)


def test_an_interrupted_audit_is_continued_where_it_stopped(
    url: str, jobs: list[JobId], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.audit.PAGE_ROWS", 2)
    monkeypatch.setattr(audit.time, "monotonic", iter(range(100)).__next__)  # type: ignore[attr-defined]

    assert run(cli, ["audit", "--url", url, "--for", "1s", "--json"]) == ExitCode.OK
    first = json.loads(capsys.readouterr().out)
    assert (first["checked"], first["next"]) == (2, f"jobs:{jobs[1]}")

    monkeypatch.undo()
    assert run(cli, ["audit", "--url", url, "--after", first["next"], "--json"]) == ExitCode.OK
    rest = json.loads(capsys.readouterr().out)
    assert (rest["checked"], rest["next"]) == (1, None)


@pytest.mark.parametrize("text", ["", "jobs:x", "queues", "jobs:0192"])
def test_a_position_that_no_audit_prints_is_refused(url: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["audit", "--url", url, "--after", text]) == ExitCode.USAGE

    assert "give a position that an audit has printed, such as jobs:ID" in capsys.readouterr().err
