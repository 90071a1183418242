from __future__ import annotations

import click

from taskharbor.cli.options import json_option, url_option


@click.command()
@url_option
@json_option
def stats(*, url: str, as_json: bool) -> None:
    """Show how much there is, and how fast jobs end.

    Counts are as of a few seconds ago.
    """
    from taskharbor.cli.operating import open_driver
    from taskharbor.cli.overview import show_stats

    with open_driver(url) as driver:
        show_stats(driver, as_json=as_json)
