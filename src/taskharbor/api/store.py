"""What the API stands on, and how it calls a store that blocks."""

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
from typing import TYPE_CHECKING, Final, Generic, ParamSpec, Protocol, TypeVar

from anyio import CapacityLimiter, to_thread

from taskharbor.api.problems import HttpProblem
from taskharbor.api_keys import KeyCache, has_valid_key
from taskharbor.core.errors import JobNotFound, TaskHarborError
from taskharbor.core.ids import Token, new_job_id
from taskharbor.core.model import AuditEntry
from taskharbor.views import last_failure

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from taskharbor.client import Client
    from taskharbor.core.codec import Codec
    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import ApiKey, JobSummary
    from taskharbor.drivers.base import Driver, Inspector
    from taskharbor.watcher import JobWatcher

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

MAX_BATCH: Final = 500
P = ParamSpec("P")
R = TypeVar("R")

_LOG: Final = logging.getLogger("taskharbor.api")
THREADS: Final = 8
KEY_THREADS: Final = 2
"""Keys are looked up apart, so that a flood of wrong ones keeps nobody from the store who is in."""
PAGE_THREADS: Final = 2
"""One writes its page while the other's is read: more would take the interpreter from each other, and from others."""
COMPUTE_THREADS: Final = 1
"""Large bodies are parsed and encoded here, one at a time: the event loop then competes with one thread."""
LARGE_BYTES: Final = 16_384
"""From this size on a value is parsed and encoded outside the event loop, which it would block for over 1 ms."""
MAX_QUEUED_CALLS: Final = 1_000
"""Store calls that may wait for a thread; whoever comes later is asked to come back."""
CLOCK_TTL_SECONDS: Final = 10.0  # seconds
KEY_USE_SECONDS: Final = 60.0
"""How often at most the use of a key is noted in the store."""


class RequestBatcher(Generic[Asked, Answer]):
    """Asks one batch at a time; what comes meanwhile is the next batch.

    So a single caller waits for nobody, and a thousand at once take a few statements and one thread.
    """

    def __init__(self, ask: Callable[[list[Asked]], Awaitable[Sequence[Answer]]]) -> None:
        self._ask = ask
        self._waiting: deque[tuple[Asked, Future[Answer]]] = deque()
        self._running: Task[None] | None = None

    def __call__(self, item: Asked) -> Future[Answer]:
        """Return what will be the answer. It is under way from here on, awaited or not."""
        loop = asyncio.get_running_loop()
        future: Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        batch: list[tuple[Asked, Future[Answer]]] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                await self._answer(batch)
        finally:
            self._running = None
            for _, future in [*batch, *self._waiting]:  # none, unless the loop is closing
                future.cancel()

    async def _answer(self, batch: list[tuple[Asked, Future[Answer]]]) -> None:
        try:
            answers = await self._ask([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  whatever it was, it is told to everybody who asked
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():  # nobody waits any more
                future.set_result(answer)


class ApiBackend(Protocol):
    """What the API needs of a `taskharbor.harbor.Harbor`."""

    @property
    def driver(self) -> Driver:
        """The store."""

    @property
    def client(self) -> Client:
        """Accepts jobs."""

    @property
    def watcher(self) -> JobWatcher:
        """Waits for jobs, any number in one thread."""

    @property
    def codec(self) -> Codec:
        """Writes payloads."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a key, or whoever can reach an API that needs none."""

    name: str
    scopes: frozenset[str]
    key_id: str | None = None


class StoreThreads:
    """Runs what blocks in a bounded number of threads, each call with one of them at a time."""

    def __init__(self, threads: int = THREADS) -> None:
        self._limiter = CapacityLimiter(threads)

    async def __call__(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        if self._limiter.statistics().tasks_waiting >= MAX_QUEUED_CALLS:
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", "too many requests wait for the store")
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._limiter)


class CachedStoreClock:
    """Tells the store's time to a few milliseconds, without asking it each time."""

    def __init__(self, read: Callable[[], datetime]) -> None:
        self._ask = read
        self._reading = threading.Lock()
        self._read: tuple[float, datetime] | None = None

    def now(self) -> datetime:
        """Return the store's time; it may ask the store."""
        with self._reading:
            if self._read is None or time.monotonic() - self._read[0] > CLOCK_TTL_SECONDS:
                moment = self._ask()
                self._read = (time.monotonic(), moment)
        return self.last()

    def last(self) -> datetime:
        """Return the store's time by the last reading, without asking; by this machine's clock, before any."""
        at, moment = self._read or (time.monotonic(), datetime.now(UTC))
        return moment + timedelta(seconds=time.monotonic() - at)


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job as it was read, the failure it carries, and the store's time.

    With its payload it is a `taskharbor.core.model.Job`.
    """

    job: JobSummary
    failure: Failure | None
    now: datetime


class StoreGateway:
    """A backend's store as endpoints use it."""

    def __init__(self, backend: ApiBackend) -> None:
        self.backend = backend
        self.call = StoreThreads()
        self.page = StoreThreads(PAGE_THREADS)
        self.compute = StoreThreads(COMPUTE_THREADS)
        self.clock = CachedStoreClock(self._now)
        self._ring = KeyCache(lambda: backend.driver.inspector)
        self._at_the_door = StoreThreads(KEY_THREADS)
        own = StoreThreads(6)  # one for each batcher: what was committed already must not wait in line to be told
        self._jobs: RequestBatcher[JobId, JobSnapshot | None] = RequestBatcher(
            lambda ids: own(self._read, ids, with_payload=True)
        )
        self._summaries: RequestBatcher[JobId, JobSnapshot | None] = RequestBatcher(
            lambda ids: own(self._read, ids, with_payload=False)
        )
        self._audit: RequestBatcher[AuditEntry, None] = RequestBatcher(lambda entries: own(self._record, entries))
        self._key_checks: RequestBatcher[None, bool] = RequestBatcher(lambda asked: own(self._look_for_keys, asked))
        self._key_uses: RequestBatcher[str, None] = RequestBatcher(lambda ids: own(self._note_uses, ids))
        self._note_again_at: dict[str, float] = {}  # of keys that are good: there are as many as people made
        self._readiness: RequestBatcher[None, None] = RequestBatcher(lambda asked: own(self._ask, asked))

    @property
    def inspector(self) -> Inspector:
        """What requests read through: with connections and a time limit of its own, if the driver has such a one."""
        driver = self.backend.driver
        bounded: Inspector = getattr(driver, "bounded_inspector", driver.inspector)
        return bounded

    async def get(self, job_id: JobId, *, with_payload: bool = False) -> JobSnapshot:
        """Return a job, or raise `JobNotFound`; its payload and result are read only *with_payload*."""
        return await self._existing(job_id, self._reading(job_id, with_payload=with_payload))

    async def get_made(self, caller: Caller, job_id: JobId, *, with_payload: bool, **detail: str) -> JobSnapshot:
        """Return a job that *caller* just made, once that is written down: both at the same time."""
        reading = self._reading(job_id, with_payload=with_payload)
        await self.record_audit(caller, "jobs.enqueue", str(job_id), **detail)
        return await self._existing(job_id, reading)

    async def read(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> tuple[R, datetime]:
        """Return what a read gives, and the store's time."""
        return await self.call(self._read_now, partial(call, *args, **options))

    async def ask(self) -> None:
        """Return once the store has answered; however many ask, it is asked once at a time."""
        await self._readiness(None)

    async def key(self, text: str) -> ApiKey | None:
        """Return the key that *text* is, if it opens anything."""
        is_known, key = self._ring.remembered(text)
        if not is_known:
            key = await self._at_the_door(self._ring.find, text)
        if key is not None:
            self._note_use(key.id)
        return key

    def _note_use(self, key_id: str) -> None:
        """Let the store know that a key is used, once a minute; the request does not wait for that."""
        now = time.monotonic()
        if now >= self._note_again_at.get(key_id, 0.0):
            self._note_again_at[key_id] = now + KEY_USE_SECONDS
            self._key_uses(key_id).add_done_callback(_log_failed_note)

    async def has_keys(self) -> bool:
        """Return whether the store has a key that opens anything; it is asked once for all who ask at once."""
        return await self._key_checks(None)

    async def record_audit(self, caller: Caller, action: str, target: str, **detail: str) -> None:
        """Write down what was done. It is done: where that cannot be written, the log has to keep it."""
        entry = AuditEntry(id=Token(new_job_id()), actor=caller.name, action=action, target=target, detail=detail)
        try:
            await self._audit(entry)
        except TaskHarborError as error:
            _LOG.error("this was done and is not in the audit, %r: %s", entry, error)

    def _reading(self, job_id: JobId, *, with_payload: bool) -> Future[JobSnapshot | None]:
        return self._jobs(job_id) if with_payload else self._summaries(job_id)

    @staticmethod
    async def _existing(job_id: JobId, reading: Future[JobSnapshot | None]) -> JobSnapshot:
        seen = await reading
        if seen is None:
            raise JobNotFound(job_id)
        return seen

    def _read_now(self, call: Callable[[], R]) -> tuple[R, datetime]:
        return call(), self.clock.now()

    def _read(self, job_ids: list[JobId], *, with_payload: bool) -> list[JobSnapshot | None]:
        inspector, asked = self.inspector, list(dict.fromkeys(job_ids))
        jobs: Mapping[JobId, JobSummary] = inspector.get(asked) if with_payload else inspector.summaries(asked)
        failed = [job.id for job in jobs.values() if job.last_error is not None]
        by_job = groupby(inspector.attempts(failed) if failed else [], lambda attempt: attempt.job_id)
        failures = {job_id: last_failure(attempts) for job_id, attempts in by_job}
        now = self.clock.now()
        return [JobSnapshot(jobs[job_id], failures.get(job_id), now) if job_id in jobs else None for job_id in job_ids]

    def _now(self) -> datetime:
        return self.backend.driver.inspector.now()

    def _look_for_keys(self, asked: list[None]) -> Sequence[bool]:
        return [has_valid_key(self.backend.driver.inspector)] * len(asked)

    def _note_uses(self, ids: list[str]) -> Sequence[None]:
        self.backend.driver.control.note_key_use(ids)
        return [None] * len(ids)

    def _ask(self, asked: list[None]) -> Sequence[None]:
        self._now()
        return asked

    def _record(self, entries: list[AuditEntry]) -> Sequence[None]:
        self.backend.driver.control.record_audit(entries)
        return [None] * len(entries)


def _log_failed_note(done: Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        _LOG.warning("cannot note that a key was used; trying again at its next use in a minute: %s", error)
