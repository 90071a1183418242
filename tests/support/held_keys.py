"""A PostgreSQL store in which another session holds an idempotency key."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg

from taskharbor import Client, JobRequest
from taskharbor.drivers.postgres import PostgresDriver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor import Enqueued
    from taskharbor.core.errors import IdempotencyConflict
    from taskharbor.core.model import NewJob

HELD: Final = "held"
WAITERS: Final = 6
"""More than there are threads for keyed jobs or for batches, or connections of `CountingDriver`."""


class CountingDriver(PostgresDriver):
    """Counts how many inserts with the held key are in the store at once."""

    def __init__(self, url: str) -> None:
        # The deadline is long: a waiter must not fail before the test lets the key go.
        super().__init__(url, size=4, deadline=timedelta(seconds=60))
        self.is_waiting = threading.Event()
        self.at_once = self.most_at_once = self.inserts = 0
        self._counting = threading.Lock()

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        step = any(job.idempotency_key == HELD for job in jobs)
        with self._counting:
            self.inserts += step
            self.at_once += step
            self.most_at_once = max(self.most_at_once, self.at_once)
        if step:
            self.is_waiting.set()
        try:
            return super().insert(jobs, repeat=repeat)
        finally:
            with self._counting:
                self.at_once -= step


@contextmanager
def held_key(driver: PostgresDriver, url: str) -> Iterator[psycopg.Connection]:
    """Hold the key in an open transaction until that ends, or the block."""
    with psycopg.connect(url) as db:
        Client(driver.join(db)).enqueue(request(idempotency_key=HELD))
        yield db
        db.rollback()


def request(**fields: Any) -> JobRequest:
    return JobRequest(**{"type": "greet"} | fields)
