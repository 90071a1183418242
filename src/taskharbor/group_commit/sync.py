"""Group commit for threads: jobs that threads enqueue one by one are inserted together, in one statement."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob
    from taskharbor.core.results import Enqueued

    Answer = Enqueued | IdempotencyConflict

MAX_BATCH_JOBS: Final = 500
"""The most jobs in one statement."""
MAX_BATCH_BYTES: Final = 1_048_576
"""The most payload bytes in one statement, unless one job alone has more. Many large payloads in one statement
would miss the driver's deadline."""
MAX_CONCURRENT_BATCHES: Final = 1
"""The most batches that run at once. Two batches of half the size were measured, and are slower."""
MAX_LINGER_SECONDS: Final = 0.001
"""The longest time that a leader waits for followers. It waits half the time of the last insert, if that is less."""
LEADER_TIMEOUT_SECONDS: Final = 1.0
"""After this time a batch delays only its own callers: one of the other waiters starts the next batch."""
GIVE_UP_SECONDS: Final = 120.0
"""How long a follower waits for the answer of its leader."""


class InsertCall(Protocol):
    """A callable that stores jobs, as `taskharbor.drivers.base.Driver.insert` does."""

    def __call__(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Answer]:
        """Return one answer for each of *jobs*, after they are committed."""


class PendingInsert(Protocol):
    """A job that waits to be inserted."""

    @property
    def job(self) -> NewJob:
        """The job to insert."""


T = TypeVar("T", bound=PendingInsert)


def fill_batch(waiting: deque[T], batch: list[T]) -> None:
    """Move the oldest of *waiting* to *batch*, up to the limits of a batch."""
    size = sum(len(each.job.payload) for each in batch)
    while waiting and len(batch) < MAX_BATCH_JOBS:
        size += len(waiting[0].job.payload)
        if batch and size > MAX_BATCH_BYTES:
            return
        batch.append(waiting.popleft())


def insert_or_repeat(insert: InsertCall, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Answer]:
    """Insert *jobs*. If the reply is lost, insert them again with the same ids, so that no job is stored twice.

    If the store is known to be unavailable, the insert is not repeated: it would fail again.
    """
    try:
        return insert(jobs, repeat=repeat)
    except StoreUnavailable as error:
        if error.retry_in is not None:
            raise
        return insert(jobs, repeat=True)


def insert_batch(insert: InsertCall, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Answer | Exception]:
    """Insert *jobs* in one statement, and return an answer or an error for each.

    `StoreUnavailable` is the answer for all of them. After any other error each job is inserted
    by itself, so that no caller gets an error that another caller's job has caused.
    """
    try:
        return [*insert_or_repeat(insert, jobs, repeat=repeat)]
    except StoreUnavailable as error:
        return _error_for_each(error, jobs)
    except Exception as error:  # noqa: BLE001  any error is returned to the callers whose jobs were sent
        return [error] if len(jobs) == 1 else _insert_one_by_one(insert, jobs)


def _insert_one_by_one(insert: InsertCall, jobs: Sequence[NewJob]) -> list[Answer | Exception]:
    answers: list[Answer | Exception] = []
    for index, job in enumerate(jobs):
        # A repeat, because the error may have come after the commit.
        [answer] = insert_batch(insert, [job], repeat=True)
        if isinstance(answer, StoreUnavailable):
            return answers + _error_for_each(answer, jobs[index:])  # trying each would take one deadline per job
        answers.append(answer)
    return answers


def _error_for_each(error: StoreUnavailable, jobs: Sequence[NewJob]) -> list[Answer | Exception]:
    """Return one error object per caller: an object raised in several threads would mix their tracebacks."""
    return [error, *(_caused_by(error) for _ in jobs[1:])]


def _caused_by(error: StoreUnavailable) -> StoreUnavailable:
    own = StoreUnavailable(error.reason, retry_in=error.retry_in)
    own.__cause__ = error
    return own


class GroupCommit:
    """Group commit: combines concurrent inserts of several threads into one statement.

    The first caller becomes the leader and inserts immediately, in its own thread, so a single caller
    has almost no overhead. Callers that arrive during that insert wait. When it ends, the first waiter becomes
    the next leader and inserts the jobs of all waiters, its followers. There are no other threads, and
    each caller returns only after its own job is committed.

    Every wait ends. A leader only calls the driver, and the driver has a deadline for everything. However
    that call ends, even with a KeyboardInterrupt, the leader answers its batch or returns it to the waiters,
    and appoints the next leader. Two cases remain. A signal handler that enqueues may have interrupted the
    leader that it waits for, and a KeyboardInterrupt may be raised inside of that cleanup. So a batch that has
    run for longer than `LEADER_TIMEOUT_SECONDS` no longer counts, and one of the waiters leads the next
    batch. A follower inside of such a batch that gets no answer for `GIVE_UP_SECONDS` raises an error that
    says that the outcome is unknown.
    """

    def __init__(self, insert: InsertCall) -> None:
        self.pid: Final = os.getpid()
        """The process that it belongs to: after a fork the leader's thread exists only in the parent."""
        self._insert = insert
        self._lock = threading.RLock()  # a signal handler that enqueues must not wait for the code it interrupted
        self._waiting: deque[_Waiter] = deque()
        self._running: list[_Batch] = []
        self._lingering: _Batch | None = None
        self._expected = 1  # callers that the next batch will probably have
        self._linger_seconds = 0.0

    def insert(self, job: NewJob) -> Answer:
        """Store *job*, possibly together with jobs of other threads, and return after it is committed."""
        with self._lock:
            if self._running or self._waiting or self._expected > 1:
                batch = None
            else:  # a single caller allocates no waiter
                batch = _new_object(_Batch)
                batch.began, batch.waiters = time.monotonic(), _NO_WAITERS
                self._running.append(batch)
        if batch is None:
            return self._insert_in_batch(job)
        try:
            return insert_or_repeat(self._insert, [job])[0]
        finally:
            self._expected = 1 + len(self._waiting)
            self._linger_seconds = min(MAX_LINGER_SECONDS, (time.monotonic() - batch.began) / 2)
            with self._lock:
                self._running.remove(batch)
                has_waiters = bool(self._waiting)
            if has_waiters:
                self._finish(batch)

    def _insert_in_batch(self, job: NewJob) -> Answer:
        waiter = _Waiter(job)
        try:
            answer = self._wait_for_answer(waiter)
        except BaseException:
            self._withdraw(waiter)
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _wait_for_answer(self, waiter: _Waiter) -> Answer | Exception:
        """Run a batch whenever *waiter* is the leader, until its own job is answered."""
        batch = self._lead_or_wait(waiter)
        give_up_at = time.monotonic() + GIVE_UP_SECONDS
        while True:
            if batch is not None:
                self._run(batch)
            try:
                reply = waiter.replies.get(timeout=LEADER_TIMEOUT_SECONDS)
            except Empty:
                if time.monotonic() > give_up_at:
                    raise StoreUnavailable(_NO_ANSWER) from None
                batch = self._replace_leader(waiter)
            else:
                if not isinstance(reply, _Batch):
                    return reply
                batch = reply

    def _lead_or_wait(self, waiter: _Waiter) -> _Batch | None:
        """Return a batch to lead. If another batch runs, add *waiter* to the waiters and return None."""
        with self._lock:
            if self._may_start():
                return self._start_batch(waiter)
            self._waiting.append(waiter)
            if self._lingering is not None and len(self._waiting) + 1 >= self._expected:
                self._lingering.filled.put(None)
            return None

    def _replace_leader(self, waiter: _Waiter) -> _Batch | None:
        """Return a batch to lead if *waiter* is in no batch and the running batch has timed out."""
        with self._lock:
            if waiter not in self._waiting or not self._may_start():
                return None
            self._waiting.remove(waiter)
            return self._start_batch(waiter)

    def _run(self, batch: _Batch) -> None:
        """Insert the jobs of *batch*, answer its waiters, and appoint the next leader."""
        if self._expected > 1:
            self._linger(batch)
        if self._waiting:
            with self._lock:
                fill_batch(self._waiting, batch.waiters)
        jobs = [each.job for each in batch.waiters]
        is_repeat = any(each.is_repeat for each in batch.waiters)
        start = time.monotonic()
        for waiter, answer in zip(batch.waiters, insert_batch(self._insert, jobs, repeat=is_repeat), strict=True):
            waiter.replies.put(answer)
            waiter.is_finished = True
        self._expected = len(jobs) + len(self._waiting)
        self._linger_seconds = min(MAX_LINGER_SECONDS, (time.monotonic() - start) / 2)
        self._finish(batch)

    def _linger(self, batch: _Batch) -> None:
        """Wait briefly for the callers that were just answered: many of them enqueue another job immediately.

        Without this the first of them would be inserted alone, or the callers would split into two halves that
        alternate, and each commit would have few jobs. If fewer callers come than expected, the batch is
        smaller, and the next leader expects fewer. A single caller never waits.
        """
        with self._lock:
            if len(self._waiting) + 1 >= self._expected:
                return
            self._lingering = batch
        with suppress(Empty):
            batch.filled.get(timeout=self._linger_seconds)
        self._lingering = None

    def _withdraw(self, waiter: _Waiter) -> None:
        """Remove *waiter* without an answer. If it led a batch, the others of that batch wait again."""
        with self._lock:
            waiter.is_finished = True
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            for batch in [each for each in self._running if each.waiters and each.waiters[0] is waiter]:
                others = [each for each in batch.waiters if not each.is_finished]
                for other in others:
                    other.is_repeat = True  # its job may be stored already
                self._waiting.extendleft(reversed(others))
                self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        """Remove *batch*, and appoint the leader of the next one."""
        with self._lock:
            if batch in self._running:
                self._running.remove(batch)
            if self._waiting and self._may_start():
                leader = self._waiting.popleft()
                leader.replies.put(self._start_batch(leader))

    def _start_batch(self, leader: _Waiter) -> _Batch:
        """Return a new batch. Its leader fills it later, with the callers that wait by then."""
        batch = _Batch(leader)
        self._running.append(batch)
        return batch

    def _may_start(self) -> bool:
        if len(self._running) < MAX_CONCURRENT_BATCHES:
            return True
        timed_out_before = time.monotonic() - LEADER_TIMEOUT_SECONDS
        return sum(each.began > timed_out_before for each in self._running) < MAX_CONCURRENT_BATCHES


class _Batch:
    """A leader and its followers, whose jobs are inserted in one statement."""

    __slots__ = ("began", "filled", "waiters")

    def __init__(self, leader: _Waiter) -> None:
        self.began = time.monotonic()
        self.waiters: list[_Waiter] = [leader]
        self.filled: SimpleQueue[None] = SimpleQueue()  # ends the leader's linger


class _Waiter:
    """A caller and its job. ``replies`` receives the answer, or a batch to lead."""

    __slots__ = ("is_finished", "is_repeat", "job", "replies")

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.replies: SimpleQueue[Answer | Exception | _Batch] = SimpleQueue()
        self.is_finished = self.is_repeat = False


_new_object: Final = object.__new__
_NO_WAITERS: Final[list[_Waiter]] = []
_NO_ANSWER: Final = (
    f"the group-commit leader that inserts this job did not answer within {GIVE_UP_SECONDS:g} s; "
    "the job may or may not be stored"
)
