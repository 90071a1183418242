"""The tables of the memory store, the lock that makes every statement atomic, and the listeners."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Self

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import JobId
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import timedelta

    from taskharbor.core.clocks import Clock
    from taskharbor.core.ids import Token
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, OutboxRow, Schedule, WorkerRecord

Entry = tuple[int, datetime, JobId]
_FORKED: Final = "a memory store cannot be used after a fork; create it in the process that uses it"
_MAX_STALE_ENTRIES: Final = 1_000


class MemoryNotifier:
    """The listeners of one store. Wakes those of the queues that have new jobs."""

    def __init__(self) -> None:
        self._listeners: frozenset[MemoryListener] = frozenset()
        self._changing = threading.Lock()

    def listen(self, queues: Collection[str]) -> MemoryListener:
        listener = MemoryListener(queues, self)
        with self._changing:
            self._listeners |= {listener}
        return listener

    def remove(self, listener: MemoryListener) -> None:
        with self._changing:
            self._listeners -= {listener}

    def notify(self, queues: Collection[str]) -> None:
        # No lock needed: adding and removing replace the frozen set.
        for listener in self._listeners:
            if not listener.queues.isdisjoint(queues):
                listener.wake()


class MemoryListener:
    def __init__(self, queues: Collection[str], notifier: MemoryNotifier) -> None:
        self.queues = frozenset(queues)
        self._notifier = notifier
        self._woken = threading.Event()

    def wait(self, timeout: timedelta) -> bool:
        is_woken = self._woken.wait(timeout.total_seconds())
        # Clear it before the caller searches for jobs: a later notification ends the next wait.
        self._woken.clear()
        return is_woken

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._notifier.remove(self)


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The job that holds an idempotency key, and the digest of its request."""

    holder: JobId
    digest: bytes


@dataclass(frozen=True, slots=True)
class ClockJump:
    """Leases that expired in (before, after] were lost to the clock. None is reclaimed before *hold*."""

    before: datetime
    after: datetime
    hold: datetime


@dataclass(slots=True)
class ReadyQueue:
    """The waiting jobs of one queue: a heap of due jobs in run order, and a heap of later jobs by due time.

    Entries are dropped lazily. An entry is stale unless its job still waits with the same priority and due time.
    """

    runnable: list[Entry] = field(default_factory=list)
    scheduled: list[tuple[datetime, int, JobId]] = field(default_factory=list)

    def add(self, job: Job) -> None:
        heappush(self.scheduled, (job.scheduled_for, job.priority, job.id))

    def pop_due(self, now: datetime) -> Iterator[Entry]:
        """Move entries that have become due, then yield due entries in run order, removing each."""
        while self.scheduled and self.scheduled[0][0] <= now:
            scheduled_for, priority, job_id = heappop(self.scheduled)
            heappush(self.runnable, (priority, scheduled_for, job_id))
        while self.runnable:
            yield heappop(self.runnable)

    def put_back(self, entries: list[Entry]) -> None:
        for entry in entries:
            heappush(self.runnable, entry)


@dataclass(slots=True)
class Rows:
    """All stored data. The values are frozen, so copying the containers copies the store."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    ready: defaultdict[str, ReadyQueue] = field(default_factory=lambda: defaultdict(ReadyQueue))
    waiting: defaultdict[str, set[JobId]] = field(default_factory=lambda: defaultdict(set))
    inflight: set[JobId] = field(default_factory=set)
    keys: dict[tuple[str, str], KeyHolder] = field(default_factory=dict)
    attempts: defaultdict[JobId, dict[Token, Attempt]] = field(default_factory=lambda: defaultdict(dict))
    outbox: dict[str, OutboxRow] = field(default_factory=dict)
    counts: Counter[tuple[str, Status]] = field(default_factory=Counter)
    finished: Counter[tuple[datetime, str, Status]] = field(default_factory=Counter)
    paused: dict[str, tuple[datetime, str]] = field(default_factory=dict)
    duties: dict[str, datetime] = field(default_factory=dict)
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    api_keys: dict[str, ApiKey] = field(default_factory=dict)
    audit: dict[Token, AuditEntry] = field(default_factory=dict)
    jump: ClockJump | None = None
    publisher_seen_at: datetime | None = None
    ready_queues: set[str] = field(default_factory=set)
    """Queues with new ready jobs whose listeners are not yet notified. A rollback restores this, too."""

    def copy(self) -> Self:
        return type(self)(**{each.name: _copied(getattr(self, each.name)) for each in fields(self)})


def _copied(value: Any) -> Any:
    if isinstance(value, ReadyQueue):
        return ReadyQueue(list(value.runnable), list(value.scheduled))
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, {key: _copied(each) for key, each in value.items()})
    return value.copy() if isinstance(value, dict | set) else value


class Tables:
    """The rows, protected by one lock, and the indexes and counts that every write updates.

    ``statements`` counts how often the lock was taken. The conformance kit uses it to check that a method runs
    one statement for any batch size.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows = Rows()
        self.settings: dict[str, str] = {}  # not in the rows: a rollback does not undo settings
        self.statements = 0
        self.notifier = MemoryNotifier()
        self._lock = threading.RLock()
        self._depth = 0
        self._pid = os.getpid()

    @contextmanager
    def statement(self) -> Iterator[datetime]:
        """Lock the store, and yield the time of the statement."""
        if os.getpid() != self._pid:
            raise StoreUnavailable(_FORKED)
        with self._hold():
            self.statements += 1
            yield self.clock.now()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Combine the statements of this thread. An error rolls all of them back."""
        with self._hold():
            before = self.rows.copy()
            try:
                yield
            except BaseException:
                self.rows = before
                raise

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Hold the lock. When the outermost hold ends, notify the listeners of queues with new ready jobs."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth and self.rows.ready_queues:
                    self.notifier.notify(self.rows.ready_queues)
                    self.rows.ready_queues.clear()

    def put(self, job: Job, *, now: datetime) -> Job:
        """Store a job, and update the ready queues, counts and aggregates."""
        rows, old = self.rows, self.rows.jobs.get(job.id)
        rows.jobs[job.id] = job
        if old is not None:
            rows.counts[old.queue, old.status] -= 1
        rows.counts[job.queue, job.status] += 1
        _set_member(rows.waiting[job.queue], job.id, job.status.is_waiting)
        if job.status.is_waiting and (old is None or not old.status.is_waiting or _position(old) != _position(job)):
            rows.ready[job.queue].add(job)
            self._drop_stale_entries(job.queue)
            if job.scheduled_for <= now:
                rows.ready_queues.add(job.queue)
        _set_member(rows.inflight, job.id, job.status is Status.PROCESSING)
        if job.status.is_final:
            rows.finished[now.replace(second=0, microsecond=0), job.queue, job.status] += 1
        return job

    def _drop_stale_entries(self, queue: str) -> None:
        """Rebuild the ready queue once most of its entries are stale."""
        ready, waiting = self.rows.ready[queue], self.rows.waiting[queue]
        if len(ready.scheduled) + len(ready.runnable) > 2 * len(waiting) + _MAX_STALE_ENTRIES:
            self.rows.ready[queue] = ReadyQueue()
            for job_id in waiting:
                self.rows.ready[queue].add(self.rows.jobs[job_id])

    def remove(self, job: Job) -> None:
        """Remove a job with its attempts, events and idempotency key."""
        rows = self.rows
        del rows.jobs[job.id]
        rows.counts[job.queue, job.status] -= 1
        rows.attempts.pop(job.id, None)
        for event_id in [each for each, row in rows.outbox.items() if row.event.job_id == job.id]:
            del rows.outbox[event_id]
        if job.idempotency_key is not None:
            del rows.keys[job.queue, job.idempotency_key]


def _position(job: Job) -> tuple[int, datetime]:
    return job.priority, job.scheduled_for


def _set_member(members: set[JobId], job_id: JobId, is_member: bool) -> None:  # noqa: FBT001  it is the value to set
    if is_member:
        members.add(job_id)
    else:
        members.discard(job_id)
