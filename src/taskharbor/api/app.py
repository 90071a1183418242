"""The FastAPI application of the HTTP API, and helpers for mounting it in another application."""

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

MAX_BODY_BYTES: Final = 262_144
"""The maximum size of a request body. A batch may be 16 times as large."""


def create_app(
    harbor: ApiBackend,
    *,
    needs_keys: bool | None = True,
    only_local_hosts: bool = False,
    max_body: int = MAX_BODY_BYTES,
) -> FastAPI:
    """Return the HTTP API of *harbor* as an ASGI application that you can serve or mount.

    The application does not close *harbor*. If *needs_keys* is False, every client that can reach the
    application has full access: use this for development, or behind your own authentication. If it is
    None, keys are required as soon as the store has a valid key. Until then, *only_local_hosts* rejects
    requests whose Host is not this machine and requests that came through a proxy.

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
        app.router.routes.extend(router.routes)  # reuse the ApiRoute objects; include_router() would copy them
    add_handlers(app)
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
    return app


def close_streams(app: FastAPI) -> None:
    """End the open waits and streams of *app*; they would delay the server's shutdown."""
    api: AppState = app.state.taskharbor
    api.open.close()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    with suppress(StoreUnavailable):  # the store is opened later; until then /readyz answers 503
        await app.state.taskharbor.store.ping()
    yield
    close_streams(app)


def harbor_from(request: HTTPConnection) -> Any:
    """Return the harbor that `lifespan_for` added to the application's state. Use it with `Depends`."""
    return request.state.harbor


def lifespan_for(
    harbor: AbstractAsyncContextManager[Any],
) -> Callable[[Any], AbstractAsyncContextManager[dict[str, Any]]]:
    """Return a lifespan for your application that closes *harbor* at shutdown and provides it to `harbor_from`.

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
