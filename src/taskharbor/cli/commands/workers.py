from __future__ import annotations

import click

from taskharbor.cli.lazy import LazyGroup
from taskharbor.cli.operating import open_driver
from taskharbor.cli.options import json_option, url_option


@click.group(cls=LazyGroup)
def workers() -> None:
    """Look at workers."""


@workers.command(name="list")
@url_option
@json_option
def list_workers(*, url: str, as_json: bool) -> None:
    """List the workers that were heard of lately, and what each runs.

    With --json: {"workers": [...]}, each as the API shows it.
    """
    from taskharbor.cli.overview import show_workers

    with open_driver(url) as driver:
        show_workers(driver, driver.inspector.workers(), as_json=as_json)
