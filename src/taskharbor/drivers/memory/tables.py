"""The tables of the memory store, the lock that makes every statement atomic, and the listeners."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Self

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import JobId
from taskharbor.core.states import Status
from taskharbor.core.statistics import MINUTE, Metric, begin_of
from taskharbor.drivers.notices import Notice, NoticeInbox

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from taskharbor.core.clocks import Clock
    from taskharbor.core.ids import Token
    from taskharbor.core.log_lines import AttemptLines
    from taskharbor.core.messages import DeliveryNote, DeliveryRole
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.operations import Operation, OperationId
    from taskharbor.core.results import Refusal
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import AppVersion

Entry = tuple[int, datetime, JobId]
_FORKED: Final = "a memory store cannot be used after a fork; create it in the process that uses it"
_MAX_STALE_ENTRIES: Final = 1_000


class MemoryNotifier:
    """The listeners of one store."""

    def __init__(self) -> None:
        self._listeners: frozenset[MemoryListener] = frozenset()
        self._changing = threading.Lock()

    def listen(self, queues: Collection[str], worker: str | None) -> MemoryListener:
        listener = MemoryListener(queues, worker, self)
        with self._changing:
            self._listeners |= {listener}
        return listener

    def remove(self, listener: MemoryListener) -> None:
        with self._changing:
            self._listeners -= {listener}

    def notify(self, topics: Collection[str]) -> None:
        # No lock needed: adding and removing replace the frozen set.
        for listener in self._listeners:
            listener.inbox.notify(topics)


class MemoryListener:
    def __init__(self, queues: Collection[str], worker: str | None, notifier: MemoryNotifier) -> None:
        self.inbox = NoticeInbox(queues, worker)
        self._notifier = notifier

    def wait(self, timeout: timedelta) -> Notice:
        return self.inbox.wait(timeout)

    def wake(self) -> None:
        self.inbox.put(Notice.JOBS)

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


@dataclass(frozen=True, slots=True)
class QueuePause:
    """When and by whom a queue was paused, why, and when it is resumed."""

    at: datetime
    by: str
    reason: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs of a queue waited and ran at a roll-up, and for how long the oldest had been due."""

    waiting: int
    running: int
    oldest_age: timedelta | None


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
    logs: defaultdict[JobId, dict[Token, AttemptLines]] = field(default_factory=lambda: defaultdict(dict))
    outbox: dict[str, OutboxRow] = field(default_factory=dict)
    counts: Counter[tuple[str, Status]] = field(default_factory=Counter)
    finished: Counter[tuple[datetime, str, Status]] = field(default_factory=Counter)
    arrived: Counter[str] = field(default_factory=Counter)
    """How many jobs of each queue arrived since the last roll-up."""
    tallies: Counter[tuple[Metric, datetime, str, str, str]] = field(default_factory=Counter)
    """What was counted since the last roll-up, by metric, minute, queue, type and key."""
    statistics: Counter[tuple[timedelta, Metric, datetime, str, str, str]] = field(default_factory=Counter)
    """The same by step."""
    depths: dict[tuple[datetime, str], Depth] = field(default_factory=dict)
    dead_hours: Counter[tuple[str, str, str, datetime]] = field(default_factory=Counter)
    versions: dict[str, AppVersion] = field(default_factory=dict)
    paused: dict[str, QueuePause] = field(default_factory=dict)
    duties: dict[str, datetime] = field(default_factory=dict)
    workers: dict[str, WorkerRecord] = field(default_factory=dict)
    past_workers: dict[str, WorkerRecord] = field(default_factory=dict)
    refusals: dict[tuple[JobId, Token], Refusal] = field(default_factory=dict)
    delivery: dict[tuple[str, DeliveryRole], DeliveryNote] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    runs: defaultdict[str, tuple[ScheduleRun, ...]] = field(default_factory=lambda: defaultdict(tuple))
    """The runs of each schedule, oldest first."""
    api_keys: dict[str, ApiKey] = field(default_factory=dict)
    audit: dict[Token, AuditEntry] = field(default_factory=dict)
    operations: dict[OperationId, Operation] = field(default_factory=dict)
    jump: ClockJump | None = None
    publisher_seen_at: datetime | None = None
    topics: set[str] = field(default_factory=set)
    """Queues with new ready jobs, and cancel requests, that listeners must be notified of. A rollback restores it."""

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
        """Hold the lock. When the outermost hold ends, notify the listeners."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth and self.rows.topics:
                    self.notifier.notify(self.rows.topics)
                    self.rows.topics.clear()

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
                rows.topics.add(job.queue)
        _set_member(rows.inflight, job.id, job.status is Status.PROCESSING)
        if job.status.is_final:
            minute = begin_of(now, MINUTE)
            rows.finished[minute, job.queue, job.status] += 1
            rows.tallies[Metric.ENDED, minute, job.queue, "", job.status.value] += 1
        elif old is None or old.status.is_final:
            rows.arrived[job.queue] += 1
        return job

    def _drop_stale_entries(self, queue: str) -> None:
        """Rebuild the ready queue once most of its entries are stale."""
        ready, waiting = self.rows.ready[queue], self.rows.waiting[queue]
        if len(ready.scheduled) + len(ready.runnable) > 2 * len(waiting) + _MAX_STALE_ENTRIES:
            self.rows.ready[queue] = ReadyQueue()
            for job_id in waiting:
                self.rows.ready[queue].add(self.rows.jobs[job_id])

    def remove(self, job: Job) -> None:
        """Remove a job with its attempts, refusals, log lines, events and idempotency key."""
        rows = self.rows
        del rows.jobs[job.id]
        rows.counts[job.queue, job.status] -= 1
        for token in rows.attempts.pop(job.id, {}):
            rows.refusals.pop((job.id, token), None)
        rows.logs.pop(job.id, None)
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
