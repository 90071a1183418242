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

    from taskharbor.cli.options import FilterValue
    from taskharbor.cli.render import Cell


@click.group(cls=LazyGroup)
def dead() -> None:
    """List dead letters; requeue or remove them."""


@dead.command(name="list")
@dead_options
@page_options
@url_option
@json_option
def list_(*, url: str, limit: int, after: str | None, as_json: bool, **filters: FilterValue) -> None:
    """List dead letters, newest first.

    With --json: {"jobs": [...], "next": ID or null}
    """
    from taskharbor.cli.jobs_view import full_page, show_page

    with open_driver(url) as driver:
        below = None if after is None else job_id_of(driver, after)
        page = full_page(driver, dead_filter(**filters), limit=limit, after=below)
        show_page(driver, page, as_json=as_json, what="dead letter", queue=filters["queue"])


@dead.command()
@click.option("-q", "--queue", help="Only jobs of this queue.")
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many to show.")
@url_option
@json_option
def groups(*, url: str, queue: str | None, limit: int, as_json: bool) -> None:
    """Group dead letters by their error, the most frequent first.

    The fingerprint identifies the type and location of an error. Other commands take it as a filter.
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
        print_table(titles, rows, now=driver.inspector.now(), empty="no dead letters")


@dead.command()
@click.argument("job_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that the filters leave.")
@dead_options
@click.option("--budget", type=click.IntRange(min=1), help="How many attempts each gets.  [default: 20]")
@click.option("--why", "reason", default="", help="The reason, for the jobs' history.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="How many become due per second."
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
    **filters: FilterValue,
) -> None:
    """Requeue dead letters: the given ids, or all that match the filters.

    For several ids or a filter, it prints a preview and asks for confirmation. Jobs that die after
    the preview are not changed.
    With --json: {"matched": N, "requeued": N, "dry_run": BOOL, "refused": [...]}
    """
    from taskharbor.cli.bulk import BulkRequeue, select_dead_letters

    with open_driver(url) as driver:
        found = select_dead_letters(driver, job_ids, dead_filter(**filters), everything=everything)
        if not found:
            echo_status(no_matches(driver, "dead letter", filters["queue"]))
        BulkRequeue(driver, budget=budget, reason=reason, rate=rate).run(
            found, yes=yes, dry_run=dry_run, as_json=as_json
        )


@dead.command()
@click.argument("job_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that the filters leave.")
@dead_options
@click.option("--older-than", type=duration, metavar="TIME", help="Only jobs that died longer ago.")
@click.option(
    "--unpublished", is_flag=True, help="Also jobs whose dead-letter event is unpublished; the event is dropped."
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
    **filters: FilterValue,
) -> None:
    """Permanently remove dead letters with their history: the given ids, or all that match the filters.

    It prints a preview and asks for confirmation. It keeps jobs that die after the preview, and
    jobs whose dead-letter event a publisher has not published yet.
    With --json: {"matched": N, "removed": N, "dry_run": BOOL, "kept": {REASON: N}}
    """
    from taskharbor.cli.bulk import BulkPurge, died_before, select_dead_letters

    with open_driver(url) as driver:
        found = select_dead_letters(
            driver,
            job_ids,
            dead_filter(**filters),
            everything=everything or (older_than is not None and not job_ids),
            is_selected=died_before(driver, older_than),
        )
        if not found:
            echo_status(no_matches(driver, "dead letter", filters["queue"]))
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
    help="Only jobs that ended longer ago.",
)
@click.option(
    "--unpublished", is_flag=True, help="Also jobs with an unpublished dead-letter event; the event is dropped."
)
@confirm_options
@url_option
@json_option
def prune(*, url: str, older_than: timedelta, unpublished: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove finished jobs that are past their retention.

    Workers and janitors do this automatically after seven days. Dead letters are kept; see
    'taskharbor dead purge'. A store may keep some jobs for up to a day longer, and it keeps a job
    with a dead-letter event that a publisher has not published yet.
    With --json: {"found": N, "removed": N, "dry_run": BOOL, "kept": {REASON: N}}
    """
    from taskharbor.cli.bulk import prune_finished
    from taskharbor.cli.store import open_driver

    with open_driver(url) as driver:
        prune_finished(driver, older_than, unpublished=unpublished, yes=yes, dry_run=dry_run, as_json=as_json)
