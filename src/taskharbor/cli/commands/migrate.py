from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.render import echo_data, echo_status
from taskharbor.drivers import migrate as runner
from taskharbor.drivers.connect import schema_for, store_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.drivers.migrate import Migration, MigrationStatus, Schema


@click.group(cls=LazyGroup)
def migrate() -> None:
    """Bring the store's schema up to date, or look at it.

    With --json every command prints where the store stands:

    {"store": "sqlite", "schema": 0, "wanted": 1, "pending": ["0001_foundation"]}

    A store in memory keeps no schema: both numbers are null.
    """


@migrate.command()
@url_option
@json_option
def up(*, url: str, as_json: bool) -> None:
    """Apply every pending migration, and name each."""
    _run(_up, url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def status(*, url: str, as_json: bool) -> None:
    """Show the schema that is there, and what is pending."""
    _run(_status, url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def sql(*, url: str, as_json: bool) -> None:
    """Print the pending migrations as SQL, and apply nothing."""
    _run(runner.pending_sql, url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def check(*, url: str, as_json: bool) -> None:
    """Exit with 9 if the schema does not fit this version."""
    _run(_check, url, as_json=as_json)


def _run(verb: Callable[[Schema, Sequence[Migration]], str], url: str, *, as_json: bool) -> None:
    """Run *verb* on the store's schema, and print the text it returns, or as JSON where the store stands then."""
    # The URL and not a driver: a driver migrates a store, or refuses it, when it opens it.
    store, at_hand = store_kind(url), schema_for(url)
    if at_hand is None:
        _warn_no_schema(store, as_json=as_json)
        return
    text = verb(*at_hand)
    where = runner.migration_status(*at_hand)
    if as_json or text:
        echo_data(_data(store, where), as_json=as_json, plain=text.rstrip("\n"))
    else:
        echo_status(f"the schema is up to date: {where.found}")


def _up(schema: Schema, migrations: Sequence[Migration]) -> str:
    return _names(runner.migrate_up(schema, migrations))


def _status(schema: Schema, migrations: Sequence[Migration]) -> str:
    where = runner.migration_status(schema, migrations)
    pending = _names(where.pending).replace("\n", " ") or "none"
    return f"schema   {where.found}\nwanted   {where.wanted}\npending  {pending}"


def _check(schema: Schema, migrations: Sequence[Migration]) -> str:
    runner.check_schema(schema, migrations)
    return ""


def _names(migrations: Sequence[Migration]) -> str:
    return "\n".join(migration.name for migration in migrations)


def _data(store: str, where: MigrationStatus) -> dict[str, object]:
    pending = [migration.name for migration in where.pending]
    return {"store": store, "schema": where.found, "wanted": where.wanted, "pending": pending}


def _warn_no_schema(store: str, *, as_json: bool) -> None:
    if as_json:
        echo_data({"store": store, "schema": None, "wanted": None, "pending": []}, as_json=True, plain="")
    else:
        echo_status(f"the {store} store keeps no schema: there is nothing to migrate")
