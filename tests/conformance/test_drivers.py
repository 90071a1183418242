"""The conformance kit, run against every driver."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from taskharbor import MemoryDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance import *
from taskharbor.testing.conformance import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Insert


def memory(make: Callable[..., MemoryDriver] = MemoryDriver) -> Subject:
    clock = ManualClock()
    driver = make(clock=clock)

    def spend(job_id: JobId) -> None:
        job = driver.inspector.get([job_id])[job_id]
        with driver._tables.statement() as now:  # noqa: SLF001  the kit needs a raw write
            driver._tables.put(replace(job, attempt_count=job.max_attempts), now=now)  # noqa: SLF001  as above

    @contextmanager
    def transaction() -> Iterator[Insert]:
        with driver.transaction():
            yield driver.insert

    return Subject(
        driver=driver,
        clock=clock,
        spend=spend,
        transaction=transaction,
        statements=lambda: driver.statements,
    )


@cache
def empty_file() -> bytes:
    """Return an empty database file. Created once: migrating a file for each case would take most of its time."""
    from taskharbor.drivers.sqlite import SqliteDriver  # noqa: PLC0415  as below

    with TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        SqliteDriver(file).close()
        return file.read_bytes()


def sqlite(folder: Path) -> Subject:
    from taskharbor.drivers.sqlite import SqliteDriver  # noqa: PLC0415  hundreds of runs with planted bugs do not need it

    clock = ManualClock()
    file = folder / "jobs.db"
    file.write_bytes(empty_file())
    driver = SqliteDriver(file, clock=clock, synchronous="NORMAL")

    def spend(job_id: JobId) -> None:
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE th_jobs SET attempt_count = max_attempts WHERE id = ?", (job_id.bytes,))

    @contextmanager
    def transaction() -> Iterator[Insert]:
        with closing(sqlite3.connect(file, timeout=30)) as db, db:
            yield driver.join(db).insert

    return Subject(
        driver=driver,
        clock=clock,
        spend=spend,
        transaction=transaction,
        statements=lambda: driver.statements,
    )


def postgres(url: str = "") -> Subject:
    import psycopg  # noqa: PLC0415  as above

    from taskharbor.drivers.postgres import PostgresDriver  # noqa: PLC0415  as above
    from tests.support.postgres import emptied  # noqa: PLC0415  as above

    clock = ManualClock()
    url = url or emptied()
    driver = PostgresDriver(url, clock=clock)

    def spend(job_id: JobId) -> None:
        with psycopg.connect(url) as db:
            db.execute("UPDATE th_jobs SET attempt_count = max_attempts WHERE id = %s", [job_id])

    @contextmanager
    def transaction() -> Iterator[Insert]:
        with psycopg.connect(url) as db:
            yield driver.join(db).insert

    return Subject(
        driver=driver,
        clock=clock,
        spend=spend,
        transaction=transaction,
        statements=lambda: driver.statements,
    )


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    makers = {"memory": memory, "sqlite": lambda: sqlite(tmp_path), "postgres": postgres}
    subject = makers[request.param]()
    yield subject
    subject.driver.close()
