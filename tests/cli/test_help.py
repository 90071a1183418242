from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from taskharbor.cli.main import COMMANDS, LazyGroup, cli
from tests.support.cli_processes import python, taskharbor

LIST_IMPORTS = """
import json, sys
from taskharbor.cli import main
sys.argv = ["taskharbor", "--help"]
code = main()
print(json.dumps({"code": code, "modules": sorted(sys.modules)}), file=sys.stderr)
"""


def test_help_imports_only_the_cli_package() -> None:
    before = set(json.loads(python("-c", "import json, sys; print(json.dumps(sorted(sys.modules)))").stdout))

    seen = json.loads(python("-c", LIST_IMPORTS).stderr)

    ours = {module for module in seen["modules"] if module.split(".")[0] == "taskharbor"}
    assert seen["code"] == 0
    assert ours == {
        "taskharbor",
        "taskharbor._version",
        "taskharbor.cli",
        "taskharbor.cli.main",
    }
    heavy = {"asyncio", "concurrent.futures", "decimal", "difflib", "importlib.metadata", "logging", "rich", "sqlite3"}
    assert not heavy & (set(seen["modules"]) - before)


def test_help_needs_no_json() -> None:
    script = "import sys, taskharbor.cli; sys.argv = ['taskharbor', '--help']; taskharbor.cli.main(); "

    done = python("-c", script + "sys.exit('json' in sys.modules)")

    assert done.returncode == 0


def test_help_lists_every_command_with_its_line() -> None:
    text = CliRunner().invoke(cli, ["--help"]).stdout

    listed = {tuple(line.split(maxsplit=1)) for line in text.splitlines()}
    missing = [name for name, (_, line) in COMMANDS.items() if (name, line) not in listed]
    assert missing == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_list_is_the_commands_own(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=200) == COMMANDS[name][1]


@pytest.mark.parametrize("args", [[], ["migrate"]])
def test_a_group_without_a_command_shows_its_help(args: list[str]) -> None:
    done = taskharbor(*args)

    assert done.returncode == 0
    assert done.stdout == taskharbor(*args, "--help").stdout
    assert done.stdout.startswith("Usage: ")


def test_a_command_shows_its_short_help_option_too() -> None:
    short, long = (CliRunner().invoke(cli, ["version", option]) for option in ("-h", "--help"))

    assert short.exit_code == 0
    assert short.stdout == long.stdout


def test_every_command_that_needs_a_store_shows_its_help_without_one() -> None:
    done = CliRunner().invoke(cli, ["migrate", "up", "--help"])

    assert done.exit_code == 0
    assert "--url URL" in done.stdout


def test_a_lazy_group_lists_its_own_commands_among_the_lazy_ones() -> None:
    group = LazyGroup("toy", lazy={"zebra": ("no.such.module:zebra", "Never imported.")})
    group.command(name="ant", help="At hand.")(lambda: None)

    done = CliRunner().invoke(group, ["--help"])

    assert done.stdout.splitlines()[-2:] == ["  ant    At hand.", "  zebra  Never imported."]
