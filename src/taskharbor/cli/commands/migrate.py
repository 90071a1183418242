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
    """Migrate the store's schema, or show its status.

    With --json every command prints the status:

    {"store": "sqlite", "schema": 0, "wanted": 1, "pending": ["0001_foundation"]}

    The memory store has no schema: both numbers are null.
    """


@migrate.command()
@url_option
@json_option
def up(*, url: str, as_json: bool) -> None:
    """Apply every pending migration, and print their names."""
    _run(_up, url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def status(*, url: str, as_json: bool) -> None:
    """Show the schema version and the pending migrations."""
    _run(_status, url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def sql(*, url: str, as_json: bool) -> None:
    """Print the pending migrations as SQL, without applying them."""
    _run(runner.pending_sql, url, as_json=as_json)


@migrate.command()
@url_option
@json_option
def check(*, url: str, as_json: bool) -> None:
    """Exit with 9 if the schema does not match this version of TaskHarbor."""
    _run(_check, url, as_json=as_json)


def _run(verb: Callable[[Schema, Sequence[Migration]], str], url: str, *, as_json: bool) -> None:
    """Run *verb* on the store's schema, and print its text, or the resulting status as JSON."""
    # Not through a driver: it migrates the store, or rejects it, when it opens it.
    store, schema = store_kind(url), schema_for(url)
    if schema is None:
        _print_no_schema(store, as_json=as_json)
        return
    text = verb(*schema)
    status = runner.migration_status(*schema)
    if as_json or text:
        echo_data(_data(store, status), as_json=as_json, plain=text.rstrip("\n"))
    else:
        echo_status(f"schema is up to date: {status.found}")


def _up(schema: Schema, migrations: Sequence[Migration]) -> str:
    return _names(runner.migrate_up(schema, migrations))


def _status(schema: Schema, migrations: Sequence[Migration]) -> str:
    status = runner.migration_status(schema, migrations)
    pending = _names(status.pending).replace("\n", " ") or "none"
    return f"schema   {status.found}\nwanted   {status.wanted}\npending  {pending}"


def _check(schema: Schema, migrations: Sequence[Migration]) -> str:
    runner.check_schema(schema, migrations)
    return ""


def _names(migrations: Sequence[Migration]) -> str:
    return "\n".join(migration.name for migration in migrations)


def _data(store: str, status: MigrationStatus) -> dict[str, object]:
    pending = [migration.name for migration in status.pending]
    return {"store": store, "schema": status.found, "wanted": status.wanted, "pending": pending}


def _print_no_schema(store: str, *, as_json: bool) -> None:
    if as_json:
        echo_data({"store": store, "schema": None, "wanted": None, "pending": []}, as_json=True, plain="")
    else:
        echo_status(f"the {store} store has no schema; nothing to migrate")
