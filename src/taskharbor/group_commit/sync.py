"""Single jobs of many threads, in one statement."""

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
"""Jobs of one statement."""
MAX_BATCH_BYTES: Final = 1_048_576
"""Payload of one statement, or one job: many large ones together would not be stored before the deadline."""
MAX_CONCURRENT_BATCHES: Final = 1
"""Batches under way. Two of half the size each were measured, and are slower."""
MAX_LINGER_SECONDS: Final = (
    0.001  # seconds that a leader waits for more, if half the time of the last insert is not less
)
LEADER_TIMEOUT_SECONDS: Final = 1.0  # after it, a batch delays only its own callers
GIVE_UP_SECONDS: Final = 120.0  # seconds


class InsertCall(Protocol):
    """Stores jobs, as `taskharbor.drivers.base.Driver.insert` does."""

    def __call__(self, jobs: list[NewJob], *, repeat: bool = False) -> list[Answer]:
        """Return one answer for each of *jobs*, once they are committed."""


class PendingInsert(Protocol):
    """Somebody who waits for a job to be stored."""

    @property
    def job(self) -> NewJob:
        """What is to be stored."""


T = TypeVar("T", bound=PendingInsert)


def fill_batch(waiting: deque[T], batch: list[T]) -> None:
    """Move those who wait into *batch*, first come first, while it has room."""
    size = sum(len(each.job.payload) for each in batch)
    while waiting and len(batch) < MAX_BATCH_JOBS:
        size += len(waiting[0].job.payload)
        if batch and size > MAX_BATCH_BYTES:
            return
        batch.append(waiting.popleft())


def insert_or_repeat(insert: InsertCall, jobs: list[NewJob], *, repeat: bool = False) -> list[Answer]:
    """Insert *jobs*, and again if the reply was lost: under the same ids, so that no job is stored twice.

    A store that is known to be unavailable is not asked again: that call would fail as well.
    """
    try:
        return insert(jobs, repeat=repeat)
    except StoreUnavailable as error:
        if error.retry_in is not None:
            raise
        return insert(jobs, repeat=True)


def insert_batch(insert: InsertCall, jobs: list[NewJob], *, repeat: bool = False) -> list[Answer | Exception]:
    """Insert *jobs* in one statement, and return an answer or an error for each.

    `StoreUnavailable` is the answer for all of them. After any other error each job is inserted
    by itself, so that no caller gets an error that another caller's job has caused.
    """
    try:
        return [*insert_or_repeat(insert, jobs, repeat=repeat)]
    except StoreUnavailable as error:
        return _for_each(error, jobs)
    except Exception as error:  # noqa: BLE001  whatever it was, it is told to those whose jobs were sent
        return [error] if len(jobs) == 1 else _one_by_one(insert, jobs)


def _one_by_one(insert: InsertCall, jobs: Sequence[NewJob]) -> list[Answer | Exception]:
    answers: list[Answer | Exception] = []
    for place, job in enumerate(jobs):
        # A repeat: the error may have come after the commit.
        [answer] = insert_batch(insert, [job], repeat=True)
        if isinstance(answer, StoreUnavailable):
            return answers + _for_each(answer, jobs[place:])  # to try each would take a deadline each
        answers.append(answer)
    return answers


def _for_each(error: StoreUnavailable, jobs: Sequence[NewJob]) -> list[Answer | Exception]:
    """Return an error for each caller: one object raised in many threads would mix up their tracebacks."""
    return [error, *(_caused_by(error) for _ in jobs[1:])]


def _caused_by(error: StoreUnavailable) -> StoreUnavailable:
    own = StoreUnavailable(error.reason, retry_in=error.retry_in)
    own.__cause__ = error
    return own


class GroupCommit:
    """Where threads wait for their jobs to be stored.

    Who comes while nothing is under way leads: it inserts at once, in its own thread, so
    that a lone caller pays next to nothing. Who comes meanwhile waits, and when the insert
    is over one of those leads, and inserts the jobs of all of them. There is no thread but
    the callers' own, and each returns only when its own job is committed.

    Why every wait ends: a leader is in the driver, which waits for nothing without a
    deadline, and however it comes out of it, by Ctrl-C too, it answers its batch or gives it
    back, and appoints the next leader. But a signal handler that enqueues may stand on top of
    the very leader it waits for, and Ctrl-C may strike while the last one is being dealt with.
    So a batch that has been under way for longer than `LEADER_TIMEOUT_SECONDS` counts no more: those behind
    it look up, and one of them leads. Who is in such a batch itself, and hears nothing for
    `GIVE_UP_SECONDS`, gets an error that says that the outcome is unknown.
    """

    def __init__(self, insert: InsertCall) -> None:
        self.pid: Final = os.getpid()
        """Whose it is: on the other side of a fork nobody would ever lead it on."""
        self._insert = insert
        self._lock = threading.RLock()  # a signal handler that enqueues must not wait for the code it interrupted
        self._waiting: deque[_Waiter] = deque()
        self._under_way: list[_Batch] = []
        self._gathering: _Batch | None = None
        self._expected, self._pause = 1, 0.0

    def insert(self, job: NewJob) -> Answer:
        """Store *job*, maybe together with others, and return when it is committed."""
        with self._lock:
            if self._under_way or self._waiting or self._expected > 1:
                alone = None
            else:  # a lone caller allocates no waiter
                alone = _bare(_Batch)
                alone.began, alone.tickets = time.monotonic(), _NO_WAITERS
                self._under_way.append(alone)
        if alone is None:
            return self._insert_together(job)
        try:
            return insert_or_repeat(self._insert, [job])[0]
        finally:
            self._expected = 1 + len(self._waiting)
            self._pause = min(MAX_LINGER_SECONDS, (time.monotonic() - alone.began) / 2)
            with self._lock:
                self._under_way.remove(alone)
                has_waiters = bool(self._waiting)
            if has_waiters:
                self._leave(alone)

    def _insert_together(self, job: NewJob) -> Answer:
        ticket = _Waiter(job)
        try:
            answer = self._answer(ticket)
        except BaseException:
            self._withdraw(ticket)
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, ticket: _Waiter) -> Answer | Exception:
        batch = self._enter(ticket)
        give_up_at = time.monotonic() + GIVE_UP_SECONDS
        while True:
            if batch is not None:
                self._send(batch)
            try:
                mail = ticket.mail.get(timeout=LEADER_TIMEOUT_SECONDS)
            except Empty:
                if time.monotonic() > give_up_at:
                    raise StoreUnavailable(_NO_ANSWER) from None
                batch = self._lead(ticket)
            else:
                if not isinstance(mail, _Batch):
                    return mail
                batch = mail

    def _enter(self, ticket: _Waiter) -> _Batch | None:
        """Return a batch to lead, or None: wait for mail."""
        with self._lock:
            if self._has_room():
                return self._begin(ticket)
            self._waiting.append(ticket)
            if self._gathering is not None and len(self._waiting) + 1 >= self._expected:
                self._gathering.enough.put(None)
            return None

    def _lead(self, ticket: _Waiter) -> _Batch | None:
        """Return a batch to lead, if whoever was to take this one along does not come back."""
        with self._lock:
            if ticket not in self._waiting or not self._has_room():
                return None
            self._waiting.remove(ticket)
            return self._begin(ticket)

    def _send(self, batch: _Batch) -> None:
        if self._expected > 1:
            self._linger(batch)
        if self._waiting:
            with self._lock:
                fill_batch(self._waiting, batch.tickets)
        jobs = [each.job for each in batch.tickets]
        is_repeat = any(each.is_repeat for each in batch.tickets)
        start = time.monotonic()
        for ticket, answer in zip(batch.tickets, insert_batch(self._insert, jobs, repeat=is_repeat), strict=True):
            ticket.mail.put(answer)
            ticket.is_over = True
        self._expected = len(jobs) + len(self._waiting)
        self._pause = min(MAX_LINGER_SECONDS, (time.monotonic() - start) / 2)
        self._leave(batch)

    def _linger(self, batch: _Batch) -> None:
        """Wait a moment for those who were answered just now: many of them have the next job at hand.

        Otherwise the first to come back would go alone, or callers fall into halves that take
        turns, and each commit would carry few of them. Who waits in vain has a smaller
        batch, and the next leader waits for fewer; a lone caller waits for nobody.
        """
        with self._lock:
            if len(self._waiting) + 1 >= self._expected:
                return
            self._gathering = batch
        with suppress(Empty):
            batch.enough.get(timeout=self._pause)
        self._gathering = None

    def _withdraw(self, ticket: _Waiter) -> None:
        """Go without an answer; if that leaves a batch without its leader, the others of it wait again."""
        with self._lock:
            ticket.is_over = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            for batch in [each for each in self._under_way if each.tickets and each.tickets[0] is ticket]:
                others = [each for each in batch.tickets if not each.is_over]
                for other in others:
                    other.is_repeat = True  # its job may be stored already
                self._waiting.extendleft(reversed(others))
                self._leave(batch)

    def _leave(self, batch: _Batch) -> None:
        """End a batch, and appoint who leads the next."""
        with self._lock:
            if batch in self._under_way:
                self._under_way.remove(batch)
            if self._waiting and self._has_room():
                leader = self._waiting.popleft()
                leader.mail.put(self._begin(leader))

    def _begin(self, leader: _Waiter) -> _Batch:
        """Make a batch; it is filled when its leader comes to it, with whoever waits then."""
        batch = _Batch(leader)
        self._under_way.append(batch)
        return batch

    def _has_room(self) -> bool:
        if len(self._under_way) < MAX_CONCURRENT_BATCHES:
            return True
        began_lately = time.monotonic() - LEADER_TIMEOUT_SECONDS
        return sum(each.began > began_lately for each in self._under_way) < MAX_CONCURRENT_BATCHES


class _Batch:
    __slots__ = ("began", "enough", "tickets")

    def __init__(self, leader: _Waiter) -> None:
        self.began = time.monotonic()
        self.tickets: list[_Waiter] = [leader]
        self.enough: SimpleQueue[None] = SimpleQueue()  # tells a leader that lingers to go on


class _Waiter:
    """A caller: what it wants stored, and where it hears of that, or that it is to lead."""

    __slots__ = ("is_over", "is_repeat", "job", "mail")

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.mail: SimpleQueue[Answer | Exception | _Batch] = SimpleQueue()
        self.is_over = self.is_repeat = False


_bare: Final = object.__new__
_NO_WAITERS: Final[list[_Waiter]] = []
_NO_ANSWER: Final = (
    f"another thread sent this job together with its own {GIVE_UP_SECONDS:g} s ago, and was not heard of since"
)
