"""The root of all commands, and the one place where a command line ends."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from taskharbor._version import __version__
from taskharbor.cli.exits import ExitCode
from taskharbor.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "api": ("taskharbor.cli.commands.api:api", "Serve the HTTP API until a signal."),
        "codec": ("taskharbor.cli.commands.codec:codec", "Show or change the codec that payloads are written with."),
        "completion": ("taskharbor.cli.commands.completion:completion", "Print what lets a shell complete commands."),
        "dead": ("taskharbor.cli.commands.dead:dead", "Look at dead letters, give them a new life, or remove them."),
        "demo": ("taskharbor.cli.commands.demo:demo", "Watch jobs survive workers that are killed."),
        "dev": (
            "taskharbor.cli.commands.dev:dev",
            "Run everything for development, and reload on save.",
        ),
        "enqueue": ("taskharbor.cli.commands.enqueue:enqueue", "Store a job, and print its id."),
        "enqueuer": ("taskharbor.cli.commands.enqueuer:enqueuer", "Send messages for due jobs until a signal."),
        "janitor": ("taskharbor.cli.commands.janitor:janitor", "Keep the store in order until a signal."),
        "jobs": ("taskharbor.cli.commands.jobs:jobs", "Look at jobs, and move them."),
        "keys": ("taskharbor.cli.commands.keys:keys", "Give, list and revoke keys for the HTTP API."),
        "migrate": ("taskharbor.cli.commands.migrate:migrate", "Bring the store's schema up to date, or look at it."),
        "prune": ("taskharbor.cli.commands.prune:prune", "Remove finished jobs that are past their retention."),
        "queues": ("taskharbor.cli.commands.queues:queues", "Look at queues, pause them, and let them go on."),
        "schedules": ("taskharbor.cli.commands.schedules:schedules", "Look at schedules, run, pause and resume them."),
        "sqs": ("taskharbor.cli.commands.sqs:sqs", "Make the queues of SQS, and look at them."),
        "stats": ("taskharbor.cli.commands.stats:stats", "Show how much there is, and how fast jobs end."),
        "top": ("taskharbor.cli.commands.top:top", "Watch queues and workers live."),
        "version": ("taskharbor.cli.commands.version:version", "Say what is installed here."),
        "workers": ("taskharbor.cli.commands.workers:workers", "Look at workers."),
        "worker": ("taskharbor.cli.commands.worker:worker", "Run jobs until a signal."),
    }
)


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    return run(cli, sys.argv[1:])


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="taskharbor", message="%(prog)s %(version)s")
def cli() -> None:
    """Background jobs that are never lost and never run twice at once."""


def run(group: click.Group, args: Sequence[str]) -> int:
    """Run one command line, and return its exit code. What goes wrong is told on stderr."""
    try:
        code: int | None = group.main(list(args), standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last stop: people get a line and an exit code, not a traceback
        from taskharbor.cli.failures import report

        # Read from the words themselves: an error of parsing comes before any option has a value.
        words = args[: args.index("--")] if "--" in args else args
        return report(error, as_json="--json" in words, debug="--debug" in words)
    return code or ExitCode.OK
