"""Wait for jobs to reach a final state, for any number of waiters, with one polling thread."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import JobNotFound, ResultTimeout, StoreUnavailable
from taskharbor.core.model import Job
from taskharbor.diagnosis import timeout_error
from taskharbor.runtime import resolve_futures

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.drivers.base import Inspector

    Answer = JobSummary | Exception

FIRST_POLL_SECONDS: Final = 0.01
"""The time until the first poll of a job. It doubles with each poll."""
MAX_POLL_SECONDS: Final = 0.25
"""The maximum time between two polls of a job."""
MAX_POLL_JOBS: Final = 500
"""The maximum number of jobs read in one statement."""


class JobWatcher:
    """Polls jobs for all waiters of a process in one thread.

    A job is polled soon after the wait began, and then less and less often. Jobs that are almost
    due are polled together. The thread runs only while there are waiters. While the store is
    unavailable it keeps polling, and each waiter gets the error at its own timeout. Payloads and
    results are read once, after the job has ended, and only if the waiter needs them.
    """

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._poll_thread = _PollThread(inspector)
        self._is_closed = False

    def wait(self, job_id: JobId, timeout: timedelta) -> Job:
        """Return the job once it is in a final state.

        Raises `ResultTimeout` after *timeout*, `StoreUnavailable` if the store was unavailable until
        then, and `JobNotFound` if the job does not exist or was removed.
        """
        waiter = _Waiter(job_id, needs_whole=True)
        current = self._current_thread()
        current.add(waiter)
        try:
            answer = waiter.answers.get(timeout=max(0.0, timeout.total_seconds()))
        except Empty:
            raise self._explain(waiter, timeout) from waiter.store_error
        finally:
            current.remove(waiter)
        return _whole(_answer_or_raise(answer))

    async def await_final(self, job_id: JobId, timeout: timedelta) -> Job:  # noqa: ASYNC109  as `wait`; it raises its own error
        """Return the job once it is in a final state, as `wait` does. Works on any event loop."""
        waiter = _Waiter(job_id, needs_whole=True)
        job = await self._next(waiter, time.monotonic() + timeout.total_seconds())
        if isinstance(job, _Waiter):
            raise await asyncio.to_thread(self._explain, waiter, timeout) from waiter.store_error
        return _whole(job)

    async def await_end(self, job_id: JobId, timeout: timedelta) -> JobSummary:  # noqa: ASYNC109  as above
        """Return the job once it is in a final state, without reading its payload and result.

        Its `ResultTimeout` does not say what the job waits for: that takes several queries.
        """
        job = await self._next(_Waiter(job_id), time.monotonic() + timeout.total_seconds())
        if isinstance(job, _Waiter):
            raise job.timeout_error(timeout) from job.store_error
        return job

    async def watch(self, job_id: JobId, timeout: timedelta) -> AsyncIterator[JobSummary]:  # noqa: ASYNC109  as above
        """Yield the job now and after each change of status, attempt or progress, until it is final.

        Changes in quick succession may be combined. Stops silently after *timeout*; raises the other
        errors of `wait`.
        """
        give_up_at = time.monotonic() + timeout.total_seconds()
        seen: JobSummary | None = None
        while seen is None or not seen.status.is_final:
            job = await self._next(_Waiter(job_id, seen=seen, only_final=False), give_up_at)
            if isinstance(job, _Waiter):
                if job.store_error is not None:
                    raise job.timeout_error(timeout) from job.store_error
                return
            yield job
            seen = job

    def close(self) -> None:
        """Stop polling. Current and later waiters get `StoreUnavailable`."""
        self._is_closed = True
        if self._poll_thread.pid == os.getpid():
            self._poll_thread.end(StoreUnavailable(_CLOSED))

    async def _next(self, waiter: _Waiter, give_up_at: float) -> JobSummary | _Waiter:
        """Return the job once the wait is satisfied, or the waiter itself after its timeout."""
        waiter.future = future = asyncio.get_running_loop().create_future()
        current = self._current_thread()
        current.add(waiter)
        try:
            await asyncio.wait([future], timeout=max(0.0, give_up_at - time.monotonic()))
        finally:
            current.remove(waiter)
        return _answer_or_raise(future.result()) if future.done() else waiter

    def _explain(self, waiter: _Waiter, timeout: timedelta) -> ResultTimeout | StoreUnavailable:
        """Return the error of a wait that timed out, with what the job waits for."""
        if waiter.store_error is not None:
            return waiter.timeout_error(timeout)
        return timeout_error(self._inspector, waiter.job_id, timeout)

    def _current_thread(self) -> _PollThread:
        if self._is_closed:
            raise StoreUnavailable(_CLOSED)
        current = self._poll_thread
        if current.pid != os.getpid():
            current = self._poll_thread = _PollThread(self._inspector)  # threads do not survive a fork
        return current


class _PollThread:
    """The waiters of one process, and the thread that polls for them."""

    def __init__(self, inspector: Inspector) -> None:
        self.pid: Final = os.getpid()
        self._inspector = inspector
        self._changed = threading.Condition()
        self._waiters: dict[_Waiter, None] = {}
        self._thread: threading.Thread | None = None
        self._next_poll_at = 0.0
        self._last_poll_at = 0.0

    def add(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters[waiter] = None
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="taskharbor-watcher", daemon=True)
                thread.start()
                self._thread = thread  # set under the lock, which the thread takes first
            elif waiter.poll_at < self._next_poll_at:
                self._changed.notify()

    def remove(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters.pop(waiter, None)

    def end(self, error: Exception) -> None:
        with self._changed:
            self._deliver([(waiter, error) for waiter in self._waiters])
            self._changed.notify()

    def _run(self) -> None:
        try:
            while due := self._due():
                self._poll(due)
                for waiter in due:
                    waiter.schedule_poll(time.monotonic())
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None  # the next waiter starts another thread

    def _due(self) -> list[_Waiter]:
        """Wait until a poll is due, and return its waiters; empty if there are no waiters."""
        with self._changed:
            while self._waiters:
                self._next_poll_at = max(
                    min(waiter.poll_at for waiter in self._waiters), self._last_poll_at + FIRST_POLL_SECONDS
                )
                now = time.monotonic()
                if self._next_poll_at <= now:
                    self._last_poll_at = now
                    # Include waiters that are almost due: a thousand waiters must not need a thousand polls.
                    return [waiter for waiter in self._waiters if waiter.poll_at - waiter.pause / 2 <= now]
                self._changed.wait(self._next_poll_at - now)
            self._thread = None
            return []

    def _poll(self, waiters: Sequence[_Waiter]) -> None:
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
                waiter.store_error = error
        except Exception as error:  # noqa: BLE001  raised in the waiters: another poll would not help
            self._deliver((waiter, error) for waiter in waiters)
        else:
            self._deliver((waiter, waiter.answer(found, whole)) for waiter in waiters)

    def _deliver(self, answers: Iterable[tuple[_Waiter, Answer | None]]) -> None:
        futures = []
        with self._changed:
            for waiter, answer in answers:
                if answer is not None and waiter in self._waiters:
                    del self._waiters[waiter]
                    if waiter.future is not None:
                        futures.append((waiter.future, answer))
                    waiter.answers.put(answer)
        resolve_futures(futures)


class _Waiter:
    """One wait for a job: for its final state, or for a change from the *seen* state."""

    def __init__(
        self, job_id: JobId, *, seen: JobSummary | None = None, only_final: bool = True, needs_whole: bool = False
    ) -> None:
        self.job_id = job_id
        self.needs_whole = needs_whole
        self.answers: SimpleQueue[Answer] = SimpleQueue()
        self.future: Future[Answer] | None = None
        self.pause = FIRST_POLL_SECONDS
        self.poll_at = time.monotonic() + FIRST_POLL_SECONDS
        self.store_error: StoreUnavailable | None = None
        self._seen = seen
        self._only_final = only_final

    def schedule_poll(self, now: float) -> None:
        self.pause = min(2 * self.pause, MAX_POLL_SECONDS)
        self.poll_at = now + self.pause

    def answer(self, found: Mapping[JobId, JobSummary], whole: Mapping[JobId, Job]) -> Answer | None:
        """Return the result of the wait, or None to keep waiting."""
        self.store_error = None
        job = found.get(self.job_id)
        if job is not None and self._only_final and not job.status.is_final:
            return None
        job = whole.get(self.job_id) if self.needs_whole else job
        if job is None:
            return JobNotFound(self.job_id)
        return job if self._seen is None or _visible_state(job) != _visible_state(self._seen) else None

    def timeout_error(self, timeout: timedelta) -> ResultTimeout | StoreUnavailable:
        error = self.store_error
        return ResultTimeout(self.job_id, timeout) if error is None else StoreUnavailable(error.reason)


def _chunks(job_ids: Sequence[JobId]) -> Iterator[Sequence[JobId]]:
    return (job_ids[start : start + MAX_POLL_JOBS] for start in range(0, len(job_ids), MAX_POLL_JOBS))


def _visible_state(job: JobSummary) -> tuple[object, ...]:
    """Return the fields whose change ends a `watch` step. An extended lease is not one."""
    return job.status, job.life, job.attempt_count, job.progress, job.cancel_requested_at


def _answer_or_raise(answer: Answer) -> JobSummary:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _whole(job: JobSummary) -> Job:
    assert isinstance(job, Job)  # noqa: S101  its waiter has needs_whole
    return job


_CLOSED: Final = "this watcher is closed"
