"""What goes out in one statement, and what becomes of each job in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from taskharbor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from taskharbor.core.answers import Enqueued
    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob

    Answer = Enqueued | IdempotencyConflict

MAX_BATCH_JOBS: Final = 500
"""Jobs of one statement."""
MAX_BATCH_BYTES: Final = 1_048_576
"""Payload of one statement, or one job: many large ones together would not be stored before the deadline."""


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


def insert_batch(store: InsertCall, jobs: list[NewJob], *, repeat: bool = False) -> list[Answer | Exception]:
    """Store *jobs* in one statement, and say of each what became of it.

    A store that is out of reach is so for all of them. After any other error each is tried
    alone, so that nobody fails for what is wrong with somebody else's job.
    """
    try:
        return [*store(jobs, repeat=repeat)]
    except StoreUnavailable as error:
        return _for_each(error, jobs)
    except Exception as error:  # noqa: BLE001  whatever it was, it is told to those whose jobs were sent
        return [error] if len(jobs) == 1 else _one_by_one(store, jobs)


def _one_by_one(store: InsertCall, jobs: Sequence[NewJob]) -> list[Answer | Exception]:
    answers: list[Answer | Exception] = []
    for place, job in enumerate(jobs):
        # A repeat: the error may have come after the commit.
        [answer] = insert_batch(store, [job], repeat=True)
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
