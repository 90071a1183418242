"""The rows, and the one lock that makes every statement atomic."""

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
_FORKED: Final = "the memory store stays with the process that made it, and this is a fork of that"


class MemoryNotifier:
    """Everybody who listens, and for which queues."""

    def __init__(self) -> None:
        self._listeners: frozenset[MemoryListener] = frozenset()
        self._changing = threading.Lock()

    def listen(self, queues: Collection[str]) -> MemoryListener:
        listener = MemoryListener(queues, self)
        with self._changing:
            self._listeners |= {listener}
        return listener

    def leave(self, listener: MemoryListener) -> None:
        with self._changing:
            self._listeners -= {listener}

    def notify(self, queues: Collection[str]) -> None:
        # Without the lock: whoever comes or goes leaves this set as it was, and makes another.
        for listener in self._listeners:
            if not listener.queues.isdisjoint(queues):
                listener.wake()


class MemoryListener:
    def __init__(self, queues: Collection[str], bells: MemoryNotifier) -> None:
        self.queues = frozenset(queues)
        self._bells = bells
        self._woken = threading.Event()

    def wait(self, timeout: timedelta) -> bool:
        has_rung = self._woken.wait(timeout.total_seconds())
        # Cleared before the caller looks for jobs: what rings from here on is heard by the next wait.
        self._woken.clear()
        return has_rung

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._bells.leave(self)


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who holds an idempotency key, and for which body."""

    holder: JobId
    digest: bytes


@dataclass(frozen=True, slots=True)
class ClockJump:
    """Leases that ended in (before, after] were lost to the clock; none is brought back before *hold*."""

    before: datetime
    after: datetime
    hold: datetime


@dataclass(slots=True)
class ReadyQueue:
    """The jobs of one queue that wait: due ones in the order they run, later ones in a heap.

    Entries are dropped lazily: one counts only while its job still waits at that
    priority and time.
    """

    runnable: list[Entry] = field(default_factory=list)
    scheduled: list[tuple[datetime, int, JobId]] = field(default_factory=list)

    def add(self, job: Job) -> None:
        heappush(self.scheduled, (job.scheduled_for, job.priority, job.id))

    def pop_due(self, now: datetime) -> Iterator[Entry]:
        """Promote what has become due, then take entries out one by one, first to run first."""
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
    """Everything that is stored. The values are frozen, so copying the containers copies the store."""

    jobs: dict[JobId, Job] = field(default_factory=dict)
    lines: defaultdict[str, ReadyQueue] = field(default_factory=lambda: defaultdict(ReadyQueue))
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
    """Queues that were given jobs to take, of which nobody was told yet: a rollback takes this back too."""

    def copy(self) -> Self:
        return type(self)(**{each.name: _copied(getattr(self, each.name)) for each in fields(self)})


def _copied(value: Any) -> Any:
    if isinstance(value, ReadyQueue):
        return ReadyQueue(list(value.runnable), list(value.scheduled))
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, {key: _copied(each) for key, each in value.items()})
    return value.copy() if isinstance(value, dict | set) else value


class Tables:
    """The rows behind one lock, and what every write has to keep in step.

    ``statements`` counts how often the lock was taken: the kit sees by it that a verb
    is one statement, whatever the size of its batch.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows = Rows()
        self.settings: dict[str, str] = {}  # not among the rows: no rollback undoes what was recorded
        self.statements = 0
        self.bells = MemoryNotifier()
        self._lock = threading.RLock()
        self._depth = 0
        self._pid = os.getpid()

    @contextmanager
    def statement(self) -> Iterator[datetime]:
        """Hold the store still, and say what time it is for everything inside."""
        if os.getpid() != self._pid:
            raise StoreUnavailable(_FORKED)
        with self._hold():
            self.statements += 1
            yield self.clock.now()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make one of the statements that this thread runs inside: an error takes all of them back."""
        with self._hold():
            before = self.rows.copy()
            try:
                yield
            except BaseException:
                self.rows = before
                raise

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Hold the lock; when the outermost hold of this thread ends, ring for the queues that were fed."""
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth and self.rows.ready_queues:
                    self.bells.notify(self.rows.ready_queues)
                    self.rows.ready_queues.clear()

    def put(self, job: Job, *, now: datetime) -> Job:
        """Store a job as it is now, and keep lines, counts and aggregates in step with it."""
        rows, old = self.rows, self.rows.jobs.get(job.id)
        rows.jobs[job.id] = job
        if old is not None:
            rows.counts[old.queue, old.status] -= 1
        rows.counts[job.queue, job.status] += 1
        _keep(rows.waiting[job.queue], job.id, job.status.is_waiting)
        if job.status.is_waiting and (old is None or not old.status.is_waiting or _place(old) != _place(job)):
            rows.lines[job.queue].add(job)
            self._clear_out(job.queue)
            if job.scheduled_for <= now:
                rows.ready_queues.add(job.queue)
        _keep(rows.inflight, job.id, job.status is Status.PROCESSING)
        if job.status.is_final:
            rows.finished[now.replace(second=0, microsecond=0), job.queue, job.status] += 1
        return job

    def _clear_out(self, queue: str) -> None:
        """Drop the entries of the past, once they are most of the line."""
        line, waiting = self.rows.lines[queue], self.rows.waiting[queue]
        if len(line.scheduled) + len(line.runnable) > 2 * len(waiting) + 1_000:
            self.rows.lines[queue] = ReadyQueue()
            for job_id in waiting:
                self.rows.lines[queue].add(self.rows.jobs[job_id])

    def remove(self, job: Job) -> None:
        """Forget a job and everything that hangs on it."""
        rows = self.rows
        del rows.jobs[job.id]
        rows.counts[job.queue, job.status] -= 1
        rows.attempts.pop(job.id, None)
        for event_id in [each for each, row in rows.outbox.items() if row.event.job_id == job.id]:
            del rows.outbox[event_id]
        if job.idempotency_key is not None:
            del rows.keys[job.queue, job.idempotency_key]


def _place(job: Job) -> tuple[int, datetime]:
    return job.priority, job.scheduled_for


def _keep(members: set[JobId], job_id: JobId, belongs: bool) -> None:  # noqa: FBT001  it is the claim itself
    if belongs:
        members.add(job_id)
    else:
        members.discard(job_id)
