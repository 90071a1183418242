"""Which jobs a command is about: options, and the filter they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from taskharbor.cli.values import tag, time_or_ago
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from taskharbor.core.answers import JobFilter

F = TypeVar("F", bound="Callable[..., Any]")
Asked: TypeAlias = Any
"""What the options of a filter hold; `job_filter` knows each."""
MAX_LIMIT: Final = 1_000


def filter_options(command: F) -> F:
    """Add the filters of a list of jobs; `job_filter` takes what they give."""
    options = [
        click.option(
            "-s",
            "--status",
            "statuses",
            type=click.Choice([status.value for status in Status], case_sensitive=False),
            multiple=True,
            help="Only in this status; may be repeated.",
        ),
        click.option("-q", "--queue", help="Only of this queue."),
        click.option("-t", "--type", help="Only of this type."),
        click.option("--since", type=time_or_ago, metavar="TIME", help="Only made since this time, or since 2h ago."),
        click.option("--until", type=time_or_ago, metavar="TIME", help="Only made before this time."),
        click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only with this in the metadata."),
    ]
    return _with(command, options)


def dead_options(command: F) -> F:
    """Add the filters of dead letters."""
    options = [
        click.option("-q", "--queue", help="Only of this queue."),
        click.option("-t", "--type", help="Only of this type."),
        click.option("-f", "--fingerprint", help="Only killed by this error; 'taskharbor dead groups' shows it."),
    ]
    return _with(command, options)


def page_options(command: F) -> F:
    """Add `--limit` and `--after`."""
    options = [
        click.option(
            "-n", "--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, help="How many to show."
        ),
        click.option("--after", metavar="ID", help="Go on below this job."),
    ]
    return _with(command, options)


def job_filter(
    *,
    statuses: tuple[str, ...] = (),
    queue: str | None,
    type: str | None,
    since: datetime | None = None,
    until: datetime | None = None,
    tag: tuple[str, str] | None = None,
) -> JobFilter:
    from taskharbor.core.answers import JobFilter

    wanted = frozenset(map(Status, statuses)) or None
    return JobFilter(statuses=wanted, queue=queue, type=type, since=since, until=until, tag=tag)


def dead_filter(*, queue: str | None, type: str | None, fingerprint: str | None) -> JobFilter:
    from taskharbor.core.answers import JobFilter

    return JobFilter(statuses=frozenset({Status.DEAD}), queue=queue, type=type, fingerprint=fingerprint)


def _with(command: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):  # click lists them in the order in which they were added last
        command = option(command)
    return command
