"""The commands, arguments and options of the command line."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import click

from taskharbor.cli.main import cli
from tools.reference.markdown import code, table

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands() -> str:
    root = click.Context(cli, info_name="taskharbor")
    common = table(["option", ""], _options(cli, root))
    return "## Before the command\n\n" + common + "".join(_sections(cli, root))


def _sections(group: click.Group, ctx: click.Context) -> Iterator[str]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is None or command.hidden:
            continue
        inside = click.Context(command, info_name=name, parent=ctx)
        yield _section(command, inside)
        if isinstance(command, click.Group):
            yield from _sections(command, inside)


def _section(command: click.Command, ctx: click.Context) -> str:
    level = "#" * (1 + ctx.command_path.count(" "))
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    return (
        f"\n{level} {ctx.command_path.removeprefix('taskharbor ')}\n\n"
        f"```text\n{usage}\n```\n\n{_prose(command.help)}\n\n{table(['option', ''], _options(command, ctx))}"
    )


def _prose(text: str | None) -> str:
    r"""Return the help of a command as Markdown; a paragraph that click does not wrap (``\b``) becomes a block."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "").split("\f")[0]):
        if paragraph.startswith("\b"):
            parts.append("```text\n" + paragraph.lstrip("\b\n") + "\n```")
        else:
            parts.append(escaped(paragraph))
    return "\n\n".join(parts)


def _options(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    for each in command.get_params(ctx):
        if isinstance(each, click.Option) and not each.hidden and each.name != "help":
            record = each.get_help_record(ctx)
            if record is not None:
                yield code(record[0]), escaped(record[1])


def escaped(text: str) -> str:
    """Return *text* without characters that Markdown would take for markup."""
    return re.sub(r"([\\`*_{}\[\]<>#])", r"\\\1", text)
