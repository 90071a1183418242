from __future__ import annotations

import json

import pytest

from taskharbor.cli.exits import Exit
from taskharbor.cli.root import root, run

VERBS = ["up", "status", "sql", "check"]


@pytest.mark.parametrize("verb", VERBS)
def test_the_memory_store_has_nothing_to_migrate(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(root, ["migrate", verb, "--url", "memory://"])

    assert ended == Exit.OK
    assert capsys.readouterr() == ("", "the memory store keeps no schema: there is nothing to migrate\n")


@pytest.mark.parametrize("verb", VERBS)
def test_as_json_the_memory_store_has_no_schema_and_nothing_pending(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(root, ["migrate", verb, "--url", "memory://", "--json"])

    out, err = capsys.readouterr()
    assert ended == Exit.OK
    assert json.loads(out) == {"store": "memory", "schema": None, "wanted": None, "pending": []}
    assert err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_that_this_version_cannot_open_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(root, ["migrate", verb, "--url", "sqlite:///jobs.db"])

    assert ended == Exit.USAGE
    assert capsys.readouterr().err == "error: this version has no sqlite driver yet; it opens memory://\n"


def test_the_url_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "memory://")

    ended = run(root, ["migrate", "status", "--json"])

    assert ended == Exit.OK
    assert json.loads(capsys.readouterr().out)["store"] == "memory"


@pytest.mark.parametrize(("url", "code"), [("memory://", Exit.OK), ("", Exit.USAGE)])
def test_the_url_on_the_command_line_wins_even_if_it_is_empty(
    url: str, code: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "memory://" if code else "redis://")

    assert run(root, ["migrate", "up", "--url", url]) == code


def test_without_a_url_it_says_where_to_give_one(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(root, ["migrate", "up"])

    err = capsys.readouterr().err
    assert ended == Exit.USAGE
    assert "--url" in err
    assert "TASKHARBOR_URL" in err
