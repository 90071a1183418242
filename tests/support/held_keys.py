"""A PostgreSQL driver and a session that holds an idempotency key in an open transaction."""

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
"""More than the threads for keyed jobs or for batches, or the connections of `CountingDriver`."""


class CountingDriver(PostgresDriver):
    """A driver that counts concurrent inserts with the held key."""

    def __init__(self, url: str) -> None:
        # The deadline is long: a waiter must not fail before the test releases the key.
        super().__init__(url, size=4, deadline=timedelta(seconds=60))
        self.is_waiting = threading.Event()
        self.at_once = self.most_at_once = self.inserts = 0
        self._counting = threading.Lock()

    def insert(self, jobs: Sequence[NewJob], *, repeat: bool = False) -> list[Enqueued | IdempotencyConflict]:
        has_key = any(job.idempotency_key == HELD for job in jobs)
        with self._counting:
            self.inserts += has_key
            self.at_once += has_key
            self.most_at_once = max(self.most_at_once, self.at_once)
        if has_key:
            self.is_waiting.set()
        try:
            return super().insert(jobs, repeat=repeat)
        finally:
            with self._counting:
                self.at_once -= has_key


@contextmanager
def held_key(driver: PostgresDriver, url: str) -> Iterator[psycopg.Connection]:
    """Hold the key in an open transaction until the transaction or the block ends."""
    with psycopg.connect(url) as db:
        Client(driver.join(db)).enqueue(request(idempotency_key=HELD))
        yield db
        db.rollback()


def request(**fields: Any) -> JobRequest:
    return JobRequest(**{"type": "greet"} | fields)
