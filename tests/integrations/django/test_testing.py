"""The helpers for tests of a Django project."""

from __future__ import annotations

import unittest
from contextlib import suppress
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase

from taskharbor.integrations.django.tasks_api import TaskResultStatus, task_finished
from taskharbor.integrations.django.testing import HarborTestMixin
from tests.support import django_project  # isort: split  # noqa: F401  it configures Django
from tests.support.django_site.models import Order
from tests.support.django_site.tasks import RAN, count_attempts, count_orders, limited, ship


class Regret(Exception):
    """Rolls back a transaction."""


class Cases(HarborTestMixin):
    """What a project's tests may do, in both kinds of test cases."""

    def test_enqueued_tasks_run_in_drain(self) -> None:
        result = ship.enqueue(7)

        assert self.assert_enqueued(ship, 7).id == result.id
        self.refute_enqueued(ship, 8)
        assert RAN == []
        [ran] = self.drain()
        assert (ran.status, ran.return_value["order"]) == (TaskResultStatus.SUCCESSFUL, 7)
        result.refresh()
        assert result.is_finished

    def test_a_transaction_decides(self) -> None:
        with transaction.atomic():
            ship.enqueue(1)
            self.refute_enqueued(ship)
        with suppress(Regret), transaction.atomic():
            ship.enqueue(2)
            raise Regret

        assert [result.args for result in self.enqueued(ship)] == [[1]]

    def test_a_task_sees_the_rows_of_the_test(self) -> None:
        Order.objects.create(email="ada@example.org")
        result = count_orders.enqueue()

        self.drain()

        result.refresh()
        assert result.return_value == 1

    def test_a_failed_task_is_retried_when_the_clock_advances(self) -> None:
        count_attempts.enqueue(1)

        [first] = self.drain()
        self.harness.advance(days=1)
        [second] = self.drain()

        assert (first.status, second.status) == (TaskResultStatus.READY, TaskResultStatus.SUCCESSFUL)

    def test_signals_are_sent(self) -> None:
        seen: list[Any] = []

        def finished(task_result: Any, **_: Any) -> None:
            seen.append(task_result.status.value)

        task_finished.connect(finished)
        try:
            ship.enqueue(1)
            limited.enqueue()
            self.drain()
            self.harness.advance(days=1)
            self.drain()
        finally:
            task_finished.disconnect(finished)
        assert seen == ["SUCCESSFUL", "FAILED"]

    def tearDown(self) -> None:
        RAN.clear()


class InTestCase(Cases, TestCase):  # type: ignore[misc]  # Django has no annotations
    pass


class InTransactionTestCase(Cases, TransactionTestCase):  # type: ignore[misc]  # as above
    def _fixture_teardown(self) -> None:
        """Keep the tables of the shared database: the default empties all of them."""
        Order.objects.all().delete()


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("kind", [InTestCase, InTransactionTestCase])
def test_the_helpers_work_in_each_kind_of_test_case(kind: Any) -> None:
    result = unittest.TestResult()

    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)

    assert (result.testsRun, [text for _, text in [*result.failures, *result.errors]]) == (5, [])


del Cases, InTestCase, InTransactionTestCase  # only the test above runs them
