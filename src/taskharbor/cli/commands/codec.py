from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import confirm, confirm_options, json_option, url_option
from taskharbor.cli.render import echo_data, echo_status

if TYPE_CHECKING:
    from taskharbor.drivers.base import Driver


@click.group(cls=LazyGroup)
def codec() -> None:
    """Show or change the codec for payloads.

    The first client or worker of a store records the name of its codec there. Processes with
    another codec are rejected. To change the codec of a store:

    \b
    1. Deploy a codec that reads both formats and still writes the old one, under the old name.
    2. Run 'taskharbor codec set NAME' with the name of the new codec.
    3. Deploy the codec that writes the new format under the new name, and still reads the old one.

    Running processes are not affected. A process that starts with the old codec between steps 2
    and 3 is rejected.
    """  # noqa: D301  click needs the character \b


@codec.command(name="show")
@url_option
@json_option
def show_(*, url: str, as_json: bool) -> None:
    """Print the name of the recorded codec; print nothing if none is recorded yet.

    With --json: {"codec": NAME}, or null
    """
    from taskharbor.cli.store import open_driver
    from taskharbor.core.codec import CODEC_SETTING

    with open_driver(url) as driver:
        name = driver.inspector.settings().get(CODEC_SETTING)
    if name is None and not as_json:
        echo_status("no codec recorded; the first client or worker records its own")
    else:
        echo_data({"codec": name}, as_json=as_json, plain=str(name))


@codec.command(name="set")
@click.argument("name")
@confirm_options
@url_option
@json_option
def set_(*, url: str, name: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Record another codec, and print the recorded name.

    Stored payloads are not changed: every worker must be able to read them with the new codec.
    """
    from taskharbor.cli.store import open_driver
    from taskharbor.core.codec import CODEC_SETTING, check_name

    check_name(name)
    with open_driver(url) as driver:
        before = after = driver.inspector.settings().get(CODEC_SETTING)
        if not dry_run:
            after = _record(driver, name, before, yes=yes)
        echo_data({"codec": after}, as_json=as_json, plain=after or "")
        if dry_run:
            echo_status(f"would change {before!r} to {name!r}" if before else f"would record {name!r}")


def _record(driver: Driver, name: str, before: str | None, *, yes: bool) -> str:
    from taskharbor.cli.errors import CodecNotRecorded
    from taskharbor.cli.store import record_audit
    from taskharbor.core.codec import CODEC_SETTING

    if before is None:
        driver.remember(CODEC_SETTING, name)
    elif before != name:
        confirm(f"change the codec of this store from {before!r} to {name!r}", yes=yes)
        driver.control.change_setting(CODEC_SETTING, name, instead_of=before)
    if (after := driver.inspector.settings().get(CODEC_SETTING)) != name:
        raise CodecNotRecorded(name, after)
    if before != name:
        record_audit(driver, "codec.set", name, before=before or "")
    return name
