"""The backend for Django's tasks: what is stored, when, and what its results say."""

from __future__ import annotations

import asyncio
import sys
import warnings
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test import override_settings

from taskharbor.core.request import JobRequest
from taskharbor.core.states import Status
from taskharbor.integrations.django import harbor_of
from taskharbor.integrations.django.tasks_api import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from taskharbor.unjoined import UnjoinedTransaction
from tests.support.django_project import BACKEND, work  # isort: split  # it configures Django
from tests.support.django_site import tasks
from tests.support.django_site.models import Order
from tests.support.django_site.tasks import RAN, count_attempts, count_orders, limited, resize, ship

if TYPE_CHECKING:
    from pathlib import Path


class Regret(Exception):
    """Rolls back a transaction."""


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


@pytest.mark.usefixtures("database")
def test_a_task_is_stored_with_the_order_when_the_transaction_commits() -> None:
    with transaction.atomic():
        Order.objects.create(email="ada@example.org")
        result = ship.enqueue(1)
        with pytest.raises(TaskResultDoesNotExist):
            ship.get_result(result.id)

    assert ship.get_result(result.id).status == TaskResultStatus.READY
    assert Order.objects.count() == 1


@pytest.mark.usefixtures("database")
def test_a_rollback_removes_the_task_and_the_order() -> None:
    with suppress(Regret), transaction.atomic():
        Order.objects.create(email="ada@example.org")
        result = ship.enqueue(1)
        raise Regret

    with pytest.raises(TaskResultDoesNotExist):
        ship.get_result(result.id)
    assert Order.objects.count() == 0


@pytest.mark.usefixtures("database")
def test_an_inner_rollback_removes_its_own_tasks_only() -> None:
    with transaction.atomic():
        kept = ship.enqueue(1)
        with suppress(Regret), transaction.atomic():
            lost = ship.enqueue(2)
            raise Regret

    assert ship.get_result(kept.id).args == [1]
    with pytest.raises(TaskResultDoesNotExist):
        ship.get_result(lost.id)


@pytest.mark.usefixtures("database")
def test_a_task_outside_of_a_transaction_is_stored_at_once() -> None:
    result = ship.enqueue(1, fast=True)

    assert connection.get_autocommit()
    found = ship.get_result(result.id)
    assert (found.args, found.kwargs, found.backend) == ([1], {"fast": True}, "default")
    assert found == result


@pytest.mark.usefixtures("database")
def test_a_task_runs_and_its_result_has_the_return_value() -> None:
    result = ship.enqueue(7, fast=True)

    work()

    assert RAN == [("ship", 7)]
    assert refreshed(result).return_value == {"order": 7, "fast": True}
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.SUCCESSFUL, 1, [])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at


@pytest.mark.usefixtures("database")
def test_a_coroutine_enqueues_in_the_transaction_and_runs_on_the_event_loop() -> None:
    Order.objects.create(email="ada@example.org")

    async def enqueue() -> Any:
        result = await count_orders.aenqueue()
        assert (await count_orders.aget_result(result.id)).status == TaskResultStatus.READY
        return result

    result = asyncio.run(enqueue())
    work()

    assert refreshed(result).return_value == 1


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.PENDING, "READY"),
        (Status.ENQUEUED, "READY"),
        (Status.FAILED, "READY"),
        (Status.PROCESSING, "RUNNING"),
        (Status.SUCCEEDED, "SUCCESSFUL"),
        (Status.DEAD, "FAILED"),
        (Status.CANCELED, "FAILED"),
    ],
)
def test_each_status_of_a_job_is_one_of_django(status: Status, expected: str) -> None:
    from taskharbor.integrations.django.results import STATUSES  # noqa: PLC0415  beside its only use

    assert STATUSES[status].value == expected
    assert {*STATUSES} == {*Status}


@pytest.mark.usefixtures("database")
def test_an_error_is_recorded_for_each_attempt_and_the_last_may_succeed() -> None:
    result = count_attempts.enqueue(2)

    work()

    assert [("count_attempts", attempt) for attempt in (1, 2, 3)] == RAN
    assert (refreshed(result).status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
    assert "attempt 2" in result.errors[1].traceback
    assert all(result.worker_ids)


@pytest.mark.usefixtures("database")
def test_a_task_that_fails_for_good_is_failed_with_its_errors() -> None:
    result = limited.enqueue()

    work()

    assert (refreshed(result).status, result.attempts) == (TaskResultStatus.FAILED, 2)
    assert [error.exception_class for error in result.errors] == [LookupError, LookupError]
    assert result.is_finished
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


@pytest.mark.usefixtures("sqlite")
def test_a_canceled_task_is_failed_with_an_error_of_its_own() -> None:
    from taskharbor.integrations.django import Canceled  # noqa: PLC0415  beside its only use

    result = ship.enqueue(1)
    job_id = harbor_of().driver.inspector.find(_any_job(), limit=1).jobs[0].id

    harbor_of().handle(job_id).cancel()

    assert refreshed(result).status == TaskResultStatus.FAILED
    assert [error.exception_class for error in result.errors] == [Canceled]


@pytest.mark.usefixtures("sqlite")
def test_options_of_the_decorator_and_of_using_are_stored_with_the_job() -> None:
    limited.enqueue()
    ship.using(queue_name="bulk", max_attempts=3, timeout=60, priority=-100).enqueue(1)

    second, first = harbor_of().driver.inspector.find(_any_job(), limit=2).jobs
    assert (first.queue, first.max_attempts, first.timeout, first.priority) == ("bulk", 2, timedelta(seconds=30), -5)
    assert (second.queue, second.max_attempts, second.timeout, second.priority) == (
        "bulk",
        3,
        timedelta(minutes=1),
        100,
    )


@pytest.mark.usefixtures("database")
def test_tasks_run_in_the_order_of_their_priority() -> None:
    for priority in (0, -100, 100, 1, -1, 99):
        ship.using(priority=priority).enqueue(priority)

    harbor_of().worker(queues=["default"], concurrency=1, prefetch=0).drain()

    assert [order for _, order in RAN] == [100, 99, 1, 0, -1, -100]


@pytest.mark.usefixtures("sqlite")
def test_a_worker_serves_the_queues_of_the_settings() -> None:
    result = ship.using(queue_name="native").enqueue(1)

    harbor_of().worker().drain()

    assert {"bulk", "default", "native"} <= {*harbor_of().queues}
    assert refreshed(result).status == TaskResultStatus.SUCCESSFUL


@pytest.mark.usefixtures("database")
def test_run_after_defers_a_task() -> None:
    later = datetime.now(UTC) + timedelta(days=1)

    result = ship.using(run_after=later).enqueue(1)
    work()

    assert RAN == []
    assert refreshed(result).status == TaskResultStatus.READY
    assert ship.get_result(result.id).task.run_after == later


@pytest.mark.usefixtures("sqlite")
def test_a_key_stores_one_job_and_returns_the_result_of_the_first() -> None:
    first = ship.using(idempotency_key="order 1").enqueue(1)

    second = ship.using(idempotency_key="order 1").enqueue(1)

    assert second.id == first.id
    assert len(harbor_of().driver.inspector.find(_any_job(), limit=9).jobs) == 1


@pytest.mark.usefixtures("sqlite")
def test_arguments_that_are_not_json_are_refused_and_nothing_is_stored() -> None:
    with pytest.raises(TypeError):
        ship.enqueue(object())

    assert not harbor_of().driver.inspector.find(_any_job(), limit=1).jobs


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize(
    "options", [{"queue_name": "unknown"}, {"priority": 101}, {"max_attempts": 0}, {"timeout": timedelta(days=-1)}]
)
def test_an_invalid_option_is_an_invalid_task(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        ship.using(**options)


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("wrong", ["no id", str(uuid4())])
def test_a_result_that_does_not_exist_is_reported_as_django_does(wrong: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        ship.get_result(wrong)


@pytest.mark.usefixtures("sqlite")
def test_a_job_of_another_kind_is_no_result() -> None:
    with transaction.atomic():
        native = resize.using(connection=connection).enqueue("nut.png")

    with pytest.raises(TaskResultDoesNotExist):
        ship.get_result(str(native.id))


@pytest.mark.usefixtures("sqlite")
def test_the_result_of_a_removed_function_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ship.enqueue(1)
    monkeypatch.delattr(tasks, "ship")

    found = task_backends["default"].get_result(result.id)

    assert (found.args, found.task.name, found.task.module_path) == ([1], "ship", f"{tasks.__name__}.ship")
    with pytest.raises(Exception, match="does not exist any more"):
        found.task.call(1)


@pytest.mark.usefixtures("sqlite")
@pytest.mark.parametrize("is_of_workers", [False, True])
def test_a_result_imports_no_module_that_workers_do_not_import(
    is_of_workers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gadget.py").write_text("print('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    stored = {"args": [1], "kwargs": {}}
    request = JobRequest(type="gadget.fire", payload=stored, metadata={"django_backend": "default"})
    job_id = harbor_of().client.enqueue(request).id
    options = {"IMPORTS": ["gadget"] if is_of_workers else []}

    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        found = task_backends["default"].get_result(str(job_id))

    assert (found.args, found.task.module_path) == ([1], "gadget.fire")
    assert (sys.modules.pop("gadget", None) is not None) is is_of_workers


@pytest.mark.usefixtures("sqlite")
def test_the_signal_of_an_enqueue_has_the_result() -> None:
    seen: list[Any] = []

    def receive(sender: type, task_result: Any, **_: Any) -> None:
        seen.append((sender, task_result.id))

    task_enqueued.connect(receive)
    try:
        result = ship.enqueue(1)
    finally:
        task_enqueued.disconnect(receive)

    assert seen == [(type(task_backends["default"]), result.id)]


@pytest.mark.usefixtures("database")
def test_native_tasks_join_the_transaction_and_run_in_the_same_worker() -> None:
    with transaction.atomic():
        kept = resize.using(connection=connection).enqueue("nut.png")
    with suppress(Regret), transaction.atomic():
        lost = resize.using(connection=connection).enqueue("lost.png")
        raise Regret

    work()

    assert kept.result(timeout=10) == "nut.png-64"
    assert lost.id not in harbor_of().driver.inspector.get([lost.id])


def test_the_backend_supports_all_optional_parts_of_the_contract() -> None:
    backend = task_backends["default"]

    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


@pytest.mark.usefixtures("sqlite")
def test_times_are_naive_without_use_tz() -> None:
    with override_settings(USE_TZ=False):
        result = ship.enqueue(1)

        assert ship.get_result(result.id).enqueued_at.tzinfo is None


def _any_job() -> Any:
    from taskharbor.core.results import JobFilter  # noqa: PLC0415  beside its only use

    return JobFilter()


@pytest.mark.usefixtures("sqlite")
def test_a_native_enqueue_beside_atomic_is_reported() -> None:
    with harbor_of().testing():
        with pytest.warns(UnjoinedTransaction, match=r"using\(connection=connection\)"), transaction.atomic():
            resize.enqueue("nut.png")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resize.enqueue("nut.png")
            with transaction.atomic():
                ship.enqueue(1)
                resize.using(connection=connection).enqueue("nut.png")
