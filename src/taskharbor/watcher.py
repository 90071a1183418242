"""Waiting until jobs end, for any number of waiters at once."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import JobNotFound, ResultTimeout, StoreUnavailable
from taskharbor.core.model import Job
from taskharbor.runtime import resolve_futures

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.drivers.base import Inspector

    Answer = JobSummary | Exception

FIRST_POLL_SECONDS: Final = 0.01  # seconds until a job is looked at for the first time; doubled from look to look
MAX_POLL_SECONDS: Final = 0.25  # seconds between two looks at a job
MAX_POLL_JOBS: Final = 500
"""Jobs that are read in one statement."""


class JobWatcher:
    """Looks at jobs for those who wait for them, in one thread however many they are.

    A job is looked at soon after somebody began to wait for it, and then less and less
    often; those whose time is near are looked at together. The thread is there while
    somebody waits. While the store is out of reach it keeps trying, and each waiter
    learns of that when its own time is over: no wait is longer than its timeout. Payloads and
    results are read once a job has ended, and only if the waiter needs them.
    """

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._round = _PollThread(inspector)
        self._is_closed = False

    def wait(self, job_id: JobId, timeout: timedelta) -> Job:
        """Return the job once it is in a final state.

        Raises `ResultTimeout` where it is not within *timeout*, `StoreUnavailable` where the
        store could not tell, and `JobNotFound` where there is no such job (any more).
        """
        waiter = _Waiter(job_id, needs_whole=True)
        current = self._own_round()
        current.add(waiter)
        try:
            told = waiter.mail.get(timeout=max(0.0, timeout.total_seconds()))
        except Empty:
            raise waiter.too_late(timeout) from waiter.trouble
        finally:
            current.remove(waiter)
        return _whole(_answer_or_raise(told))

    async def await_final(self, job_id: JobId, timeout: timedelta) -> Job:  # noqa: ASYNC109  as `wait`; its end is told apart
        """Return the job once it is in a final state, as `wait` does, from a coroutine of any event loop."""
        return _whole(await self._end(job_id, timeout, needs_whole=True))

    async def await_end(self, job_id: JobId, timeout: timedelta) -> JobSummary:  # noqa: ASYNC109  as above
        """Return the job once it is in a final state, without reading its payload and result."""
        return await self._end(job_id, timeout, needs_whole=False)

    async def watch(self, job_id: JobId, timeout: timedelta) -> AsyncIterator[JobSummary]:  # noqa: ASYNC109  as above
        """Yield the job as it is, and whenever its status, attempt or progress changed, until it is final.

        Changes that follow each other closely may be seen as one. It ends when *timeout* has passed, too;
        errors are those of `wait`.
        """
        give_up_at = time.monotonic() + timeout.total_seconds()
        seen: JobSummary | None = None
        while seen is None or not seen.status.is_final:
            job = await self._next(_Waiter(job_id, seen=seen, only_final=False), give_up_at)
            if isinstance(job, _Waiter):
                if job.trouble is not None:
                    raise job.too_late(timeout) from job.trouble
                return
            yield job
            seen = job

    def close(self) -> None:
        """Look at nothing any more: whoever waits is told so by `StoreUnavailable`, and so is who comes later."""
        self._is_closed = True
        if self._round.pid == os.getpid():
            self._round.end(StoreUnavailable(_CLOSED))

    async def _end(self, job_id: JobId, timeout: timedelta, *, needs_whole: bool) -> JobSummary:  # noqa: ASYNC109  as above
        waiter = _Waiter(job_id, needs_whole=needs_whole)
        job = await self._next(waiter, time.monotonic() + timeout.total_seconds())
        if isinstance(job, _Waiter):
            raise job.too_late(timeout) from job.trouble
        return job

    async def _next(self, waiter: _Waiter, give_up_at: float) -> JobSummary | _Waiter:
        """Return the job once it is what is waited for, or the waiter whose time is over."""
        waiter.future = future = asyncio.get_running_loop().create_future()
        current = self._own_round()
        current.add(waiter)
        try:
            await asyncio.wait([future], timeout=max(0.0, give_up_at - time.monotonic()))
        finally:
            current.remove(waiter)
        return _answer_or_raise(future.result()) if future.done() else waiter

    def _own_round(self) -> _PollThread:
        if self._is_closed:
            raise StoreUnavailable(_CLOSED)
        current = self._round
        if current.pid != os.getpid():
            current = self._round = _PollThread(self._inspector)  # the thread stayed on the other side of the fork
        return current


class _PollThread:
    """The waiters of one process, and the thread that looks for them."""

    def __init__(self, inspector: Inspector) -> None:
        self.pid: Final = os.getpid()
        self._inspector = inspector
        self._changed = threading.Condition()
        self._waiters: dict[_Waiter, None] = {}
        self._thread: threading.Thread | None = None
        self._looks_at = 0.0
        self._looked_at = 0.0

    def add(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters[waiter] = None
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="taskharbor-watcher", daemon=True)
                thread.start()
                self._thread = thread  # the thread looks for waiters only when it has the lock
            elif waiter.look_at < self._looks_at:
                self._changed.notify()

    def remove(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters.pop(waiter, None)

    def end(self, error: Exception) -> None:
        with self._changed:
            self._notify_hooks([(waiter, error) for waiter in self._waiters])
            self._changed.notify()

    def _run(self) -> None:
        try:
            while due := self._due():
                self._look(due)
                for waiter in due:
                    waiter.is_looked_at(time.monotonic())
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None  # whoever comes next starts another

    def _due(self) -> list[_Waiter]:
        """Wait until jobs are to be looked at, and return who waits for those; nobody, if nobody waits at all."""
        with self._changed:
            while self._waiters:
                self._looks_at = max(
                    min(waiter.look_at for waiter in self._waiters), self._looked_at + FIRST_POLL_SECONDS
                )
                now = time.monotonic()
                if self._looks_at <= now:
                    self._looked_at = now
                    # Those whose time is near come along, or a thousand waiters would be looked after one by one.
                    return [waiter for waiter in self._waiters if waiter.look_at - waiter.pause / 2 <= now]
                self._changed.wait(self._looks_at - now)
            self._thread = None
            return []

    def _look(self, waiters: Sequence[_Waiter]) -> None:
        job_ids = [*dict.fromkeys(waiter.job_id for waiter in waiters)]
        found: dict[JobId, JobSummary] = {}
        whole: dict[JobId, Job] = {}
        try:
            for chunk in _chunks(job_ids):
                found |= self._inspector.summaries(chunk)
            needed = dict.fromkeys(waiter.job_id for waiter in waiters if waiter.needs_whole)
            for chunk in _chunks([job_id for job_id in needed if job_id in found and found[job_id].status.is_final]):
                whole |= self._inspector.get(chunk)
        except StoreUnavailable as error:
            for waiter in waiters:
                waiter.trouble = error
        except Exception as error:  # noqa: BLE001  whoever waits is told: looking again would not help
            self._notify_hooks((waiter, error) for waiter in waiters)
        else:
            self._notify_hooks((waiter, waiter.verdict(found, whole)) for waiter in waiters)

    def _notify_hooks(self, verdicts: Iterable[tuple[_Waiter, Answer | None]]) -> None:
        awaited = []
        with self._changed:
            for waiter, told in verdicts:
                if told is not None and waiter in self._waiters:
                    del self._waiters[waiter]
                    if waiter.future is not None:
                        awaited.append((waiter.future, told))
                    waiter.mail.put(told)
        resolve_futures(awaited)


class _Waiter:
    """Somebody who waits for a job: for its end, or for something else than what was *seen*."""

    def __init__(
        self, job_id: JobId, *, seen: JobSummary | None = None, only_final: bool = True, needs_whole: bool = False
    ) -> None:
        self.job_id = job_id
        self.needs_whole = needs_whole
        self.mail: SimpleQueue[Answer] = SimpleQueue()
        self.future: Future[Answer] | None = None
        self.pause = FIRST_POLL_SECONDS
        self.look_at = time.monotonic() + FIRST_POLL_SECONDS
        self.trouble: StoreUnavailable | None = None
        self._seen = seen
        self._only_final = only_final

    def is_looked_at(self, now: float) -> None:
        self.pause = min(2 * self.pause, MAX_POLL_SECONDS)
        self.look_at = now + self.pause

    def verdict(self, found: Mapping[JobId, JobSummary], whole: Mapping[JobId, Job]) -> Answer | None:
        """Return what to tell, or None: wait on."""
        self.trouble = None
        job = found.get(self.job_id)
        if job is not None and self._only_final and not job.status.is_final:
            return None
        job = whole.get(self.job_id) if self.needs_whole else job
        if job is None:
            return JobNotFound(self.job_id)
        return job if self._seen is None or _shown(job) != _shown(self._seen) else None

    def too_late(self, timeout: timedelta) -> ResultTimeout | StoreUnavailable:
        return ResultTimeout(self.job_id, timeout) if self.trouble is None else StoreUnavailable(self.trouble.reason)


def _chunks(job_ids: Sequence[JobId]) -> Iterator[Sequence[JobId]]:
    return (job_ids[start : start + MAX_POLL_JOBS] for start in range(0, len(job_ids), MAX_POLL_JOBS))


def _shown(job: JobSummary) -> tuple[object, ...]:
    """Return what people follow of a job; that its lease was extended is not news."""
    return job.status, job.life, job.attempt_count, job.progress, job.cancel_requested_at


def _answer_or_raise(told: Answer) -> JobSummary:
    if isinstance(told, Exception):
        raise told
    return told


def _whole(job: JobSummary) -> Job:
    assert isinstance(job, Job)  # noqa: S101  its waiter needed it
    return job


_CLOSED: Final = "nobody looks at jobs any more: this watcher was closed"
