"""Commands that are imported when they are called, so that `--help` costs the same however many there are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


class LazyGroup(click.Group):
    """A group whose *lazy* commands are given as name → ("module:attribute", one line of help)."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.lazy, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._help_line(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Left alone, click answers a bare group with its help and exit 0 or 2, as its version has it.
        bare = not args and not ctx.resilient_parsing
        return super().parse_args(ctx, ["--help"] if bare else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            raise NoSuchCommand(name, known, ctx)
        return super().resolve_command(ctx, args)

    def _help_line(self, name: str) -> str:
        return self.lazy[name][1] if name in self.lazy else self.commands[name].get_short_help_str(limit=100)


class NoSuchCommand(click.UsageError):
    """click has one of this name since 8.4; this one knows lazy commands too."""

    def __init__(self, name: str, known: list[str], ctx: click.Context) -> None:
        super().__init__(f"no such command {name!r}", ctx=ctx)
        self.name, self.known = name, known
