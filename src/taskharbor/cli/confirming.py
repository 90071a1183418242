"""Before something large or destructive is done: what it would be, and a yes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taskharbor.cli.output import echo_status
from taskharbor.cli.refusals import NotConfirmed

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def confirm_options(command: F) -> F:
    """Add `--yes` as ``yes`` and `--dry-run` as ``dry_run``."""
    yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    return yes(click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")(command))


def confirm(what: str, *, yes: bool) -> None:
    """Ask a person whether to do *what*, or raise `NotConfirmed`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(what, "nobody can be asked here: look with --dry-run, then say --yes")
    echo_status(f"{what}?")
    if not click.confirm("go on", err=True):
        raise NotConfirmed(what, "'y' would have done it")
