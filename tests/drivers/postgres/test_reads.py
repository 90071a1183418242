"""Bounded reads, such as those of the API, have separate connections and a separate deadline."""

from __future__ import annotations

from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres import driver as module
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT: Final = timedelta(seconds=1)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresDriver]:
    monkeypatch.setattr(module, "READ_DEADLINE", SHORT)
    with closing(PostgresDriver(emptied(), size=1)) as driver:
        yield driver


def test_a_read_that_exceeds_its_deadline_is_ended_by_the_server(driver: PostgresDriver) -> None:
    pool = driver._read_pool  # noqa: SLF001  the pool of the bounded inspector

    with pytest.raises(StoreUnavailable, match="longer than the deadline"):
        pool.fetch("SELECT pg_sleep(20)")

    assert driver._connections.fetch("SELECT pg_sleep(1.5)") == [(b"",)]  # noqa: SLF001  the driver's own limit is longer


def test_the_limit_of_reads_is_two_seconds_and_never_more_than_the_drivers() -> None:
    for deadline, limit in ((timedelta(seconds=5), timedelta(seconds=2)), (SHORT, SHORT)):
        with closing(PostgresDriver("postgresql://nowhere/x", deadline=deadline)) as driver:
            assert driver._read_pool.address.deadline == limit  # noqa: SLF001  the statement timeout follows from it


def test_reads_take_no_connection_from_the_driver(driver: PostgresDriver) -> None:
    with ExitStack() as held:
        for _ in range(module.MAX_READ_CONNECTIONS):
            held.enter_context(driver._read_pool.connection())  # noqa: SLF001  as slow reads would hold them

        assert driver.inspector.queues() == []
        with pytest.raises(StoreUnavailable, match="are in use; raise its size"):
            driver.bounded_inspector.queues()


def test_the_driver_takes_no_connection_from_reads(driver: PostgresDriver) -> None:
    with driver._connections.connection():  # noqa: SLF001  its only one
        assert driver.bounded_inspector.queues() == []


def test_bounded_reads_are_counted_and_fail_after_the_driver_is_closed(driver: PostgresDriver) -> None:
    driver.inspector.now()
    before = driver.statements
    driver.bounded_inspector.now()

    assert driver.statements == before + 1
    driver.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        driver.bounded_inspector.now()
