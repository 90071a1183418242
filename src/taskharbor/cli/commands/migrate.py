from __future__ import annotations

import click

from taskharbor.cli.lazy import LazyGroup
from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.output import say, show
from taskharbor.drivers.connect import store_of


@click.group(cls=LazyGroup)
def migrate() -> None:
    """Bring the store's schema up to date, or look at it.

    With --json every command prints where the store stands:

    {"store": "memory", "schema": null, "wanted": null, "pending": []}
    """


@migrate.command()
@url_option
@json_option
def up(*, url: str, as_json: bool) -> None:
    """Apply every pending migration."""
    _tell_where_it_stands(url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def status(*, url: str, as_json: bool) -> None:
    """Show the schema that is there, and what is pending."""
    _tell_where_it_stands(url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def sql(*, url: str, as_json: bool) -> None:
    """Print the pending migrations as SQL, and apply nothing."""
    _tell_where_it_stands(url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def check(*, url: str, as_json: bool) -> None:
    """Exit with 9 if the schema does not fit this version."""
    _tell_where_it_stands(url, as_json=as_json)


def _tell_where_it_stands(url: str, *, as_json: bool) -> None:
    # The URL and not a driver: a driver may refuse to open a store with an old schema.
    store = store_of(url)
    # Every store that this version opens is kept in memory; the first with tables brings the runner.
    if as_json:
        show({"store": store, "schema": None, "wanted": None, "pending": []}, as_json=True, plain="")
    else:
        say(f"the {store} store keeps no schema: there is nothing to migrate")
