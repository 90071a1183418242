"""What happens, as it happens: server-sent events."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter
from fastapi.responses import Response

from taskharbor.api import openapi
from taskharbor.api.openapi import describe
from taskharbor.api.routes.jobs import ThatJob
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
    shown = event("job", openapi.JOB).decode()
    content = {MEDIA_TYPE: {"schema": {"type": "string"}, "example": shown}}
    told = describe({}, 429, *problems)
    told["responses"][200] = {"description": "A stream of events.", "content": content}
    return told | {"response_class": Response}


@router.get("/jobs/{job_id}/events", summary="Follow a job", **_stream(404, 422))
@requires_scope("jobs:read")
async def follow(request: ApiRequest, job_id: ThatJob) -> Response:
    """Stream a job as it is and whenever it has changed, as `job`, until it has ended: `end` is the last event.

    It begins anew with every connection, so that nothing needs to be remembered.
    """
    api = request.api
    await api.store.get(job_id)
    listener = StreamBuffer()
    leave = api.open.enter(listener.end, request.caller.key_id)
    following = asyncio.get_running_loop().create_task(_follow(api, job_id, listener, request.root))

    def closed() -> None:
        leave()
        following.cancel()

    return EventStream(listener, closed, is_allowed=request.is_still_allowed)


@router.get("/events", summary="Follow all jobs", **_stream())
@requires_scope("jobs:read")
async def follow_all(request: ApiRequest) -> Response:
    """Stream what happens to the newest 100 jobs, as `job`, and the counts of all queues, as `queues`.

    The store is looked at once a second; what changed in between is told once. A client that falls
    100 events behind is disconnected, and finds the counts at the beginning of its next stream.
    """
    api = request.api
    listener = StreamBuffer()
    leave = api.open.enter(listener.end, request.caller.key_id)
    api.feed.join(listener)

    def closed() -> None:
        leave()
        api.feed.leave(listener)

    return EventStream(listener, closed, is_allowed=request.is_still_allowed)


async def _follow(api: AppState, job_id: JobId, listener: StreamBuffer, root: str) -> None:
    try:
        async for job in api.store.backend.watcher.watch(job_id, MAX_STREAM):
            listener.offer(event("job", job_view(job, now=api.store.clock.last(), root=root)))
            if job.status.is_final:
                listener.offer(event("end", {"status": job.status}))
    except TaskHarborError as error:  # the job was pruned, or the store is out of reach: the client connects anew
        _LOG.info("stopped following job %s: %s", job_id, error)
    finally:
        listener.end()
