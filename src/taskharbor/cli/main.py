"""The root command, its lazily imported subcommands, exit codes, and the function that runs a command line."""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor._version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "api": ("taskharbor.cli.commands.run:api", "Serve the HTTP API until a signal."),
        "audit": ("taskharbor.cli.commands.audit:audit", "Check the invariants on the stored jobs."),
        "audit-log": ("taskharbor.cli.commands.audit_log:audit_log", "Show who changed what, newest first."),
        "codec": ("taskharbor.cli.commands.codec:codec", "Show or change the codec for payloads."),
        "completion": ("taskharbor.cli.commands.meta:completion", "Print a completion script for a shell."),
        "dead": ("taskharbor.cli.commands.dead:dead", "List dead letters; requeue or remove them."),
        "demo": ("taskharbor.cli.commands.dev:demo", "Run a demo: workers are killed, no job is lost."),
        "dev": (
            "taskharbor.cli.commands.dev:dev",
            "Run worker and API for development; reload on save.",
        ),
        "doctor": ("taskharbor.cli.commands.doctor:doctor", "Check the store, its jobs and SQS, and say what to do."),
        "enqueue": ("taskharbor.cli.commands.jobs:enqueue", "Enqueue a job and print its id."),
        "enqueuer": ("taskharbor.cli.commands.run:enqueuer", "Send messages for due jobs until a signal."),
        "janitor": ("taskharbor.cli.commands.run:janitor", "Run maintenance of the store until a signal."),
        "jobs": ("taskharbor.cli.commands.jobs:jobs", "List, show, cancel, reschedule and requeue jobs."),
        "keys": ("taskharbor.cli.commands.keys:keys", "Create, list and revoke keys for the HTTP API."),
        "migrate": ("taskharbor.cli.commands.migrate:migrate", "Migrate the store's schema, or show its status."),
        "operations": ("taskharbor.cli.commands.operations:operations", "List, show and stop bulk operations."),
        "prune": ("taskharbor.cli.commands.dead:prune", "Remove finished jobs that are past their retention."),
        "queues": ("taskharbor.cli.commands.queues:queues", "List queues; pause and resume them."),
        "schedules": (
            "taskharbor.cli.commands.schedules:schedules",
            "List schedules; run, pause, resume and delete them.",
        ),
        "sqs": ("taskharbor.cli.commands.sqs:sqs", "Create SQS queues and show their status."),
        "stats": ("taskharbor.cli.commands.stats:stats", "Show job counts, series by minute, types and versions."),
        "top": ("taskharbor.cli.commands.queues:top", "Watch queues and workers live."),
        "version": ("taskharbor.cli.commands.meta:version", "Show the installed version."),
        "workers": (
            "taskharbor.cli.commands.workers:workers",
            "List workers; show what one holds and what was lost with it.",
        ),
        "worker": ("taskharbor.cli.commands.worker:worker", "Run jobs until a signal."),
    }
)


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    NOT_FOUND = 4
    CONFLICT = 5
    REFUSED = 6
    TIMED_OUT_WAITING = 7
    JOB_FAILED = 8
    SCHEMA_OUT_OF_DATE = 9
    APP_IMPORT_FAILED = 10
    PROBLEMS_FOUND = 11
    SLOTS_LOST = 12
    RECYCLED = 13
    INTERRUPTED = 130  # as shells report a program ended by Ctrl-C


class LazyGroup(click.Group):
    """A command group that imports its *lazy* commands on use: name → ("module:attribute", one line of help)."""

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
        # Without this, click exits with 0 or 2, depending on its version, for a group without a command.
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
    """An unknown command. click 8.4 has an exception of this name; this one includes lazy commands."""

    def __init__(self, name: str, known: list[str], ctx: click.Context) -> None:
        super().__init__(f"no such command {name!r}", ctx=ctx)
        self.name, self.known = name, known


def main() -> int:
    """Run the command line of this process and return its exit code."""
    _open_closed_streams()
    return run(cli, sys.argv[1:])


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that was closed when this process began, as by ``>&-``.

    Python sets such a stream to None. And its number would be that of the next connection that is opened, into which
    a library or a child process could then write its output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one
            os.set_inheritable(number, True)  # noqa: FBT003
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  until the process ends


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="taskharbor", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable background jobs, stored in your own database."""


def run(group: click.Group, args: Sequence[str], *, program: str | None = None) -> int:
    """Run one command line and return its exit code. Errors are printed to stderr, with *program* as the command.

    Commands find the line as the object of their context: it is not always that of this process.
    """
    try:
        code: int | None = group.main(list(args), program, standalone_mode=False, obj=tuple(args))
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001  print one line and an exit code instead of a traceback
        from taskharbor.cli.errors import report

        # Search the arguments directly: an error in parsing occurs before options have values.
        words = args[: args.index("--")] if "--" in args else args
        return report(error, as_json="--json" in words, debug="--debug" in words)
    return code or ExitCode.OK
