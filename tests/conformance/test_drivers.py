"""The contract, held by every driver."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from taskharbor import MemoryDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance import *
from taskharbor.testing.conformance import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Insert


def memory() -> Subject:
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)

    def spend(job_id: JobId) -> None:
        job = driver.inspector.get([job_id])[job_id]
        with driver._tables.statement() as now:  # noqa: SLF001  a raw write, as the kit asks for
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


@pytest.fixture(params=[memory])
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param()
    return made
