"""What happens to all jobs, for whoever listens: one look at the store a second, however many listen."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from taskharbor.api.streaming import event
from taskharbor.core.answers import JobFilter
from taskharbor.views import job_view, queue_view

if TYPE_CHECKING:
    from asyncio import Task

    from taskharbor.api.backend import StoreGateway
    from taskharbor.api.streaming import StreamBuffer
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary

_LOG: Final = logging.getLogger(__name__)
POLL_SECONDS: Final = 1.0  # seconds
NEWEST: Final = 100


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
