from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import json_option, time_or_ago, url_option
from taskharbor.cli.store import open_driver
from taskharbor.core.statistics import GroupBy, Metric

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.cli.render import Cell


_METRICS: Final = [each.value for each in Metric]
_GROUPS: Final = [each.value for each in GroupBy]


class StatsGroup(LazyGroup):
    """A group that runs the command *show* if none is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_bare = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["show", *args] if is_bare else args)


@click.group(cls=StatsGroup)
def stats() -> None:
    """Show job counts, series by minute, types and versions.

    Without a command, as 'taskharbor stats show'.
    """


@stats.command()
@url_option
@json_option
def show(*, url: str, as_json: bool) -> None:
    """Show job counts and recent throughput.

    Counts are a few seconds old.
    """
    from taskharbor.cli.stats_view import report_age_of_counts, show_stats

    with open_driver(url) as driver:
        show_stats(driver, as_json=as_json)
        if not as_json:
            report_age_of_counts(driver.inspector, driver.inspector.now())


@stats.command()
@click.argument("metric", type=click.Choice(_METRICS))
@click.option("--by", type=click.Choice(_GROUPS), default="none", show_default=True, help="Group by this.")
@click.option("--step", type=click.Choice(["1", "15", "60"]), default="1", show_default=True, help="Minutes of a step.")
@click.option("--since", type=time_or_ago, metavar="TIME", help="From this time, or 2h for 2 hours ago. [default: 1h]")
@click.option("--until", type=time_or_ago, metavar="TIME", help="Until this time, in the same form. [default: now]")
@click.option("-q", "--queue", help="Only this queue.")
@click.option("-t", "--type", "job_type", help="Only jobs of this type; for attempts, wait and run.")
@url_option
@json_option
def series(
    *,
    url: str,
    metric: str,
    by: str,
    step: str,
    since: datetime | None,
    until: datetime | None,
    queue: str | None,
    job_type: str | None,
    as_json: bool,
) -> None:
    """Show a series by steps of 1, 15 or 60 minutes; single minutes of the last 6 hours only.

    Of waiting and running jobs, and of the age of the oldest, the highest value of each step. Of arrived and ended
    jobs, and of attempts, their number. Of wait and run times, the number and three percentiles in seconds.
    """
    from taskharbor.cli.render import echo_data, print_table
    from taskharbor.statistics import read_series

    with open_driver(url) as driver:
        found = read_series(
            driver.inspector,
            Metric(metric),
            by=GroupBy(by),
            step=int(step),
            since=since,
            until=until,
            queue=queue,
            type=job_type,
        )
        if as_json:
            echo_data(found, as_json=True, plain="")
            return
        percentiles = [name for name in ("p50_seconds", "p95_seconds", "p99_seconds") if metric in {"wait", "run"}]
        rows: list[list[Cell]] = [
            [each["at"], each["group"], f"{each['value']:g}", *(f"{each[name]:g}" for name in percentiles)]
            for each in found["points"]
        ]
        titles = ("at", "group", "value", *(name.removesuffix("_seconds") for name in percentiles))
        empty = "no data in this time; statistics are added up every few seconds"
        print_table(titles, rows, now=driver.inspector.now(), empty=empty)


@stats.command()
@url_option
@json_option
def types(*, url: str, as_json: bool) -> None:
    """List the types that live workers handle, or that had attempts in the last hour."""
    from taskharbor.cli.render import echo_data, print_table
    from taskharbor.statistics import read_types

    with open_driver(url) as driver:
        found = read_types(driver.inspector)
        if as_json:
            echo_data({"types": found}, as_json=True, plain="")
            return
        rows: list[list[Cell]] = [[each["type"], each["workers"], each["attempts_last_hour"]] for each in found]
        titles = ("type", "workers", "attempts in the last hour")
        print_table(titles, rows, now=driver.inspector.now(), empty="no live workers, and no attempts in the last hour")


@stats.command()
@url_option
@json_option
def versions(*, url: str, as_json: bool) -> None:
    """List the versions of the application that workers reported in the last 8 days."""
    from taskharbor.cli.render import echo_data, print_table
    from taskharbor.statistics import MAX_VERSIONS, version_view

    with open_driver(url) as driver:
        found = driver.inspector.versions(limit=MAX_VERSIONS)
        if as_json:
            echo_data({"versions": [version_view(each) for each in found]}, as_json=True, plain="")
            return
        rows: list[list[Cell]] = [[each.version, each.first_seen, each.last_seen] for each in found]
        empty = "no versions; set Harbor(version=...) or TASKHARBOR_APP_VERSION"
        print_table(("version", "first seen", "last seen"), rows, now=driver.inspector.now(), empty=empty)
