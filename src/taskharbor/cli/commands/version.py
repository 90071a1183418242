from __future__ import annotations

import platform

import click

from taskharbor._version import __version__
from taskharbor.cli.options import json_option
from taskharbor.cli.output import echo_data


@click.command()
@json_option
def version(*, as_json: bool) -> None:
    """Say what is installed here.

    With --json: {"version": ..., "python": ..., "platform": ...}
    """
    facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    echo_data(facts, as_json=as_json, plain="taskharbor {version} (Python {python}, {platform})".format(**facts))
