from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.confirming import confirm_options
from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.values import duration

if TYPE_CHECKING:
    from datetime import timedelta


@click.command()
@click.option(
    "--older-than",
    type=duration,
    default="7d",
    show_default=True,
    metavar="TIME",
    help="Only those that ended before that.",
)
@click.option(
    "--unpublished", is_flag=True, help="Even if the event of an earlier death is still to be published: give it up."
)
@confirm_options
@url_option
@json_option
def prune(*, url: str, older_than: timedelta, unpublished: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove finished jobs that are past their retention.

    Every worker and janitor does that by itself, after seven days. Dead letters stay: see
    'taskharbor dead purge'. A store may keep some for up to a day longer, and a job that died once
    is kept while a publisher has still to publish that.
    With --json: {"found": N, "removed": N, "dry_run": BOOL, "kept": {REASON: N}}
    """
    from taskharbor.cli.operating import open_driver
    from taskharbor.cli.removing import prune_finished

    with open_driver(url) as driver:
        prune_finished(driver, older_than, unpublished=unpublished, yes=yes, dry_run=dry_run, as_json=as_json)
