"""Rows of operations and jobs that another session has locked."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from taskharbor import PostgresDriver, Status
from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.core.ids import new_token
from taskharbor.core.operations import NewOperation, OperationId, OperationKind, OperationState, OperationStep
from taskharbor.testing.conformance.subject import new_job
from tests.support.postgres import PREVIOUS, emptied, emptied_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.core.operations import Operation

NOW: Final = timedelta(0)


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def driver(url: str) -> Iterator[PostgresDriver]:
    driver = PostgresDriver(url, deadline=timedelta(seconds=2))
    yield driver
    driver.close()


def cancel(driver: PostgresDriver, *job_ids: JobId) -> Operation:
    new = NewOperation(id=OperationId(new_token()), kind=OperationKind.CANCEL, by="ops", job_ids=job_ids)
    driver.operations.add([new], starts_in=NOW)
    return driver.operations.get([new.id])[new.id]


def perform(driver: PostgresDriver, operation: Operation) -> Operation | None:
    step = OperationStep(operation=operation, job_ids=operation.job_ids, locked_pause=NOW)
    performed = driver.operations.perform(step)
    return None if performed is None else performed.operation


def insert(driver: PostgresDriver) -> JobId:
    [answer] = driver.insert([new_job(created_at=driver.inspector.now())])
    assert not isinstance(answer, Exception)
    return answer.id


def status(driver: PostgresDriver, job_id: JobId) -> Status:
    return driver.inspector.get([job_id])[job_id].status


def test_a_job_locked_by_another_session_is_changed_when_it_is_free(driver: PostgresDriver, url: str) -> None:
    locked, free = insert(driver), insert(driver)
    operation = cancel(driver, locked, free)

    with psycopg.connect(url) as other:
        other.execute("SELECT FROM th_jobs WHERE id = %s FOR UPDATE", [locked])
        first = perform(driver, operation)
        assert first is not None
        blocked = perform(driver, first)
    assert blocked is not None
    last = perform(driver, blocked)

    assert last is not None
    assert (first.done, first.job_ids, first.state) == (1, (locked,), OperationState.RUNNING)
    assert (blocked.done, blocked.job_ids) == (1, (locked,))
    assert (last.done, last.refused, last.state) == (2, {}, OperationState.DONE)
    assert [status(driver, job_id) for job_id in (locked, free)] == [Status.CANCELED] * 2


def test_a_step_that_another_session_performs_is_left_to_it(driver: PostgresDriver, url: str) -> None:
    job_id = insert(driver)
    operation = cancel(driver, job_id)

    with psycopg.connect(url) as other:
        other.execute("SELECT FROM th_operations WHERE id = %s FOR UPDATE", [operation.id])
        assert perform(driver, operation) is None
    assert status(driver, job_id) is Status.PENDING
    assert perform(driver, operation) is not None


def test_without_its_migration_operations_are_off() -> None:
    driver = PostgresDriver(emptied_at(PREVIOUS))
    try:
        operations = driver.operations
        unknown = OperationId(new_token())
        assert (operations.recent(limit=1), operations.unfinished(limit=1), operations.get([unknown])) == ([], [], {})
        assert operations.prune(older_than=NOW, limit=1) == 0
        with pytest.raises(SchemaOutOfDate, match="taskharbor migrate up"):
            cancel(driver, insert(driver))
        with pytest.raises(SchemaOutOfDate, match="taskharbor migrate up"):
            operations.stop([unknown], by="ops")
    finally:
        driver.close()
