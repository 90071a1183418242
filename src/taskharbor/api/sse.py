"""What happens to all jobs, for whoever listens: one look at the store a second, however many listen."""

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

BUFFER: Final = 100
"""Events that a client may be behind. One that falls back further is dropped, and connects anew."""
KEEP_ALIVE_SECONDS: Final = (
    15.0  # seconds; less than what proxies take for silence. The caller's key is checked as often
)
MAX_LIFE_SECONDS: Final = 3_600.0
"""How long one stream lives; a client that still listens connects anew, as browsers do by themselves."""
SEND_TIMEOUT_SECONDS: Final = 10.0  # seconds that one event may take to go out
MEDIA_TYPE: Final = "text/event-stream"
_END: Final = b""
_KEEP_ALIVE: Final = b": beat\n\n"
_LOG: Final = logging.getLogger("taskharbor.api")
POLL_SECONDS: Final = 1.0  # seconds
NEWEST: Final = 100


def event(name: str, data: Any) -> bytes:
    r"""Return an event as it goes over the wire.

    >>> event("job", {"id": 7})
    b'event: job\ndata: {"id":7}\n\n'
    """
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class StreamBuffer:
    """The buffer of one client."""

    def __init__(self, *, size: int = BUFFER) -> None:
        self._events: asyncio.Queue[bytes] = asyncio.Queue(size)
        self.is_over = False

    def offer(self, chunk: bytes) -> None:
        """Add an event; a client whose buffer is full has lost the thread, and is let go."""
        try:
            self._events.put_nowait(chunk)
        except asyncio.QueueFull:
            self.is_over = True

    def end(self) -> None:
        """Let the stream end once everything in it went out."""
        self.offer(_END)

    async def next(self, timeout: float) -> bytes:  # noqa: ASYNC109  its end is a beat, and no error
        """Return what is to be sent next; nothing, when it is over; a beat after *timeout* seconds."""
        if self.is_over:
            return _END
        try:
            async with asyncio.timeout(timeout):
                return await self._events.get()
        except TimeoutError:
            return _KEEP_ALIVE


class EventStream(Response):
    """Sends what a listener hears until it is over or the client goes, and then calls *closed*.

    At every beat, however much there is to send, *is_allowed* is asked whether the caller may still listen.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self, listener: StreamBuffer, closed: Callable[[], None], *, is_allowed: Callable[[], Awaitable[bool]]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._listener = listener
        self._closed = closed
        self._is_allowed = is_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  ASGI's
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
            chunk = await self._listener.next(max(0.0, check_at - time.monotonic()))
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + KEEP_ALIVE_SECONDS
                if check_at > end_at or not await self._is_allowed():
                    chunk = _END
            is_open = chunk is not _END
            with anyio.move_on_after(SEND_TIMEOUT_SECONDS) as patience:
                await send({"type": "http.response.body", "body": chunk, "more_body": is_open})
            if patience.cancelled_caught:
                return


async def run_until_disconnected(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    await run_until_disconnected(receive)
    scope.cancel()


class EventFeed:
    """Looks at the newest 100 jobs and at the counts of all queues, while anybody listens.

    ``job`` tells of a job among those that is new or has changed its status, attempt or progress; moves
    that follow each other within a second are one. ``queues`` tells the counts of all queues, at the
    beginning and whenever they change, so that nothing goes unnoticed, however much happens.
    """

    def __init__(self, store: StoreGateway) -> None:
        self._store = store
        self._listeners: set[StreamBuffer] = set()
        self._looking: Task[None] | None = None
        self._sight = FeedSnapshot(store)

    def join(self, listener: StreamBuffer) -> None:
        """Tell *listener* what happens. Whoever joins leaves again."""
        if self._looking is None:
            self._sight = FeedSnapshot(self._store)
            self._looking = asyncio.get_running_loop().create_task(self._look(self._sight))
        elif self._sight.queues:
            listener.offer(self._sight.queues)
        self._listeners.add(listener)

    def leave(self, listener: StreamBuffer) -> None:
        """Let go of a listener; with the last one the looking ends."""
        self._listeners.discard(listener)
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self, sight: FeedSnapshot) -> None:
        while True:
            try:
                events = await self._store.call(sight.changes)
            except Exception as error:  # noqa: BLE001  whatever it was, the next look may fare better
                _LOG.warning("cannot see what happens: %s", error)
            else:
                self._notify_hooks(events)
            await asyncio.sleep(POLL_SECONDS)

    def _notify_hooks(self, events: list[bytes]) -> None:
        for listener in self._listeners:
            for each in events:
                listener.offer(each)


class FeedSnapshot:
    """What was seen at the last look."""

    def __init__(self, store: StoreGateway) -> None:
        self._store = store
        self._seen: dict[JobId, tuple[object, ...]] | None = None
        self.queues = b""

    def changes(self) -> list[bytes]:
        """Look, and return what is new since the last time."""
        inspector, now = self._store.inspector, self._store.clock.now()
        jobs = inspector.find(JobFilter(), limit=NEWEST).jobs
        before, self._seen = self._seen, {job.id: _version(job) for job in jobs}
        changed = [] if before is None else [job for job in reversed(jobs) if before.get(job.id) != _version(job)]
        events = [event("job", job_view(job, now=now)) for job in changed]
        queues = [queue_view(each, now=now) for each in inspector.queues()]
        counts = event("queues", {"queues": [_still(each) for each in queues]})
        if counts != self.queues:
            self.queues = counts
            events.append(counts)
        return events


def _version(job: JobSummary) -> tuple[object, ...]:
    return job.status, job.attempt_count, job.life, job.scheduled_for, job.cancel_requested_at, job.progress


def _still(queue: dict[str, object]) -> dict[str, object]:
    """Leave out what changes by itself."""
    return {name: value for name, value in queue.items() if name != "oldest_age_seconds"}
