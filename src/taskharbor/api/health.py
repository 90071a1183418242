"""Whether the process lives, and whether it is any use."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import shapes
from taskharbor.api.describing import described
from taskharbor.api.problems import Refusal
from taskharbor.api.replying import reply
from taskharbor.api.routing import PUBLIC, ApiRequest, ApiRoute, needs
from taskharbor.core.errors import TaskHarborError

router: Final = APIRouter(tags=["health"], route_class=ApiRoute)
PATIENCE: Final = 3.0  # seconds
_OK: Final = {200: (shapes.Health, {"status": "ok"})}


@router.get("/livez", summary="Is the process alive?", **described(_OK))
@needs(PUBLIC)
async def livez() -> Response:
    """Answer at all: the event loop turns. A store that is out of reach is no reason to restart."""
    return reply({"status": "ok"})


@router.get("/readyz", summary="Is it any use?", **described(_OK))
@needs(PUBLIC)
async def readyz(request: ApiRequest) -> Response:
    """Answer 200 where the store answers, and 503 where it does not."""
    store = request.api.store
    try:
        async with asyncio.timeout(PATIENCE):
            await store.ask()
    except (TaskHarborError, TimeoutError):
        detail = "the store is out of reach"
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "not-ready", detail) from None
    return reply({"status": "ok"})
