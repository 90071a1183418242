"""The application."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI
from fastapi.requests import HTTPConnection

from taskharbor._version import __version__
from taskharbor.api import openapi
from taskharbor.api.problems import add_handlers
from taskharbor.api.routes import dead_letters, events, job_actions, jobs, queues, schedules, stats
from taskharbor.api.sse import EventFeed
from taskharbor.api.state import AppState, KeyRule
from taskharbor.api.store import StoreGateway
from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from taskharbor.api.store import ApiBackend

MAX_BODY: Final = 262_144
"""The most bytes of a request's body; a batch may have 16 times as many."""


def create_app(
    harbor: ApiBackend, *, needs_keys: bool | None = True, only_local_hosts: bool = False, max_body: int = MAX_BODY
) -> FastAPI:
    """Return the HTTP API of *harbor* as an ASGI application, to be served or mounted.

    The harbor stays its owner's: whoever opened it closes it. Without *needs_keys* everybody who
    can reach the application may do everything: for development, or behind a door of your own.
    With None that is so until the store has a good key. *only_local_hosts* then rejects requests
    that name another host than localhost, or came through a proxy.

    >>> from taskharbor import Harbor
    >>> app = create_app(Harbor("memory://"))
    >>> app.title
    'TaskHarbor'
    """
    app = FastAPI(
        title="TaskHarbor",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    store = StoreGateway(harbor)
    app.state.taskharbor = AppState(
        store=store,
        feed=EventFeed(store),
        key_rule=KeyRule(needs_keys, store.has_keys),
        only_local_hosts=only_local_hosts,
        max_body=max_body,
    )
    for router in (
        jobs.router,
        job_actions.router,
        events.router,
        dead_letters.router,
        queues.router,
        schedules.router,
        stats.router,
        stats.health_router,
        openapi.router,
    ):
        app.router.routes.extend(router.routes)  # the routes themselves: each has to know what it needs
    add_handlers(app)
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
    return app


def close_streams(app: FastAPI) -> None:
    """End the waits and streams of *app*, which would keep a server from stopping."""
    api: AppState = app.state.taskharbor
    api.open.close()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    with suppress(StoreUnavailable):  # it opens when it can be reached; until then /readyz tells
        await app.state.taskharbor.store.ask()
    yield
    close_streams(app)


def harbor_from(request: HTTPConnection) -> Any:
    """Return the harbor of the application, in which `lifespan_for` put it: for `Depends`."""
    return request.state.harbor


def lifespan_for(
    harbor: AbstractAsyncContextManager[Any],
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return a lifespan for an application of your own: it closes *harbor* with it, and `harbor_from` finds it.

    >>> from fastapi import Depends, FastAPI
    >>> from taskharbor import Harbor
    >>> harbor = Harbor("memory://")
    >>> app = FastAPI(lifespan=lifespan_for(harbor))
    >>> app.mount("/jobs", create_app(harbor))
    """

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
        async with harbor:
            yield {"harbor": harbor}

    return lifespan
