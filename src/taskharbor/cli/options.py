"""Options that many commands share, so that they have one name, one help and one meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def json_option(command: F) -> F:
    """Add `--json` as ``as_json``: for every command that prints data."""
    return click.option("--json", "as_json", is_flag=True, help="Print data, and errors, as JSON.")(command)


def url_option(command: F) -> F:
    """Add `--url` as ``url``, which is never missing: for every command that needs a store."""
    # Not click's envvar: the environment is read in settings.py only.
    text = "The store, such as memory://  [default: TASKHARBOR_URL]"
    return click.option("--url", metavar="URL", callback=_given_or_set, help=text)(command)


def url_of_app_option(command: F) -> F:
    """Add `--url` as ``url``, which may be None: for commands whose app may name its store itself."""
    text = "The store, such as sqlite:///jobs.db  [default: the app's own, else TASKHARBOR_URL]"
    return click.option("--url", metavar="URL", help=text)(command)


def url_or_app_option(command: F) -> F:
    """Add `--url` as ``url``, which may be None: for operating commands that take an app."""
    text = "The store, such as sqlite:///jobs.db  [default: TASKHARBOR_URL, else the app's own]"
    return click.option("--url", metavar="URL", callback=_given_or_set_or_none, help=text)(command)


def app_option(command: F) -> F:
    """Add `--app` as ``app``, which may be None: for commands that write payloads."""
    text = "The app whose codec writes the payload, as for 'worker'.  [default: found as 'worker' finds it]"
    return click.option("--app", metavar="APP", help=text)(command)


def _given_or_set_or_none(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return Settings.from_env().url if value is None else value


def _given_or_set(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    return Settings.from_env().require_url() if value is None else value
