"""The API mounted in a user's application."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI

from taskharbor.api import create_app, harbor_from, lifespan_for
from taskharbor.harbor import Harbor


def test_a_mounted_api_uses_its_mount_path_and_shares_the_harbor() -> None:
    harbor = Harbor("memory://")
    app = FastAPI(lifespan=lifespan_for(harbor))
    app.mount("/background", create_app(harbor, needs_keys=False))

    @app.post("/hello")
    async def hello(harbor: Annotated[Any, Depends(harbor_from)]) -> str:
        [queue] = harbor.driver.inspector.queues()
        return str(queue.name)

    async def use() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        async with app.router.lifespan_context(app) as state:
            transport = httpx.ASGITransport(_with_state(app, state))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                made = await client.post("/background/v1/jobs", json={"type": "greet"})
                found = await client.get(made.headers["location"])
                return made, found, await client.post("/hello")

    made, found, hello_there = asyncio.run(use())

    assert made.headers["location"] == f"/background/v1/jobs/{made.json()['id']}" == made.json()["links"]["self"]
    assert found.json()["id"] == made.json()["id"]
    assert hello_there.json() == "default"


def test_the_harbor_is_closed_with_the_application() -> None:
    harbor = Harbor("memory://")
    app = FastAPI(lifespan=lifespan_for(harbor))
    opened = []

    async def live() -> None:
        async with app.router.lifespan_context(app):
            opened.append(harbor.store)

    asyncio.run(live())

    assert harbor._store is None  # noqa: SLF001  shows that it is closed


def test_the_document_of_a_mounted_api_contains_its_path() -> None:
    harbor = Harbor("memory://")
    app = FastAPI()
    app.mount("/background", create_app(harbor))

    async def read() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.get("/background/openapi.json")

    assert asyncio.run(read()).json()["servers"] == [{"url": "/background"}]


def test_an_application_starts_while_its_store_is_unavailable() -> None:
    harbor = Harbor("postgresql://127.0.0.1:1/nothing")
    app = create_app(harbor, needs_keys=False)

    async def start() -> list[int]:
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return [(await client.get(path)).status_code for path in ("/livez", "/readyz", "/v1/jobs")]

    assert asyncio.run(start()) == [200, 503, 503]


def _with_state(app: FastAPI, state: Any) -> Any:
    """Add the lifespan's state to each request, as a server does."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "state": dict(state or {})}, receive, send)

    return wrapped
