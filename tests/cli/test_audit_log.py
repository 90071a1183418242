from __future__ import annotations

from typing import TYPE_CHECKING

from taskharbor.cli.main import ExitCode

if TYPE_CHECKING:
    from tests.support.console import Console


def test_changes_are_listed_newest_first_and_by_their_target(any_console: Console) -> None:
    any_console("queues", "pause", "mail", "images", "--new", "--reason", "maintenance", "--for", "30m")
    any_console("queues", "resume", "mail")

    rows = any_console("audit-log").rows
    mail = any_console("audit-log", "--target", "mail", "--json").data

    assert [row[2:4] for row in rows] == [
        ["queues.resume", "mail"],
        ["queues.pause", "images"],
        ["queues.pause", "mail"],
    ]
    assert rows[1][4] == "for=1800 s why=maintenance"
    assert [each["action"] for each in mail["entries"]] == ["queues.resume", "queues.pause"]


def test_a_page_says_where_the_next_one_begins(console: Console) -> None:
    for name in ("a", "b", "c"):
        console("queues", "pause", name, "--new")

    first = console("audit-log", "--limit", "2", "--json").data
    second = console("audit-log", "--before", first["next"], "--json").data

    assert console("audit-log", "--limit", "2").err == f"there may be more: --before {first['next']}\n"
    assert [each["target"] for each in first["entries"] + second["entries"]] == ["c", "b", "a"]
    assert console("audit-log", "--before", "x").code == ExitCode.USAGE
