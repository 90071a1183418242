"""Group commit for coroutines: threads of their own insert the jobs that coroutines enqueue."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from taskharbor.core.job_batch import distinct
from taskharbor.group_commit.key_locks import KeyWaiter, keys_of
from taskharbor.group_commit.sync import fill_batch, insert_batch, insert_or_repeat
from taskharbor.runtime import resolve_futures, resolve_in_loop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Sequence

    from taskharbor.core.model import NewJob
    from taskharbor.group_commit.key_locks import KeyLocks
    from taskharbor.group_commit.sync import Answer, InsertCall

    Answers = Sequence[Answer] | Exception

_LOG: Final = logging.getLogger("taskharbor.client")
IDLE_SECONDS: Final = 5.0
"""How long a thread without work stays alive."""
CLOSE_TIMEOUT_SECONDS: Final = 30.0
"""How long closing waits for running inserts."""
MAX_KEYED_THREADS: Final = 4
"""Threads for single jobs with an idempotency key."""
MAX_BATCH_THREADS: Final = 4
"""Threads for several jobs of one call."""
T = TypeVar("T")


class IdleThreadPool:
    """A pool of at most *max_threads* threads. A thread ends when it was idle for `IDLE_SECONDS`.

    A pool that is never closed therefore keeps no threads for long.
    """

    def __init__(self, name: str, *, max_threads: int) -> None:
        self._name, self._max_threads = name, max_threads
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_closed = False

    def run(self, work: Callable[[], None]) -> None:
        """Call *work* as soon as a thread is free. Raises `RuntimeError` if no thread can be started."""
        with self._changed:
            self._work.append(work)
            if len(self._work) <= self._idle:
                self._changed.notify()
            elif len(self._threads) < self._max_threads:
                self._start_thread()

    @property
    def has_threads(self) -> bool:
        """Whether any of its threads is alive."""
        with self._changed:
            return bool(self._threads)

    def close(self) -> None:
        """End the threads after all work is done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = [*self._threads]
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            if not self._threads:
                self._work.clear()  # the caller gets the error: its work must not be done later
                raise

    def _serve(self) -> None:
        while (work := self._next_work()) is not None:
            try:
                work()
            except BaseException:  # noqa: BLE001  the thread must do the remaining work
                _LOG.exception("unexpected error in thread %s; continuing", self._name)
            del work  # otherwise an idle thread would keep its last work alive

    def _next_work(self) -> Callable[[], None] | None:
        with self._changed:
            if not self._work:
                self._idle += 1
                self._changed.wait_for(lambda: self._work or self._is_closed, timeout=IDLE_SECONDS)
                self._idle -= 1
            if self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            return None


class AsyncGroupCommit:
    """Group commit for the coroutines of any number of event loops.

    One thread inserts single jobs. Jobs that arrive during an insert are the next batch. The jobs that one
    event loop submits in one iteration are passed to the thread together, and each event loop is woken once
    per batch.

    Jobs with an idempotency key, and calls with several jobs, are inserted by a few other threads, each call in
    its own statement: an open transaction may hold a key, and only callers with that key may wait for it.
    *key_locks* admits one statement per key to the store.

    Every wait ends: the threads only call the driver, which has a deadline for everything, and answer every job
    whatever the driver raises.
    """

    def __init__(self, insert: InsertCall, key_locks: KeyLocks) -> None:
        self.pid: Final = os.getpid()
        """The process that it belongs to: its threads do not exist after a fork."""
        self._insert = insert
        self._key_locks = key_locks
        self._pending: dict[AbstractEventLoop, list[_AsyncInsert]] = {}
        self._waiting: deque[_AsyncInsert] = deque()
        self._single_pool = IdleThreadPool("taskharbor-group-commit", max_threads=1)
        self._keyed_pool = IdleThreadPool("taskharbor-keyed-insert", max_threads=MAX_KEYED_THREADS)
        self._batch_pool = IdleThreadPool("taskharbor-batch-insert", max_threads=MAX_BATCH_THREADS)

    def submit(self, jobs: Sequence[NewJob]) -> Future[Answers]:
        """Return a future of the running event loop; its result is the answers, or the error as a value.

        If the future is canceled before its insert begins, nothing is stored.
        """
        loop = asyncio.get_running_loop()
        future: Future[Answers] = loop.create_future()
        if len(jobs) == 1 and jobs[0].idempotency_key is None:
            self._add_pending(loop, _AsyncInsert(jobs[0], future))
        else:
            pool = self._keyed_pool if len(jobs) == 1 else self._batch_pool
            self._key_locks.enter(KeyWaiter(keys_of(distinct(jobs)), partial(self._start, pool, jobs, future)))
        return future

    def close(self) -> None:
        """Store all submitted jobs, and end the threads."""
        pools = (self._single_pool, self._keyed_pool, self._batch_pool)
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for pool in pools:
            pool.close()
        # A statement that waited for a key of another pool's statement has started threads of its pool again.
        while any(pool.has_threads for pool in pools) and time.monotonic() < give_up_at:
            for pool in pools:
                pool.close()

    def _add_pending(self, loop: AbstractEventLoop, insert: _AsyncInsert) -> None:
        """Collect the inserts of one iteration of *loop*, and submit them at its end."""
        pending = self._pending.get(loop)
        if pending is None:
            self._pending[loop] = [insert]
            loop.call_soon(self._submit_pending, loop)
        else:
            pending.append(insert)

    def _submit_pending(self, loop: AbstractEventLoop) -> None:
        pending = self._pending.pop(loop)
        self._waiting.extend(pending)
        try:
            self._single_pool.run(self._flush)
        except RuntimeError as error:  # no thread can be started
            resolve_in_loop([(each.future, error) for each in pending])

    def _flush(self) -> None:
        while self._waiting:
            batch: list[_AsyncInsert] = []
            fill_batch(self._waiting, batch)
            batch = [each for each in batch if not each.future.done()]
            if batch:
                answers = _result_or_error(partial(insert_batch, self._insert, [each.job for each in batch]))
                results = len(batch) * [answers] if isinstance(answers, Exception) else map(_as_answers, answers)
                resolve_futures(zip((each.future for each in batch), results, strict=True))

    def _start(self, pool: IdleThreadPool, jobs: Sequence[NewJob], future: Future[Answers], waiter: KeyWaiter) -> bool:
        """Let *pool* insert *jobs*, whose keys are free now; return False if they cannot be inserted."""
        if waiter.has_timed_out():
            resolve_futures([(future, waiter.timeout_error())])
            return False
        try:
            pool.run(partial(self._insert_alone, jobs, future, waiter))
        except RuntimeError as error:  # no thread can be started
            resolve_futures([(future, error)])
            return False
        return True

    def _insert_alone(self, jobs: Sequence[NewJob], future: Future[Answers], waiter: KeyWaiter) -> None:
        try:
            if not future.done():
                resolve_futures([(future, _result_or_error(partial(insert_or_repeat, self._insert, jobs)))])
        finally:
            self._key_locks.leave(waiter)


class _AsyncInsert:
    __slots__ = ("future", "job")

    def __init__(self, job: NewJob, future: Future[Answers]) -> None:
        self.job, self.future = job, future


def _as_answers(answer: Answer | Exception) -> Answers:
    return answer if isinstance(answer, Exception) else [answer]


def _result_or_error(work: Callable[[], T]) -> T | Exception:
    """Call *work*, and return what it returns or raises: a coroutine waits for one of them."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  the coroutine raises it
        return error
    except BaseException as error:  # noqa: BLE001  a SystemExit of this thread must not end the coroutine's thread
        return RuntimeError(f"the store raised {error!r}")
