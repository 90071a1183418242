from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.values import duration_from

if TYPE_CHECKING:
    from datetime import timedelta


@click.command()
@click.option(
    "--every",
    type=duration_from("100ms"),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How often to look.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many looks.")
@url_option
@json_option
def top(*, url: str, every: timedelta, count: int | None, as_json: bool) -> None:
    """Watch queues and workers live.

    On a terminal q or Ctrl-C ends it. Elsewhere, and with --json, it prints one look after the
    other, as 'taskharbor stats' does.
    """
    from taskharbor.cli.operating import open_driver
    from taskharbor.cli.watching import watch

    with open_driver(url) as driver:
        watch(driver, every=every, count=count, as_json=as_json)
