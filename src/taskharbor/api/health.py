"""Whether the process lives, and whether it is any use."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import shapes
from taskharbor.api.describing import describe
from taskharbor.api.problems import HttpProblem
from taskharbor.api.replying import json_response
from taskharbor.api.routing import PUBLIC, ApiRequest, ApiRoute, requires_scope
from taskharbor.core.errors import TaskHarborError

health_router: Final = APIRouter(tags=["health"], route_class=ApiRoute)
READY_TIMEOUT_SECONDS: Final = 3.0  # seconds
_OK: Final = {200: (shapes.Health, {"status": "ok"})}


@health_router.get("/livez", summary="Is the process alive?", **describe(_OK))
@requires_scope(PUBLIC)
async def livez() -> Response:
    """Answer at all: the event loop turns. A store that is out of reach is no reason to restart."""
    return json_response({"status": "ok"})


@health_router.get("/readyz", summary="Is it any use?", **describe(_OK))
@requires_scope(PUBLIC)
async def readyz(request: ApiRequest) -> Response:
    """Answer 200 where the store answers, and 503 where it does not."""
    store = request.api.store
    try:
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            await store.ask()
    except (TaskHarborError, TimeoutError):
        detail = "the store is out of reach"
        raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", detail) from None
    return json_response({"status": "ok"})
