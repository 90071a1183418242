"""The options of the dashboard, for the commands that serve it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.api.app import AppPart

_LOG: Final = logging.getLogger("taskharbor.api")


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """Whether the dashboard is served, whether it changes anything, and what the installation is called."""

    is_on: bool
    read_only: bool
    label: str | None

    def parts(self) -> Sequence[AppPart]:
        """Return the dashboard as a part of the API, if it is wanted and installed."""
        if not self.is_on:
            return []
        if find_spec("jinja2") is None:
            from taskharbor.installation import install_command

            _LOG.info("no dashboard: Jinja2 is not installed; run: %s", install_command("dashboard"))
            return []
        from taskharbor.dashboard import dashboard

        return [dashboard(label=self.label, read_only=self.read_only)]

    def words(self) -> list[str]:
        """Return the options as a child process takes them."""
        given = [] if self.is_on else ["--no-dashboard"]
        return [
            *given,
            *(["--read-only"] if self.read_only else []),
            *([] if self.label is None else ["--label", self.label]),
        ]


def dashboard_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the dashboard to *command*, which takes them as ``dashboard``."""

    @click.option("--dashboard/--no-dashboard", "is_on", default=True, help="Serve the dashboard at /ui, if installed.")
    @click.option("--read-only", is_flag=True, help="Reject every request that would change something.")
    @click.option("--label", metavar="TEXT", help="The name of the installation that the dashboard shows.")
    @wraps(command)
    def with_options(*args: Any, is_on: bool, read_only: bool, label: str | None, **options: Any) -> Any:
        given = DashboardOptions(is_on=is_on, read_only=read_only, label=label)
        return command(*args, dashboard=given, **options)

    return with_options
