from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import (
    confirm_options,
    dead_filter,
    dead_options,
    duration,
    json_option,
    page_options,
    url_option,
)
from taskharbor.cli.render import echo_status
from taskharbor.cli.store import job_id_of, no_matches, open_driver

if TYPE_CHECKING:
    from datetime import timedelta

    from taskharbor.cli.options import Asked
    from taskharbor.cli.render import Cell


@click.group(cls=LazyGroup)
def dead() -> None:
    """Look at dead letters, give them a new life, or remove them."""


@dead.command(name="list")
@dead_options
@page_options
@url_option
@json_option
def list_(*, url: str, limit: int, after: str | None, as_json: bool, **asked: Asked) -> None:
    """List dead letters, newest job first.

    With --json: {"jobs": [...], "next": ID or null}
    """
    from taskharbor.cli.jobs_view import full_page, show_page

    with open_driver(url) as driver:
        below = None if after is None else job_id_of(driver, after)
        page = full_page(driver, dead_filter(**asked), limit=limit, after=below)
        show_page(driver, page, as_json=as_json, what="dead letter", queue=asked["queue"])


@dead.command()
@click.option("-q", "--queue", help="Only of this queue.")
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many to show.")
@url_option
@json_option
def groups(*, url: str, queue: str | None, limit: int, as_json: bool) -> None:
    """Show what dead letters died of, the most frequent first.

    The fingerprint stands for the kind and place of an error; other commands take it as a filter.
    """
    from taskharbor.cli.jobs_view import first_line
    from taskharbor.cli.render import echo_data, print_table
    from taskharbor.views import group_view

    with open_driver(url) as driver:
        found = driver.inspector.dead_letter_groups(limit=limit, queue=queue)
        if as_json:
            echo_data({"groups": list(map(group_view, found))}, as_json=True, plain="")
            return
        rows: list[list[Cell]] = [
            [each.count, each.fingerprint, each.queue, each.type, each.first_at, each.last_at, first_line(each.error)]
            for each in found
        ]
        titles = ("count", "fingerprint", "queue", "type", "first", "last", "error")
        print_table(titles, rows, now=driver.inspector.now(), empty="there are no dead letters")


@dead.command()
@click.argument("job_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that the filters leave.")
@dead_options
@click.option("--budget", type=click.IntRange(min=1), help="How many attempts each gets.  [default: 20]")
@click.option("--why", "reason", default="", help="Goes into the jobs' history.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Let so many become due in a second."
)
@confirm_options
@url_option
@json_option
def requeue(
    *,
    url: str,
    job_ids: tuple[str, ...],
    everything: bool,
    budget: int | None,
    reason: str,
    rate: float | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **asked: Asked,
) -> None:
    """Give dead letters a new life: those named, or all that the filters leave.

    What died after the preview is left alone. Several, or a filter: it shows what it found, and
    asks. With --json: {"matched": N, "requeued": N, "dry_run": BOOL, "refused": [...]}
    """
    from taskharbor.cli.bulk import BulkRequeue, select_dead_letters

    with open_driver(url) as driver:
        found = select_dead_letters(driver, job_ids, dead_filter(**asked), everything=everything)
        if not found:
            echo_status(no_matches(driver, "dead letter", asked["queue"]))
        BulkRequeue(driver, budget=budget, reason=reason, rate=rate).run(
            found, yes=yes, dry_run=dry_run, as_json=as_json
        )


@dead.command()
@click.argument("job_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that the filters leave.")
@dead_options
@click.option("--older-than", type=duration, metavar="TIME", help="Only those that died before that.")
@click.option(
    "--unpublished", is_flag=True, help="Even if the event of their death is still to be published: give it up."
)
@confirm_options
@url_option
@json_option
def purge(
    *,
    url: str,
    job_ids: tuple[str, ...],
    everything: bool,
    older_than: timedelta | None,
    unpublished: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **asked: Asked,
) -> None:
    """Remove dead letters for good, with their history: those named, or all that the filters leave.

    It shows what it found, and asks. What died after that is left alone, and so is a dead letter
    whose event a publisher has still to publish.
    With --json: {"matched": N, "removed": N, "dry_run": BOOL, "kept": {REASON: N}}
    """
    from taskharbor.cli.bulk import BulkPurge, died_before, select_dead_letters

    with open_driver(url) as driver:
        found = select_dead_letters(
            driver,
            job_ids,
            dead_filter(**asked),
            everything=everything or (older_than is not None and not job_ids),
            is_meant=died_before(driver, older_than),
        )
        if not found:
            echo_status(no_matches(driver, "dead letter", asked["queue"]))
        BulkPurge(driver, older_than=older_than, unpublished=unpublished).run(
            found, yes=yes, dry_run=dry_run, as_json=as_json
        )


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
    from taskharbor.cli.bulk import prune_finished
    from taskharbor.cli.store import open_driver

    with open_driver(url) as driver:
        prune_finished(driver, older_than, unpublished=unpublished, yes=yes, dry_run=dry_run, as_json=as_json)
