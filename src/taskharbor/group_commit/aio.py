"""Jobs of many coroutines, stored from threads that are not theirs."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

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
IDLE_SECONDS: Final = 5.0  # seconds, after which a thread that has nothing to do ends
CLOSE_TIMEOUT_SECONDS: Final = 30.0  # seconds that closing waits for what is under way
T = TypeVar("T")

MAX_KEYED: Final = 4
"""Threads for single jobs with an idempotency key."""
MAX_BATCHES: Final = 4
"""Threads for several jobs of one call."""


class IdleThreadPool:
    """At most *most* threads, which nobody has to end: who forgets to close it keeps nothing for long."""

    def __init__(self, name: str, *, most: int) -> None:
        self._name, self._most = name, most
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_closed = False

    def run(self, work: Callable[[], None]) -> None:
        """Let *work* be done as soon as a thread is free. Raises `RuntimeError` where none can be started."""
        with self._changed:
            self._work.append(work)
            if len(self._work) <= self._idle:
                self._changed.notify()
            elif len(self._threads) < self._most:
                self._start()

    @property
    def is_busy(self) -> bool:
        """Whether it has threads."""
        with self._changed:
            return bool(self._threads)

    def close(self) -> None:
        """End the threads, once all work is done."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = [*self._threads]
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            if not self._threads:
                self._work.clear()  # whoever is told that it failed must not see it done later
                raise

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:  # noqa: BLE001  the others' work must be done all the same
                _LOG.exception("%s met an error of ours", self._name)
            del work  # or an idle thread would keep alive what it did last

    def _next(self) -> Callable[[], None] | None:
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
    """Stores what coroutines hand over, of any number of event loops.

    One thread stores single jobs: while it is at it more of them gather, and go out together
    in the next statement. What coroutines of one loop hand over in one turn of that loop is
    handed over at once, and what is stored at once is told to each loop at once.

    Jobs with an idempotency key are stored by a few threads more, and so are several jobs of one
    call, each call in a statement of its own: an open transaction may hold a key, and only callers
    with that key may wait for it. *turns* lets one statement for each key into the store.

    Why every wait ends: all threads are in the driver, which waits for nothing without a
    deadline, and answer for every job whatever comes out of it.
    """

    def __init__(self, insert: InsertCall, turns: KeyLocks) -> None:
        self.pid: Final = os.getpid()
        """Whose it is: its threads stay on this side of a fork."""
        self._insert = insert
        self._turns = turns
        self._gathered: dict[AbstractEventLoop, list[_AsyncInsert]] = {}
        self._handed: deque[_AsyncInsert] = deque()
        self._together = IdleThreadPool("taskharbor-group-commit", most=1)
        self._keyed = IdleThreadPool("taskharbor-keyed-insert", most=MAX_KEYED)
        self._batches = IdleThreadPool("taskharbor-batch-insert", most=MAX_BATCHES)

    def submit(self, jobs: list[NewJob]) -> Future[Answers]:
        """Return what will hold the answers, or the error instead of them; a coroutine's own loop must be running.

        Where the future is cancelled before its turn, nothing is stored.
        """
        loop = asyncio.get_running_loop()
        future: Future[Answers] = loop.create_future()
        if len(jobs) == 1 and jobs[0].idempotency_key is None:
            self._gather(loop, _AsyncInsert(jobs[0], future))
        else:
            crew = self._keyed if len(jobs) == 1 else self._batches
            self._turns.enter(KeyWaiter(keys_of(jobs), partial(self._begin, crew, jobs, future)))
        return future

    def close(self) -> None:
        """Store what was handed over, and end the threads."""
        crews = (self._together, self._keyed, self._batches)
        give_up_at = time.monotonic() + CLOSE_TIMEOUT_SECONDS
        for crew in crews:
            crew.close()
        # A statement that waited for a key of another crew's statement has started that crew again.
        while any(crew.is_busy for crew in crews) and time.monotonic() < give_up_at:
            for crew in crews:
                crew.close()

    def _gather(self, loop: AbstractEventLoop, awaited: _AsyncInsert) -> None:
        gathered = self._gathered.get(loop)
        if gathered is None:
            self._gathered[loop] = [awaited]
            loop.call_soon(self._submit_gathered, loop)
        else:
            gathered.append(awaited)

    def _submit_gathered(self, loop: AbstractEventLoop) -> None:
        gathered = self._gathered.pop(loop)
        self._handed.extend(gathered)
        try:
            self._together.run(self._flush)
        except RuntimeError as error:  # no thread can be started; nobody may wait for one
            resolve_in_loop([(each.future, error) for each in gathered])

    def _flush(self) -> None:
        while self._handed:
            batch: list[_AsyncInsert] = []
            fill_batch(self._handed, batch)
            batch = [each for each in batch if not each.future.done()]
            if batch:
                answers = _kept(partial(insert_batch, self._insert, [each.job for each in batch]))
                each_own = len(batch) * [answers] if isinstance(answers, Exception) else map(_single, answers)
                resolve_futures(zip((each.future for each in batch), each_own, strict=True))

    def _begin(self, crew: IdleThreadPool, jobs: list[NewJob], future: Future[Answers], ticket: KeyWaiter) -> bool:
        """Let *crew* store *jobs*, whose turn has come; return False if they cannot be stored."""
        if ticket.is_late():
            resolve_futures([(future, ticket.refusal())])
            return False
        try:
            crew.run(partial(self._store_alone, jobs, future, ticket))
        except RuntimeError as error:  # no thread can be started
            resolve_futures([(future, error)])
            return False
        return True

    def _store_alone(self, jobs: list[NewJob], future: Future[Answers], ticket: KeyWaiter) -> None:
        try:
            if not future.done():
                resolve_futures([(future, _kept(partial(insert_or_repeat, self._insert, jobs)))])
        finally:
            self._turns.leave(ticket)


class _AsyncInsert:
    __slots__ = ("future", "job")

    def __init__(self, job: NewJob, future: Future[Answers]) -> None:
        self.job, self.future = job, future


def _single(answer: Answer | Exception) -> Answers:
    return answer if isinstance(answer, Exception) else [answer]


def _kept(work: Callable[[], T]) -> T | Exception:
    """Return what *work* returns or raises: whatever it is, somebody waits for it."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  as above
        return error
    except BaseException as error:  # noqa: BLE001  as above; it was to end a thread that is not theirs
        return RuntimeError(f"the store stopped with {error!r}")
