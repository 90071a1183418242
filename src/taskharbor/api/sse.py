"""Server-sent events: the response class, its buffer, and a feed that polls the store once a second for all clients."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
from fastapi.responses import Response

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.results import JobFilter
from taskharbor.observability.failure_log import STORE, FailureLog
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
MAX_FEED_OPERATIONS: Final = 20


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

    Every *beat_seconds* (by default `KEEP_ALIVE_SECONDS`), also on a busy stream, it calls *is_allowed*, and ends if
    the caller lost access.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        buffer: StreamBuffer,
        closed: Callable[[], None],
        *,
        is_allowed: Callable[[], Awaitable[bool]],
        beat_seconds: float | None = None,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._buffer = buffer
        self._closed = closed
        self._is_allowed = is_allowed
        self._beat_seconds = beat_seconds

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
        beat = KEEP_ALIVE_SECONDS if self._beat_seconds is None else self._beat_seconds
        check_at, end_at = now + beat, now + MAX_LIFE_SECONDS
        while is_open:
            chunk = await self._buffer.next(max(0.0, check_at - time.monotonic()))
            if time.monotonic() >= check_at:
                check_at = time.monotonic() + beat
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

    Clients that joined with *topics* are sent ``changed`` instead, with the names of what has changed (queues, jobs,
    workers, operations) and the ids of those jobs.
    """

    def __init__(self, store: StoreGateway) -> None:
        self._store = store
        self._buffers: set[StreamBuffer] = set()
        self._topic_buffers: set[StreamBuffer] = set()
        self._polling: Task[None] | None = None
        self._failures = FailureLog(_LOG)
        self._snapshot = FeedSnapshot(store)
        self.changed_at = 0.0
        """When a poll last found a change, by `time.monotonic`. What was read before may be outdated."""

    def join(self, buffer: StreamBuffer, *, topics: bool = False) -> None:
        """Add events to *buffer* until `leave` is called with it."""
        if self._polling is None:
            self._snapshot = FeedSnapshot(self._store)
            self._polling = asyncio.get_running_loop().create_task(self._poll(self._snapshot))
        elif self._snapshot.queues and not topics:
            buffer.offer(self._snapshot.queues)
        (self._topic_buffers if topics else self._buffers).add(buffer)

    def leave(self, buffer: StreamBuffer) -> None:
        """Remove a buffer; stop polling if it was the last one."""
        self._buffers.discard(buffer)
        self._topic_buffers.discard(buffer)
        if not self._buffers and not self._topic_buffers and self._polling is not None:
            self._polling.cancel()
            self._polling = None

    async def _poll(self, snapshot: FeedSnapshot) -> None:
        while True:
            try:
                changes = await self._store.call(snapshot.changes, with_others=bool(self._topic_buffers))
            except StoreUnavailable as error:
                self._failures.unavailable(STORE, error)
            except Exception as error:  # noqa: BLE001  the next poll may succeed
                self._failures.unexpected("event feed", error)
            else:
                self._failures.available(STORE)
                if changes.topics:
                    self.changed_at = time.monotonic()
                _publish(self._buffers, changes.events)
                _publish(self._topic_buffers, changes.topic_events())
            await asyncio.sleep(POLL_SECONDS)


def _publish(buffers: set[StreamBuffer], events: list[bytes]) -> None:
    for buffer in buffers:
        for each in events:
            buffer.offer(each)


@dataclass(frozen=True, slots=True)
class FeedChanges:
    """What has changed since the last poll: the events of it, its topics, and the jobs."""

    events: list[bytes]
    topics: frozenset[str]
    job_ids: tuple[JobId, ...]

    def topic_events(self) -> list[bytes]:
        """Return the event for clients that joined with topics. It is sent each second, if the store answers.

        A page thus knows how old its data is, also while nothing changes.
        """
        return [event("changed", {"topics": sorted(self.topics), "jobs": [str(each) for each in self.job_ids]})]


class FeedSnapshot:
    """The jobs and queue counts of the last poll."""

    def __init__(self, store: StoreGateway) -> None:
        self._store = store
        self._seen: dict[JobId, tuple[object, ...]] | None = None
        self._others: dict[str, object] = {}
        self.queues = b""

    def changes(self, *, with_others: bool = False) -> FeedChanges:
        """Read jobs and counts, and return the changes since the last poll; workers and operations *with_others*."""
        inspector, now = self._store.inspector, self._store.clock.now()
        jobs = inspector.find(JobFilter(), limit=MAX_FEED_JOBS).jobs
        before, self._seen = self._seen, {job.id: _version(job) for job in jobs}
        changed = [] if before is None else [job for job in reversed(jobs) if before.get(job.id) != _version(job)]
        events = [event("job", job_view(job, now=now)) for job in changed]
        topics = {"jobs"} if changed else set[str]()
        queues = [queue_view(each, now=now) for each in inspector.queues()]
        counts = event("queues", {"queues": [_without_age(each) for each in queues]})
        if counts != self.queues:
            self.queues = counts
            events.append(counts)
            topics |= {"jobs", "queues"}
        if with_others:
            topics |= self._changed_others()
        return FeedChanges(events, frozenset(topics), tuple(job.id for job in changed))

    def _changed_others(self) -> set[str]:
        driver, inspector = self._store.backend.driver, self._store.inspector
        before = self._others
        self._others = {
            "workers": [(each.id, each.busy_slots, each.lost_slots, each.stopped_at) for each in inspector.workers()],
            "operations": [
                (each.id, each.state, each.done, dict(each.refused))
                for each in driver.operations.recent(limit=MAX_FEED_OPERATIONS)
            ],
        }
        return {topic for topic, seen in self._others.items() if before and before[topic] != seen}


def _version(job: JobSummary) -> tuple[object, ...]:
    return job.status, job.attempt_count, job.life, job.scheduled_for, job.cancel_requested_at, job.progress


def _without_age(queue: dict[str, object]) -> dict[str, object]:
    """Return *queue* without its age, which changes with every poll."""
    return {name: value for name, value in queue.items() if name != "oldest_age_seconds"}
