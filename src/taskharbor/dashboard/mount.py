"""The dashboard as a part of the HTTP API's application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskharbor.dashboard.pages import ROUTERS, fallback
from taskharbor.dashboard.queries import Reads
from taskharbor.dashboard.sessions import Authorize, Sessions
from taskharbor.dashboard.state import Assets, LastPages, UiState, make_environment

if TYPE_CHECKING:
    from fastapi import FastAPI

    from taskharbor.api.state import AppState


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """The dashboard as a part for `taskharbor.api.create_app`."""

    label: str | None = None
    read_only: bool = False
    authorize: Authorize | None = None

    @property
    def name(self) -> str:
        """What the log calls it."""
        return "dashboard"

    @property
    def path(self) -> str:
        """The path of the first page."""
        return "/ui"

    def install(self, app: FastAPI) -> None:
        """Add the pages and their state to *app*."""
        api: AppState = app.state.taskharbor
        routes = [route for router in (*ROUTERS, fallback.router) for route in router.routes]
        app.router.routes.extend(routes)
        paths = {str(getattr(route, "path", "")).removeprefix("/ui") for route in routes}
        app.state.taskharbor_dashboard = UiState(
            environment=make_environment(),
            assets=Assets(),
            sessions=Sessions(api.store),
            reads=Reads(api.store, changed_at=lambda: api.feed.changed_at),
            label=self.label,
            read_only=self.read_only,
            authorize=self.authorize,
            paths=frozenset(each for each in paths if "{" not in each),
            last_pages=LastPages(),
        )


def dashboard(*, label: str | None = None, read_only: bool = False, authorize: Authorize | None = None) -> Dashboard:
    """Return the dashboard for ``create_app(harbor, parts=[dashboard()])``. It is served at ``/ui``.

    *label* is the name of the installation, such as "production". If *read_only*, nothing can be changed. *authorize*
    replaces the login with API keys: it returns the `Person` of a request, or None; it may be async.

    >>> from taskharbor import Harbor
    >>> from taskharbor.api import create_app
    >>> app = create_app(Harbor("memory://"), parts=[dashboard(label="production")])
    """
    return Dashboard(label=label, read_only=read_only, authorize=authorize)
