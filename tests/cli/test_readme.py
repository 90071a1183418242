"""The commands of the README are those that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import click
import pytest

from taskharbor.cli.main import cli

README: Final = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text("utf-8")
LINES: Final = re.findall(r"^\$ taskharbor (.+)$", README, re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_readme_can_be_read_with_its_options(line: str) -> None:
    words = shlex.split(line)

    command, given = find(words)
    command.make_context(command.name, given, resilient_parsing=False)  # refuses what it does not know


def test_every_command_that_the_readme_mentions_exists() -> None:
    mentioned = re.findall(r"`taskharbor ([a-z]+(?: [a-z]+)?)[^`]*`", README)

    assert len(mentioned) > 5
    for each in mentioned:
        command, left = find(each.split())
        assert not isinstance(command, click.Group) or not left, each


def find(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that *words* begin with, and the words that are for it."""
    ctx = click.Context(cli)
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(ctx, words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words
