from __future__ import annotations

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import MAX_LIMIT, json_option, url_option
from taskharbor.cli.store import current_actor, open_driver


@click.group(cls=LazyGroup)
def operations() -> None:
    """List, show and stop bulk operations.

    Commands such as 'taskharbor dead requeue --all' create them.
    """


@operations.command(name="list")
@click.option(
    "-n", "--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, help="How many to show."
)
@click.option("--before", metavar="ID", help="Continue below this operation.")
@url_option
@json_option
def list_(*, url: str, limit: int, before: str | None, as_json: bool) -> None:
    """List bulk operations, newest first. Those that ended more than 30 days ago are removed.

    With --json: {"operations": [...]}
    """
    from taskharbor.cli.operations_view import find_operation, operation_row
    from taskharbor.cli.render import echo_data, print_table
    from taskharbor.views import operation_view

    with open_driver(url) as driver:
        below = None if before is None else find_operation(driver, before).id
        found = driver.operations.recent(limit=limit, before=below)
        if as_json:
            echo_data({"operations": list(map(operation_view, found))}, as_json=True, plain="")
            return
        titles = ("id", "kind", "state", "done", "refused", "matched", "created", "by", "reason")
        print_table(titles, [*map(operation_row, found)], now=driver.inspector.now(), empty="no operations")


@operations.command()
@click.argument("operation_id", metavar="ID")
@url_option
@json_option
def show(*, url: str, operation_id: str, as_json: bool) -> None:
    """Show all fields of a bulk operation, and its progress. ID may be shortened to a unique beginning."""
    from taskharbor.cli.operations_view import find_operation, show_operation

    with open_driver(url) as driver:
        show_operation(find_operation(driver, operation_id), as_json=as_json)


@operations.command()
@click.argument("operation_id", metavar="ID")
@url_option
@json_option
def stop(*, url: str, operation_id: str, as_json: bool) -> None:
    """Stop a bulk operation. If it has not started, it has changed no job.

    An operation that has ended stays as it is.
    """
    from taskharbor.cli.operations_view import find_operation, show_operation
    from taskharbor.core.text import plural
    from taskharbor.operations import stop as stop_operation

    with open_driver(url) as driver:
        stopped = stop_operation(driver, find_operation(driver, operation_id).id, by=current_actor())
        show_operation(stopped, as_json=as_json, plain=f"{stopped.state.value}: {plural(stopped.done, 'job')} changed")
