"""Data goes to stdout, talk to stderr. Colour is for terminals whose owner did not set NO_COLOR."""

from __future__ import annotations

import json
from typing import Any

import click

from taskharbor.settings import Settings


def echo_data(data: Any, *, as_json: bool, plain: str) -> None:
    """Print *data* as one line of JSON, or else as *plain* text."""
    click.echo(json.dumps(data) if as_json else plain, color=_color())


def echo_status(text: str) -> None:
    """Tell a person something that no program should read."""
    click.echo(text, err=True, color=_color())


def _color() -> bool | None:
    return False if Settings.from_env().no_color else None  # None: as the stream is
