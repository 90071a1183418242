"""Endpoints for server-sent events: the changes of one job, or of all jobs."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import openapi
from taskharbor.api.openapi import describe
from taskharbor.api.routes.jobs import JobIdParam
from taskharbor.api.routing import ApiRequest, ApiRoute, requires_scope
from taskharbor.api.sse import MAX_LIFE_SECONDS, MEDIA_TYPE, EventStream, StreamBuffer, event
from taskharbor.api.state import AppState
from taskharbor.core.errors import TaskHarborError
from taskharbor.core.ids import JobId
from taskharbor.views import job_view

_LOG: Final = logging.getLogger("taskharbor.api")
router: Final = APIRouter(prefix="/v1", tags=["events"], route_class=ApiRoute)

MAX_STREAM: Final = timedelta(seconds=MAX_LIFE_SECONDS)


def _stream(*problems: int) -> dict[str, Any]:
    example = event("job", openapi.JOB).decode()
    content = {MEDIA_TYPE: {"schema": {"type": "string"}, "example": example}}
    options = describe({}, 429, *problems)
    options["responses"][200] = {"description": "A stream of events.", "content": content}
    return options | {"response_class": Response}


@router.get("/jobs/{job_id}/events", summary="Follow a job", **_stream(404, 422))
@requires_scope("jobs:read")
async def follow(request: ApiRequest, job_id: JobIdParam) -> Response:
    """Stream a job as `job` events: its current state, then every change. The last event is `end`.

    Each connection starts with the current state, so no event id is needed to resume.
    """
    api = request.api
    await api.store.get(job_id)
    buffer = StreamBuffer()
    leave = api.open.enter(buffer.end, request.caller.key_id)
    following = asyncio.get_running_loop().create_task(_follow(api, job_id, buffer, request.root))

    def closed() -> None:
        leave()
        following.cancel()

    return EventStream(buffer, closed, is_allowed=request.is_still_allowed)


@router.get("/events", summary="Follow all jobs", **_stream())
@requires_scope("jobs:read")
async def follow_all(request: ApiRequest) -> Response:
    """Stream changes of the newest 100 jobs, as `job`, and the counts of all queues, as `queues`.

    The store is polled once a second; several changes within a second are sent as one. A client that falls
    100 events behind is disconnected. Each stream starts with the counts.
    """
    api = request.api
    buffer = StreamBuffer()
    leave = api.open.enter(buffer.end, request.caller.key_id)
    api.feed.join(buffer)

    def closed() -> None:
        leave()
        api.feed.leave(buffer)

    return EventStream(buffer, closed, is_allowed=request.is_still_allowed)


async def _follow(api: AppState, job_id: JobId, buffer: StreamBuffer, root: str) -> None:
    try:
        async for job in api.store.backend.watcher.watch(job_id, MAX_STREAM):
            buffer.offer(event("job", job_view(job, now=api.store.clock.last(), root=root)))
            if job.status.is_final:
                buffer.offer(event("end", {"status": job.status}))
    except TaskHarborError as error:  # the job was pruned, or the store is unavailable; the client reconnects
        _LOG.info("stopped following job %s: %s", job_id, error)
    finally:
        buffer.end()
