from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from taskharbor.api_keys import SCOPES
from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import duration, json_option, url_option
from taskharbor.cli.render import echo_data, echo_status
from taskharbor.cli.store import open_driver, require_name

if TYPE_CHECKING:
    from datetime import timedelta

TITLES: Final = ("id", "name", "scopes", "created", "used", "expires", "revoked")


@click.group(cls=LazyGroup)
def keys() -> None:
    """Create, list and revoke keys for the HTTP API."""


@keys.command()
@click.argument("name")
@click.option(
    "-s",
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    required=True,
    help="A scope of the key; may be repeated.",
)
@click.option("--expires-in", type=duration, metavar="TIME", help="When the key expires.  [default: never]")
@url_option
@json_option
def create(*, url: str, name: str, scopes: tuple[str, ...], expires_in: timedelta | None, as_json: bool) -> None:
    """Create a key and print it. It is shown only once; the store keeps a hash.

    With --json: {"key": TEXT, "id", "name", "scopes", "created_at", "expires_at", "revoked_at", "used_at"}
    """
    from taskharbor.api_keys import issue_key
    from taskharbor.cli.store import record_audit
    from taskharbor.views import key_view

    with open_driver(url) as driver:
        now = driver.inspector.now()
        issued = issue_key(name, scopes, now=now, expires_at=None if expires_in is None else now + expires_in)
        driver.control.add_keys([issued.key])
        record_audit(driver, "keys.create", issued.key.id, name=name, scopes=" ".join(issued.key.scopes))
    echo_data({"key": issued.text} | key_view(issued.key), as_json=as_json, plain=issued.text)
    echo_status(f"save it now: key {issued.key.id} cannot be shown again")


@keys.command(name="list")
@click.option("--sessions", is_flag=True, help="Also the sessions of the dashboard that were made from keys.")
@url_option
@json_option
def list_(*, url: str, sessions: bool, as_json: bool) -> None:
    """List keys, with revoked and expired ones. The key texts are not shown. A use is recorded once a minute.

    With --json: {"keys": [...]}
    """
    from taskharbor.cli.render import print_table
    from taskharbor.views import key_view

    with open_driver(url) as driver:
        found = [key for key in driver.inspector.keys().values() if sessions or key.parent is None]
        if as_json:
            echo_data({"keys": list(map(key_view, found))}, as_json=True, plain="")
            return
        rows = [
            [key.id, key.name, " ".join(key.scopes), key.created_at, key.used_at, key.expires_at, key.revoked_at]
            for key in found
        ]
        print_table(TITLES, rows, now=driver.inspector.now(), empty="no keys")


@keys.command()
@click.argument("key_id", metavar="ID")
@url_option
@json_option
def revoke(*, url: str, key_id: str, as_json: bool) -> None:
    """Revoke a key permanently. This takes effect within a few seconds."""
    from taskharbor.cli.store import record_audit
    from taskharbor.views import key_view

    with open_driver(url) as driver:
        require_name("key", key_id, driver.inspector.keys())
        [is_new] = driver.control.revoke_keys([key_id])
        if is_new:
            record_audit(driver, "keys.revoke", key_id)
        else:
            echo_status(f"key {key_id} was already revoked")
        echo_data(key_view(driver.inspector.keys([key_id])[key_id]), as_json=as_json, plain=key_id)
