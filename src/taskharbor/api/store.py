"""Access to the store from the event loop: bounded threads, batched reads and writes, and a cached clock."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar

from anyio import CapacityLimiter, to_thread

from taskharbor.api.problems import HttpProblem
from taskharbor.api_keys import KeyCache, has_valid_key
from taskharbor.core.errors import JobNotFound, TaskHarborError
from taskharbor.core.ids import Token, new_job_id
from taskharbor.core.model import AuditEntry
from taskharbor.doctor.report import HealthReport
from taskharbor.settings import Settings
from taskharbor.views import last_failure

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from taskharbor.client import Client
    from taskharbor.core.codec import Codec
    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import ApiKey, JobSummary
    from taskharbor.core.retention import RetentionOptions
    from taskharbor.drivers.base import Driver, Inspector
    from taskharbor.tasks import Task as TaskDefinition
    from taskharbor.views import View
    from taskharbor.watcher import JobWatcher

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH: Final = 500
P = ParamSpec("P")
R = TypeVar("R")

_LOG: Final = logging.getLogger("taskharbor.api")
THREADS: Final = 8
KEY_THREADS: Final = 2
"""Keys have their own threads, so that a flood of invalid keys does not delay authenticated requests."""
PAGE_THREADS: Final = 2
"""One encodes its page while the other reads; more threads would only compete for the interpreter."""
COMPUTE_THREADS: Final = 1
"""Large bodies are parsed and encoded here, one at a time: the event loop then competes with one thread."""
MIN_OFFLOAD_BYTES: Final = 16_384
"""Values of at least this size are parsed and encoded in a thread; they would block the event loop for over 1 ms."""
MAX_QUEUED_CALLS: Final = 1_000
"""Store calls that may wait for a thread; further requests get 503 with Retry-After."""
CLOCK_TTL_SECONDS: Final = 10.0
KEY_USE_SECONDS: Final = 60.0
"""The minimum interval between two records of a key's use in the store."""


class RequestBatcher(Generic[Item, Result]):
    """Processes one batch at a time; items that arrive meanwhile form the next batch.

    A single caller does not wait for others, and a thousand concurrent callers need a few statements and one thread.
    """

    def __init__(self, process: Callable[[list[Item]], Awaitable[Sequence[Result]]]) -> None:
        self._process = process
        self._waiting: deque[tuple[Item, Future[Result]]] = deque()
        self._running: Task[None] | None = None

    def __call__(self, item: Item) -> Future[Result]:
        """Return a future for the result of *item*. Processing starts even if the future is not awaited."""
        loop = asyncio.get_running_loop()
        future: Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        batch: list[tuple[Item, Future[Result]]] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                await self._resolve(batch)
        finally:
            self._running = None
            for _, future in [*batch, *self._waiting]:  # only if the event loop is closing
                future.cancel()

    async def _resolve(self, batch: list[tuple[Item, Future[Result]]]) -> None:
        try:
            results = await self._process([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  every caller of the batch gets the error
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():  # done: its caller was cancelled
                future.set_result(result)


class ApiBackend(Protocol):
    """The part of `taskharbor.harbor.Harbor` that the API uses."""

    @property
    def driver(self) -> Driver:
        """The driver of the store."""

    @property
    def client(self) -> Client:
        """The client that enqueues jobs."""

    @property
    def watcher(self) -> JobWatcher:
        """Waits for any number of jobs in one thread."""

    @property
    def codec(self) -> Codec:
        """The codec for payloads."""

    @property
    def tasks(self) -> Mapping[str, TaskDefinition[..., Any, Any]]:
        """The tasks, by type; if there are none, jobs of any type are accepted."""

    @property
    def source(self) -> str | Driver | None:
        """The URL of the store, or its driver; None if the environment names it."""

    @property
    def retention(self) -> RetentionOptions:
        """How long finished jobs and dead letters are kept."""

    @property
    def version(self) -> str | None:
        """The version of the application, if it is known."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: an API key, or an anonymous client of an API that needs no keys."""

    name: str
    scopes: frozenset[str]
    key_id: str | None = None


class StoreThreads:
    """Runs blocking calls in a bounded number of threads."""

    def __init__(self, threads: int = THREADS) -> None:
        self._limiter = CapacityLimiter(threads)

    async def __call__(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        if self._limiter.statistics().tasks_waiting >= MAX_QUEUED_CALLS:
            raise HttpProblem(
                HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", "too many requests are waiting for the store; try again"
            )
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._limiter)


class CachedStoreClock:
    """The store's time, accurate to a few milliseconds, without a query for each reading."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._query = read
        self._lock = threading.Lock()
        self._reading: tuple[float, datetime] | None = None

    def now(self) -> datetime:
        """Return the store's time; query the store if the last reading is too old."""
        with self._lock:
            if self._reading is None or time.monotonic() - self._reading[0] > CLOCK_TTL_SECONDS:
                store_time = self._query()
                self._reading = (time.monotonic(), store_time)
        return self.last()

    def last(self) -> datetime:
        """Return the store's time from the last reading, without a query; before any reading, the local time."""
        at, store_time = self._reading or (time.monotonic(), datetime.now(UTC))
        return store_time + timedelta(seconds=time.monotonic() - at)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job, its last failure, and the store's time when it was read.

    A job that was read with its payload is a `taskharbor.core.model.Job`.
    """

    job: JobSummary
    failure: Failure | None
    now: datetime


class StoreGateway:
    """A backend's store, as the endpoints use it."""

    def __init__(self, backend: ApiBackend) -> None:
        self.backend = backend
        self.call = StoreThreads()
        self.page = StoreThreads(PAGE_THREADS)
        self.compute = StoreThreads(COMPUTE_THREADS)
        self.clock = CachedStoreClock(self._now)
        self._key_cache = KeyCache(lambda: backend.driver.inspector)
        self._key_threads = StoreThreads(KEY_THREADS)
        own = StoreThreads(7)  # one for each batcher: the response to a committed change must not wait for a thread
        self._jobs: RequestBatcher[JobId, JobSnapshot | None] = RequestBatcher(
            lambda ids: own(self._read, ids, with_payload=True)
        )
        self._summaries: RequestBatcher[JobId, JobSnapshot | None] = RequestBatcher(
            lambda ids: own(self._read, ids, with_payload=False)
        )
        self._audit: RequestBatcher[AuditEntry, None] = RequestBatcher(lambda entries: own(self._record, entries))
        self._key_checks: RequestBatcher[None, bool] = RequestBatcher(lambda calls: own(self._check_for_keys, calls))
        self._key_uses: RequestBatcher[str, None] = RequestBatcher(lambda ids: own(self._note_uses, ids))
        self._note_again_at: dict[str, float] = {}  # of valid keys only, so it stays small
        self.url = _url_of(backend.source)
        report = HealthReport(self.url, lambda: self.inspector, keep=backend.retention["keep"])
        self._health: RequestBatcher[None, View] = RequestBatcher(lambda calls: own(_repeated, report.read, calls))
        self._pings: RequestBatcher[None, None] = RequestBatcher(lambda calls: own(self._ping, calls))

    @property
    def inspector(self) -> Inspector:
        """The inspector for requests: one with its own connections and a time limit, if the driver has one."""
        driver = self.backend.driver
        bounded: Inspector = getattr(driver, "bounded_inspector", driver.inspector)
        return bounded

    async def get(self, job_id: JobId, *, with_payload: bool = False) -> JobSnapshot:
        """Return a job, or raise `JobNotFound`; its payload and result are read only *with_payload*."""
        return await self._existing(job_id, self._start_read(job_id, with_payload=with_payload))

    async def get_created(self, caller: Caller, job_id: JobId, *, with_payload: bool, **detail: str) -> JobSnapshot:
        """Record that *caller* created a job and, at the same time, read the job; return it."""
        reading = self._start_read(job_id, with_payload=with_payload)
        await self.record_audit(caller, "jobs.enqueue", str(job_id), **detail)
        return await self._existing(job_id, reading)

    async def read(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> tuple[R, datetime]:
        """Return the result of a read and the store's time."""
        return await self.call(self._read_now, partial(call, *args, **options))

    async def ping(self) -> None:
        """Check that the store answers; concurrent calls share one query."""
        await self._pings(None)

    async def health(self) -> View:
        """Return the findings of all checks; concurrent calls share one run."""
        return await self._health(None)

    async def key(self, text: str) -> ApiKey | None:
        """Return the valid API key for *text*, or None."""
        is_known, key = self._key_cache.remembered(text)
        if not is_known:
            key = await self._key_threads(self._key_cache.find, text)
        if key is not None:
            self._note_use(key.id)
        return key

    def _note_use(self, key_id: str) -> None:
        """Record the use of a key in the store, at most once a minute, without delaying the request."""
        now = time.monotonic()
        if now >= self._note_again_at.get(key_id, 0.0):
            self._note_again_at[key_id] = now + KEY_USE_SECONDS
            self._key_uses(key_id).add_done_callback(_log_failed_note)

    async def has_keys(self) -> bool:
        """Return whether the store has a valid key; concurrent calls share one query."""
        return await self._key_checks(None)

    async def record_audit(self, caller: Caller, action: str, target: str, **detail: str) -> None:
        """Write an audit entry for an action that was done. If that fails, log the entry instead."""
        entry = AuditEntry(id=Token(new_job_id()), actor=caller.name, action=action, target=target, detail=detail)
        try:
            await self._audit(entry)
        except TaskHarborError as error:
            _LOG.error("done, but the audit entry %r was not written: %s", entry, error)

    def _start_read(self, job_id: JobId, *, with_payload: bool) -> Future[JobSnapshot | None]:
        return self._jobs(job_id) if with_payload else self._summaries(job_id)

    @staticmethod
    async def _existing(job_id: JobId, reading: Future[JobSnapshot | None]) -> JobSnapshot:
        snapshot = await reading
        if snapshot is None:
            raise JobNotFound(job_id)
        return snapshot

    def _read_now(self, call: Callable[[], R]) -> tuple[R, datetime]:
        return call(), self.clock.now()

    def _read(self, job_ids: list[JobId], *, with_payload: bool) -> list[JobSnapshot | None]:
        inspector, unique = self.inspector, list(dict.fromkeys(job_ids))
        jobs: Mapping[JobId, JobSummary] = inspector.get(unique) if with_payload else inspector.summaries(unique)
        failed = [job.id for job in jobs.values() if job.last_error is not None]
        by_job = groupby(inspector.attempts(failed) if failed else [], lambda attempt: attempt.job_id)
        failures = {job_id: last_failure(attempts) for job_id, attempts in by_job}
        now = self.clock.now()
        return [JobSnapshot(jobs[job_id], failures.get(job_id), now) if job_id in jobs else None for job_id in job_ids]

    def _now(self) -> datetime:
        return self.backend.driver.inspector.now()

    def _check_for_keys(self, calls: list[None]) -> Sequence[bool]:
        return [has_valid_key(self.backend.driver.inspector)] * len(calls)

    def _note_uses(self, ids: list[str]) -> Sequence[None]:
        self.backend.driver.control.note_key_use(ids)
        return [None] * len(ids)

    def _ping(self, calls: list[None]) -> Sequence[None]:
        self._now()
        return calls

    def _record(self, entries: list[AuditEntry]) -> Sequence[None]:
        self.backend.driver.control.record_audit(entries)
        return [None] * len(entries)


def _url_of(source: object) -> str | None:
    """Return the URL of a harbor's store, if it has one."""
    if source is None:
        return Settings.from_env().url
    return source if isinstance(source, str) else None


def _repeated(call: Callable[[], R], calls: list[None]) -> list[R]:
    return [call()] * len(calls)


def _log_failed_note(done: Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _LOG.warning("key use not recorded; retrying at its next use after one minute: %s", error)
