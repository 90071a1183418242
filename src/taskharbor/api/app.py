"""The FastAPI application of the HTTP API, and helpers for mounting it in another application."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from fastapi import FastAPI
from fastapi.requests import HTTPConnection

from taskharbor._version import __version__
from taskharbor.api import openapi
from taskharbor.api.problems import add_handlers
from taskharbor.api.routes import (
    admin,
    dead_letters,
    events,
    job_actions,
    job_history,
    jobs,
    metrics,
    operations,
    queues,
    schedules,
    stats,
    workers,
)
from taskharbor.api.sse import EventFeed
from taskharbor.api.state import AppState, KeyRule
from taskharbor.api.store import StoreGateway
from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from prometheus_client import CollectorRegistry

    from taskharbor.api.state import UnknownTypes
    from taskharbor.api.store import ApiBackend


class AppPart(Protocol):
    """A part that adds routes of its own to the application, such as `taskharbor.dashboard.dashboard`."""

    @property
    def name(self) -> str:
        """What the log calls it."""

    @property
    def path(self) -> str:
        """The path of its first page."""

    def install(self, app: FastAPI) -> None:
        """Add the routes and the state of the part to *app*."""


MAX_BODY_BYTES: Final = 262_144
"""The maximum size of a request body. A batch may be 16 times as large."""


ROUTERS: Final = (
    jobs.router,
    job_history.router,
    job_actions.router,
    events.router,
    dead_letters.router,
    operations.router,
    queues.router,
    schedules.router,
    workers.router,
    stats.router,
    admin.router,
    stats.health_router,
    metrics.router,
    openapi.router,
)


def create_app(
    harbor: ApiBackend,
    *,
    needs_keys: bool | None = True,
    only_local_hosts: bool = False,
    max_body: int = MAX_BODY_BYTES,
    unknown_types: UnknownTypes = "refuse",
    registry: CollectorRegistry | None = None,
    read_only: bool = False,
    parts: Iterable[AppPart] = (),
) -> FastAPI:
    """Return the HTTP API of *harbor* as an ASGI application that you can serve or mount.

    The application does not close *harbor*. If *needs_keys* is False, every client that can reach the
    application has full access: use this for development, or behind your own authentication. If it is
    None, keys are required as soon as the store has a valid key. Until then, *only_local_hosts* rejects
    requests whose Host is not this machine and requests that came through a proxy.

    If *harbor* has tasks, new jobs get the options of their task, and their payload is checked against its parameters.
    A type that no task has is rejected, unless *unknown_types* is "accept".

    If *read_only*, every request that would change something is rejected, whatever the scopes of its key.

    With *registry*, of the package prometheus_client, ``/metrics`` exports its metrics and the gauges of the store.
    Each of *parts* adds its own pages: ``parts=[taskharbor.dashboard.dashboard()]`` adds the dashboard at ``/ui``.

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
        accepts_unknown=unknown_types == "accept",
        metrics=registry,
        is_read_only=read_only,
    )
    if registry is not None:
        _export_gauges(store, registry)
    for router in ROUTERS:
        app.router.routes.extend(router.routes)  # reuse the ApiRoute objects; include_router() would copy them
    for part in parts:
        part.install(app)
    add_handlers(app)
    app.openapi = partial(openapi.document, app)  # type: ignore[method-assign]
    return app


def _export_gauges(store: StoreGateway, registry: CollectorRegistry) -> None:
    from taskharbor.store_metrics import StoreGauges  # noqa: PLC0415  optional

    StoreGauges(lambda: store.inspector, registry)


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
