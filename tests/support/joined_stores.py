"""A job store in the database of a shop, and the number of orders in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from taskharbor.core.ids import new_token
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from tests.support.postgres import emptied
from tests.support.shops import COUNT, ORDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from taskharbor.core.model import Claim, NewJob
    from taskharbor.core.states import Status


@dataclass(frozen=True, slots=True)
class Store:
    driver: Any  # either driver: both have the same join()
    url: str
    orders: Callable[[], int]

    def take(self, queue: str = "default") -> Claim:
        """Insert a job and reserve it."""
        self.driver.insert([new_job(queue=queue)])
        [claim] = self.driver.reserve(
            queue, token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=OVERDUE_AFTER
        )
        return claim  # type: ignore[no-any-return]

    def has(self, job: NewJob) -> bool:
        return job.id in self.driver.inspector.get([job.id])

    def status(self, claim: Claim) -> Status:
        return self.driver.inspector.get([claim.job.id])[claim.job.id].status  # type: ignore[no-any-return]


@contextmanager
def postgres_store() -> Iterator[Store]:
    url = emptied()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS orders")
        db.execute(ORDERS)

        def orders() -> int:
            [[count]] = db.execute(COUNT).fetchall()
            return int(count)

        with closing(PostgresDriver(url)) as driver:
            yield Store(driver, url, orders)
        db.execute("DROP TABLE orders")


@contextmanager
def sqlite_store(folder: Path) -> Iterator[Store]:
    file = folder / "shop.db"
    with closing(SqliteDriver(file, synchronous="NORMAL")) as driver, closing(sqlite3.connect(file)) as db:
        db.execute(ORDERS)

        def orders() -> int:
            [[count]] = db.execute(COUNT).fetchall()
            return int(count)

        yield Store(driver, f"sqlite:///{file}", orders)
