"""Running Django's tasks in a worker: connections and signals."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from taskharbor.integrations.django import harbor_of, runner
from taskharbor.integrations.django.tasks_api import TaskResultStatus, task_finished, task_started
from tests.support.django_project import work  # isort: split  # it configures Django
from tests.support.django_site.tasks import RAN, aquery, count_attempts, limited, query, resize, return_an_object, ship

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def signals() -> Iterator[list[Any]]:
    """Collect the signals of started and finished tasks."""
    seen: list[Any] = []

    def started(task_result: Any, **_: Any) -> None:
        seen.append(("started", task_result.status.value, task_result.attempts))

    def finished(task_result: Any, **_: Any) -> None:
        seen.append(("finished", task_result.status.value, len(task_result.errors)))

    task_started.connect(started)
    task_finished.connect(finished)
    try:
        yield seen
    finally:
        task_started.disconnect(started)
        task_finished.disconnect(finished)


@pytest.mark.usefixtures("database")
def test_the_connection_of_a_job_is_closed_after_it() -> None:
    query.enqueue()

    work()

    [used] = RAN
    assert used is not None
    assert is_closed(used)


@pytest.mark.usefixtures("database")
def test_the_connection_of_an_async_job_is_closed_after_it() -> None:
    aquery.enqueue()

    work()

    [used] = RAN
    assert used is not None
    assert asyncio.run(sync_to_async(lambda: connection.connection)()) is None


@pytest.mark.usefixtures("database")
def test_an_unusable_connection_is_replaced_before_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    close = runner.close_connections

    def closing() -> None:
        begun.append("closed")
        close()

    monkeypatch.setattr("taskharbor.integrations.django.runner.close_connections", closing)
    monkeypatch.setattr("taskharbor.integrations.django.runner.reset_queries", lambda: begun.append("reset"))
    harbor = harbor_of()
    handle = resize.enqueue("nut.png")

    harbor.worker(queues=["native"], concurrency=1).drain()

    assert handle.result(timeout=10) == "nut.png-64"
    assert begun[:3] == ["reset", "closed", "closed"]


@pytest.mark.usefixtures("sqlite")
def test_signals_report_the_start_of_each_attempt_and_the_end_of_the_task() -> None:
    count_attempts.enqueue(1)

    with signals() as seen:
        work()

    assert seen == [("started", "RUNNING", 1), ("started", "RUNNING", 2), ("finished", "SUCCESSFUL", 1)]


@pytest.mark.usefixtures("sqlite")
def test_a_task_that_fails_for_good_sends_one_finished_signal() -> None:
    limited.enqueue()

    with signals() as seen:
        work()

    assert seen == [("started", "RUNNING", 1), ("started", "RUNNING", 2), ("finished", "FAILED", 2)]


@pytest.mark.usefixtures("sqlite")
def test_django_logs_the_exception_of_a_failed_task(caplog: pytest.LogCaptureFixture) -> None:
    limited.enqueue()

    work()

    [record] = [each for each in caplog.records if "FAILED" in each.getMessage() and each.name.startswith("django")]
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


@pytest.mark.usefixtures("sqlite")
def test_a_return_value_that_is_not_json_fails_without_a_second_attempt() -> None:
    result = return_an_object.enqueue()

    work()
    result.refresh()

    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert "cannot be stored" in result.errors[0].traceback


@pytest.mark.usefixtures("sqlite")
def test_a_finished_result_in_a_signal_has_the_return_value() -> None:
    values: list[Any] = []

    def finished(task_result: Any, **_: Any) -> None:
        values.append((task_result.return_value, task_result.finished_at is not None))

    task_finished.connect(finished)
    try:
        ship.enqueue(3)
        work()
    finally:
        task_finished.disconnect(finished)

    assert values == [({"order": 3, "fast": False}, True)]


def is_closed(raw: Any) -> bool:
    if hasattr(raw, "closed"):
        return bool(raw.closed)
    try:
        raw.execute("SELECT 1")
    except Exception as error:  # noqa: BLE001  sqlite3 refuses it in another thread, or since it is closed
        return "closed" in str(error)
    return False
