"""Server-sent events: the response class, its buffer, and a feed that polls the store once a second for all clients."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import anyio
from fastapi.responses import Response

from taskharbor.core.results import JobFilter
from taskharbor.views import job_view, queue_view

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from taskharbor.api.store import StoreGateway
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary

MAX_BUFFERED_EVENTS: Final = 100
"""Events that wait for one client. A client that falls further behind is disconnected and must reconnect."""
KEEP_ALIVE_SECONDS: Final = 15.0
"""How often a comment is sent, which is less than the idle timeout of proxies. The key is checked as often."""
MAX_LIFE_SECONDS: Final = 3_600.0
"""How long one stream lasts. Clients reconnect then; browsers do so by themselves."""
SEND_TIMEOUT_SECONDS: Final = 10.0
"""How long sending one event may take."""
MEDIA_TYPE: Final = "text/event-stream"
_END: Final = b""
_KEEP_ALIVE: Final = b": beat\n\n"
_LOG: Final = logging.getLogger("taskharbor.api")
POLL_SECONDS: Final = 1.0
MAX_FEED_JOBS: Final = 100


def event(name: str, data: Any) -> bytes:
    r"""Return an event in the wire format.

    >>> event("job", {"id": 7})
    b'event: job\ndata: {"id":7}\n\n'
    """
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class StreamBuffer:
    """The events that wait to be sent to one client."""

    def __init__(self, *, size: int = MAX_BUFFERED_EVENTS) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue(size)
        self.is_ended = False

    def offer(self, chunk: bytes) -> None:
        """Add an event. If the buffer is full, end the stream: the client is too slow."""
        try:
            self._events.put_nowait(chunk)
        except asyncio.QueueFull:
            self.is_ended = True

    def end(self) -> None:
        """End the stream after the buffered events."""
        self.offer(_END)

    async def next(self, timeout: float) -> bytes:  # noqa: ASYNC109  a timeout sends a keep-alive; it is not an error
        """Return the next chunk: an event, nothing at the end, or a keep-alive comment after *timeout* seconds."""
        if self.is_ended:
            return _END
        try:
            async with asyncio.timeout(timeout):
                return await self._events.get()
        except TimeoutError:
            return _KEEP_ALIVE


class EventStream(Response):
    """A response that sends the events of a buffer until it ends or the client disconnects, then calls *closed*.

    Every `KEEP_ALIVE_SECONDS`, also on a busy stream, it calls *is_allowed* and ends if the caller lost access.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self, buffer: StreamBuffer, closed: Callable[[], None], *, is_allowed: Callable[[], Awaitable[bool]]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._buffer = buffer
        self._closed = closed
        self._is_allowed = is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's signature
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_stop_on_disconnect, receive, tasks.cancel_scope)
                await self._send(send)
                tasks.cancel_scope.cancel()
        finally:
            self._closed()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        is_open, now = True, time.monotonic()
        check_at, end_at = now + KEEP_ALIVE_SECONDS, now + MAX_LIFE_SECONDS
        while is_open:
            chunk = await self._buffer.next(max(0.0, check_at - time.monotonic()))
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + KEEP_ALIVE_SECONDS
                if check_at > end_at or not await self._is_allowed():
                    chunk = _END
            is_open = chunk is not _END
            with anyio.move_on_after(SEND_TIMEOUT_SECONDS) as timeout:
                await send({"type": "http.response.body", "body": chunk, "more_body": is_open})
            if timeout.cancelled_caught:
                return


async def run_until_disconnected(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    await run_until_disconnected(receive)
    scope.cancel()


class EventFeed:
    """Polls the newest 100 jobs and the counts of all queues while any client is connected.

    It sends ``job`` when one of these jobs is new or has changed its status, attempt or progress; changes
    within one second are sent as one. It sends ``queues`` with the counts of all queues at the beginning
    and whenever they change, so a client sees that something happened even if it gets no ``job`` for it.
    """

    def __init__(self, store: StoreGateway) -> None:
        self._store = store
        self._buffers: set[StreamBuffer] = set()
        self._polling: Task[None] | None = None
        self._snapshot = FeedSnapshot(store)

    def join(self, buffer: StreamBuffer) -> None:
        """Add events to *buffer* until `leave` is called with it."""
        if self._polling is None:
            self._snapshot = FeedSnapshot(self._store)
            self._polling = asyncio.get_running_loop().create_task(self._poll(self._snapshot))
        elif self._snapshot.queues:
            buffer.offer(self._snapshot.queues)
        self._buffers.add(buffer)

    def leave(self, buffer: StreamBuffer) -> None:
        """Remove a buffer; stop polling if it was the last one."""
        self._buffers.discard(buffer)
        if not self._buffers and self._polling is not None:
            self._polling.cancel()
            self._polling = None

    async def _poll(self, snapshot: FeedSnapshot) -> None:
        while True:
            try:
                events = await self._store.call(snapshot.changes)
            except Exception as error:  # noqa: BLE001  the next poll may succeed
                _LOG.warning("event feed: polling failed; retrying: %s", error)
            else:
                self._publish(events)
            await asyncio.sleep(POLL_SECONDS)

    def _publish(self, events: list[bytes]) -> None:
        for buffer in self._buffers:
            for each in events:
                buffer.offer(each)


class FeedSnapshot:
    """The jobs and queue counts of the last poll."""

    def __init__(self, store: StoreGateway) -> None:
        self._store = store
        self._seen: dict[JobId, tuple[object, ...]] | None = None
        self.queues = b""

    def changes(self) -> list[bytes]:
        """Read jobs and counts, and return events for the changes since the last poll."""
        inspector, now = self._store.inspector, self._store.clock.now()
        jobs = inspector.find(JobFilter(), limit=MAX_FEED_JOBS).jobs
        before, self._seen = self._seen, {job.id: _version(job) for job in jobs}
        changed = [] if before is None else [job for job in reversed(jobs) if before.get(job.id) != _version(job)]
        events = [event("job", job_view(job, now=now)) for job in changed]
        queues = [queue_view(each, now=now) for each in inspector.queues()]
        counts = event("queues", {"queues": [_without_age(each) for each in queues]})
        if counts != self.queues:
            self.queues = counts
            events.append(counts)
        return events


def _version(job: JobSummary) -> tuple[object, ...]:
    return job.status, job.attempt_count, job.life, job.scheduled_for, job.cancel_requested_at, job.progress


def _without_age(queue: dict[str, object]) -> dict[str, object]:
    """Return *queue* without its age, which changes with every poll."""
    return {name: value for name, value in queue.items() if name != "oldest_age_seconds"}
