"""Checks that a line with a command of TaskHarbor is one that its command line accepts, without running it."""

from __future__ import annotations

import click

from taskharbor.cli.main import cli


def check_words(words: list[str]) -> None:
    """Raise `click.ClickException` unless the words after ``taskharbor`` parse: command, arguments, options, values."""
    context = click.Context(cli, info_name="taskharbor")
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group):
        if not rest:
            raise click.UsageError(f"{command.name} needs a command", context)
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"there is no command {rest[0]}", context)
        parent, name, command = context, rest.pop(0), found
        context = click.Context(command, info_name=name, parent=parent)
    command.make_context(command.name, rest, parent=context.parent)
