from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import (
    bulk_options,
    confirm_options,
    dead_filter,
    dead_options,
    duration,
    json_option,
    page_options,
    url_option,
)
from taskharbor.cli.store import open_driver

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
    from taskharbor.cli.job_ids import job_id_of
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
    from taskharbor.cli.render import echo_data, print_table
    from taskharbor.statistics import read_groups

    with open_driver(url) as driver:
        if as_json:
            echo_data({"groups": read_groups(driver.inspector, limit=limit, queue=queue)}, as_json=True, plain="")
            return
        found = driver.inspector.dead_letter_groups(limit=limit, queue=queue)
        rows: list[list[Cell]] = [
            [each.count, each.fingerprint, each.queue, each.type, each.first_at, each.last_at, each.error]
            for each in found
        ]
        titles = ("count", "fingerprint", "queue", "type", "first", "last", "error")
        print_table(titles, rows, now=driver.inspector.now(), empty="no dead letters")


@dead.command()
@click.argument("job_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that the filters leave.")
@dead_options
@click.option("--budget", type=click.IntRange(min=1), help="How many attempts each gets.  [default: as many as it had]")
@bulk_options
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
    start_in: timedelta,
    no_wait: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **filters: FilterValue,
) -> None:
    """Requeue dead letters: the given ids, or all that match the filters.

    For several ids or a filter, it prints a preview and asks for confirmation. With a filter, it creates a bulk
    operation and waits for its end; see 'taskharbor operations'. Jobs that die later are not changed.
    With --json: {"matched": N, "requeued": N, "dry_run": BOOL, "refused": [...], "operation": ID or null}
    """
    from taskharbor.cli.bulk import BulkRequeue
    from taskharbor.cli.job_ids import job_ids_of
    from taskharbor.cli.operations_view import BulkOperation, BulkSettings, check_selection
    from taskharbor.core.operations import OperationKind, OperationOptions

    wanted = dead_filter(**filters)
    settings = BulkSettings(yes=yes, dry_run=dry_run, as_json=as_json, starts_in=start_in, no_wait=no_wait)
    has_filter = everything or any(filters.values())
    check_selection(has_ids=bool(job_ids), has_filter=has_filter, settings=settings, what="dead letter")
    with open_driver(url) as driver:
        if job_ids:
            BulkRequeue(driver, budget=budget, reason=reason, rate=rate).run(
                job_ids_of(driver, job_ids), yes=yes, dry_run=dry_run, as_json=as_json
            )
            return
        options = OperationOptions(budget=budget, rate=rate)
        BulkOperation(driver, OperationKind.REQUEUE, wanted, what="dead letter", reason=reason, options=options).run(
            settings
        )


@dead.command()
@click.argument("job_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that the filters leave.")
@dead_options
@click.option("--older-than", type=duration, metavar="TIME", help="Only jobs that died longer ago.")
@click.option(
    "--unpublished", is_flag=True, help="Also jobs whose dead-letter event is unpublished; the event is dropped."
)
@bulk_options
@url_option
@json_option
def purge(
    *,
    url: str,
    job_ids: tuple[str, ...],
    everything: bool,
    older_than: timedelta | None,
    unpublished: bool,
    reason: str,
    rate: float | None,
    start_in: timedelta,
    no_wait: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **filters: FilterValue,
) -> None:
    """Permanently remove dead letters with their history: the given ids, or all that match the filters.

    It prints a preview and asks for confirmation. With a filter, it creates a bulk operation and waits for its end;
    see 'taskharbor operations'. It keeps jobs that die later, and jobs whose dead-letter event a publisher has not
    published yet.
    With --json: {"matched": N, "removed": N, "dry_run": BOOL, "kept": {REASON: N}, "operation": ID or null}
    """
    from taskharbor.cli.bulk import BulkPurge
    from taskharbor.cli.job_ids import job_ids_of
    from taskharbor.cli.operations_view import BulkOperation, BulkSettings, check_selection
    from taskharbor.core.operations import OperationKind, OperationOptions

    wanted = dead_filter(**filters)
    settings = BulkSettings(yes=yes, dry_run=dry_run, as_json=as_json, starts_in=start_in, no_wait=no_wait)
    everything = everything or (older_than is not None and not job_ids)
    has_filter = everything or any(filters.values())
    check_selection(has_ids=bool(job_ids), has_filter=has_filter, settings=settings, what="dead letter")
    with open_driver(url) as driver:
        if job_ids:
            BulkPurge(driver, older_than=older_than, unpublished=unpublished).run(
                job_ids_of(driver, job_ids), yes=yes, dry_run=dry_run, as_json=as_json
            )
            return
        options = OperationOptions(older_than=older_than, gives_up=unpublished, rate=rate)
        BulkOperation(driver, OperationKind.PURGE, wanted, what="dead letter", reason=reason, options=options).run(
            settings
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
