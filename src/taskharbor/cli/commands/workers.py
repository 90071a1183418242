from __future__ import annotations

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.store import open_driver, require_name


@click.group(cls=LazyGroup)
def workers() -> None:
    """List workers; show what one holds and what was lost with it."""


@workers.command(name="list")
@click.option("--all", "include_past", is_flag=True, help="Also those that stopped or died in the last seven days.")
@url_option
@json_option
def list_(*, url: str, include_past: bool, as_json: bool) -> None:
    """List the workers that sent a heartbeat recently, with their queues and types.

    With --json: {"workers": [...]}, each as the API returns it.
    """
    from taskharbor.cli.stats_view import show_workers
    from taskharbor.workers import list_workers

    with open_driver(url) as driver:
        show_workers(driver, list_workers(driver.inspector, include_past=include_past), as_json=as_json)


@workers.command()
@click.argument("worker_id", metavar="ID")
@url_option
@json_option
def show(*, url: str, worker_id: str, as_json: bool) -> None:
    """Show a worker, the jobs that it holds, and those that were lost with it and what became of them.

    Workers that are gone are kept for seven days. With --json the worker is printed as the API returns it.
    """
    from taskharbor.cli.worker_view import show_worker
    from taskharbor.workers import list_workers

    with open_driver(url) as driver:
        known = {each.id: each for each in list_workers(driver.inspector, include_past=True)}
        require_name("worker", worker_id, known)
        show_worker(driver, known[worker_id], as_json=as_json)
