"""The root of all commands, and the one place where a command line ends."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from taskharbor._version import __version__
from taskharbor.cli.exits import Exit
from taskharbor.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "janitor": ("taskharbor.cli.commands.janitor:janitor", "Keep the store in order until a signal."),
        "migrate": ("taskharbor.cli.commands.migrate:migrate", "Bring the store's schema up to date, or look at it."),
        "version": ("taskharbor.cli.commands.version:version", "Say what is installed here."),
        "worker": ("taskharbor.cli.commands.worker:worker", "Run jobs until a signal."),
    }
)


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    return run(root, sys.argv[1:])


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="taskharbor", message="%(prog)s %(version)s")
def root() -> None:
    """Background jobs that are never lost and never run twice at once."""


def run(group: click.Group, args: Sequence[str]) -> int:
    """Run one command line, and return its exit code. What goes wrong is told on stderr."""
    try:
        code: int | None = group.main(list(args), standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last stop: people get a line and an exit code, not a traceback
        from taskharbor.cli.failures import report

        # Read from the words themselves: an error of parsing comes before any option has a value.
        words = args[: args.index("--")] if "--" in args else args
        return report(error, as_json="--json" in words, debug="--debug" in words)
    return code or Exit.OK
