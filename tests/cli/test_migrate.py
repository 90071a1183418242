from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from taskharbor.cli.main import ExitCode, cli, run
from taskharbor.drivers.sqlite.schema import MIGRATIONS

if TYPE_CHECKING:
    from pathlib import Path

VERBS = ["up", "status", "sql", "check"]
NAMES = [migration.name for migration in MIGRATIONS]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.mark.parametrize("verb", VERBS)
def test_the_memory_store_has_nothing_to_migrate(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["migrate", verb, "--url", "memory://"])

    assert ended == ExitCode.OK
    assert capsys.readouterr() == ("", "the memory store has no schema; nothing to migrate\n")


@pytest.mark.parametrize("verb", VERBS)
def test_as_json_the_memory_store_has_no_schema_and_nothing_pending(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(cli, ["migrate", verb, "--url", "memory://", "--json"])

    out, err = capsys.readouterr()
    assert ended == ExitCode.OK
    assert json.loads(out) == {"store": "memory", "schema": None, "wanted": None, "pending": []}
    assert err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_that_this_version_cannot_open_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["migrate", verb, "--url", "redis://db/app"])

    opens = "postgresql://localhost/app or sqlite:///jobs.db"
    line = f"error: no store has URLs that begin with redis://; use one such as {opens}\n"
    assert ended == ExitCode.USAGE
    assert capsys.readouterr().err == line


def test_up_names_what_it_applied_and_the_second_time_says_that_nothing_is_left(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cli, ["migrate", "up", "--url", url]) == ExitCode.OK
    assert capsys.readouterr() == ("\n".join(NAMES) + "\n", "")

    assert run(cli, ["migrate", "up", "--url", url]) == ExitCode.OK
    assert capsys.readouterr() == ("", f"schema is up to date: {len(NAMES)}\n")


def test_status_shows_what_is_there_and_what_is_pending(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["migrate", "status", "--url", url])

    assert ended == ExitCode.OK
    assert capsys.readouterr() == (f"schema   0\nwanted   {len(NAMES)}\npending  {' '.join(NAMES)}\n", "")


def test_status_of_a_schema_that_fits_has_nothing_pending(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(cli, ["migrate", "up", "--url", url, "--json"])
    capsys.readouterr()

    run(cli, ["migrate", "status", "--url", url])

    assert capsys.readouterr().out.endswith("pending  none\n")


@pytest.mark.parametrize("verb", ["status", "sql", "check"])
def test_only_up_creates_the_file(verb: str, url: str, tmp_path: Path) -> None:
    run(cli, ["migrate", verb, "--url", url])

    assert list(tmp_path.iterdir()) == []


def test_the_printed_sql_brings_the_schema_up_to_date(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cli, ["migrate", "sql", "--url", url])

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.executescript(capsys.readouterr().out)

    assert run(cli, ["migrate", "check", "--url", url]) == ExitCode.OK
    assert run(cli, ["migrate", "sql", "--url", url]) == ExitCode.OK
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("verb", ["status", "sql"])
def test_json_status_of_a_missing_file_lists_all_migrations(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(cli, ["migrate", verb, "--url", url, "--json"])

    assert ended == ExitCode.OK
    result = json.loads(capsys.readouterr().out)
    assert result == {"store": "sqlite", "schema": 0, "wanted": len(NAMES), "pending": NAMES}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_prints_the_same_json_for_a_current_schema(
    verb: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(cli, ["migrate", "up", "--url", url])
    capsys.readouterr()

    ended = run(cli, ["migrate", verb, "--url", url, "--json"])

    assert ended == ExitCode.OK
    result = json.loads(capsys.readouterr().out)
    assert result == {"store": "sqlite", "schema": len(NAMES), "wanted": len(NAMES), "pending": []}


def test_check_exits_with_9_and_says_how_to_migrate(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["migrate", "check", "--url", url])

    line = "error: the store has no TaskHarbor tables yet: run 'taskharbor migrate up'\n"
    assert ended == ExitCode.SCHEMA_OUT_OF_DATE
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("verb", ["up", "sql", "check"])
def test_a_schema_newer_than_the_code_exits_with_9_and_is_not_touched(
    verb: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_newer(url, tmp_path)
    before = (tmp_path / "jobs.db").read_bytes()
    capsys.readouterr()

    ended = run(cli, ["migrate", verb, "--url", url])

    line = f"error: the store's schema is 99, this code needs {len(NAMES)}: update TaskHarbor\n"
    assert ended == ExitCode.SCHEMA_OUT_OF_DATE
    assert capsys.readouterr() == ("", line)
    assert (tmp_path / "jobs.db").read_bytes() == before


def test_status_of_a_newer_schema_shows_both_numbers(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_newer(url, tmp_path)
    capsys.readouterr()

    run(cli, ["migrate", "status", "--url", url, "--json"])

    result = json.loads(capsys.readouterr().out)
    assert result == {"store": "sqlite", "schema": 99, "wanted": len(NAMES), "pending": []}


@pytest.mark.parametrize("verb", VERBS)
def test_an_unavailable_file_exits_with_3_and_one_line(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(cli, ["migrate", verb, "--url", f"sqlite:///{tmp_path}/none/jobs.db"])

    out, err = capsys.readouterr()
    assert ended == ExitCode.CANNOT_CONNECT
    assert (out, err.count("\n")) == ("", 1)


def test_the_url_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "memory://")

    ended = run(cli, ["migrate", "status", "--json"])

    assert ended == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["store"] == "memory"


@pytest.mark.parametrize(("url", "code"), [("memory://", ExitCode.OK), ("", ExitCode.USAGE)])
def test_the_url_on_the_command_line_wins_even_if_it_is_empty(
    url: str, code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "memory://" if code else "redis://")

    assert run(cli, ["migrate", "up", "--url", url]) == code


def test_without_a_url_it_says_where_to_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(cli, ["migrate", "up"])

    err = capsys.readouterr().err
    assert ended == ExitCode.USAGE
    assert "--url" in err
    assert "TASKHARBOR_URL" in err


def make_newer(url: str, tmp_path: Path) -> None:
    run(cli, ["migrate", "up", "--url", url])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute("INSERT INTO th_migrations VALUES (99, '0099_later', 0)")
