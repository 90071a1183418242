"""Helpers for tests with Django's ``TestCase`` and ``TransactionTestCase``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from taskharbor.core.states import Status
from taskharbor.integrations.django import runner
from taskharbor.integrations.django.results import BACKEND
from taskharbor.integrations.django.stores import harbor_of
from taskharbor.integrations.django.tasks_api import normalize_json, task_backends

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from taskharbor.core.model import Job
    from taskharbor.testing.harness import AttemptResult, Harness


def _run_with_queries_here(work: Coroutine[Any, Any, Any]) -> Any:
    """Run an async task so that its queries run in this thread, whose connection has the transaction of the test."""

    async def run() -> Any:
        return await work

    return async_to_sync(run)()


class HarborTestMixin:
    """Keeps the jobs of a test in memory. They run in `drain`, in the test's own thread and transaction.

    Write it before the test case: ``class OrderTest(HarborTestMixin, TestCase)``. A task that was enqueued in
    ``atomic()`` counts once that block has ended, although a ``TestCase`` never commits. ``harness`` is the
    `taskharbor.testing.Harness` of the backend: with it, a test can advance the clock, or let a worker crash.
    """

    task_backend = "default"
    harness: Harness

    def setUp(self) -> None:
        """Replace the store of the backend until the end of the test."""
        super().setUp()  # type: ignore[misc]  # of the test case
        self.harness = self.enterContext(harbor_of(self.task_backend).testing())  # type: ignore[attr-defined]  # as above
        self.harness.run_coroutine = _run_with_queries_here

    def enqueued(self, task: Any = None) -> list[Any]:
        """Return the results of the tasks that were enqueued, or of *task* only, oldest first."""
        return [self._result(job) for job in self._jobs(task)]

    def assert_enqueued(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return the newest result of this call of *task*, or fail. Without arguments, any call is meant."""
        calls = [(job.data["args"], job.data["kwargs"]) for job in self._jobs(task)]
        matching = self._matching(task, args, kwargs)
        assert matching, f"no such call of {task.module_path} was enqueued; its calls: {calls}"  # noqa: S101  it asserts
        return self._result(matching[-1])

    def refute_enqueued(self, task: Any, /, *args: Any, **kwargs: Any) -> None:
        """Fail if this call of *task*, or any without arguments, was enqueued."""
        matching = self._matching(task, args, kwargs)
        assert not matching, f"this call of {task.module_path} was enqueued, as {matching[-1].id}"  # noqa: S101  as above

    def drain(self) -> list[Any]:
        """Run all tasks that are due, and those that they enqueue. Return the result after each attempt."""
        attempts = [each for each in self.harness.drain() if BACKEND in each.job.metadata]
        for attempt in attempts:
            self._send_finished(attempt)
        return [self._result(attempt.job) for attempt in attempts]

    def _send_finished(self, attempt: AttemptResult) -> None:
        match attempt.status:
            case Status.SUCCEEDED:
                runner.send_success(attempt.job.id, self.harness.clock.now())
            case Status.DEAD | Status.CANCELED:
                runner.send_failure(attempt.job.id, attempt.job.type, None)
            case _:
                runner.drop_running(attempt.job.id)

    def _matching(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Job]:
        wanted = {"args": normalize_json(list(args)), "kwargs": normalize_json(kwargs)}
        return [job for job in self._jobs(task) if not (args or kwargs) or job.data == wanted]

    def _jobs(self, task: Any) -> list[Job]:
        jobs = [job for job in self.harness.enqueued() if job.metadata.get(BACKEND) == self.task_backend]
        for job in jobs:
            job.use_codec(self.harness.harbor.codec)
        return [job for job in jobs if task is None or job.type == task.module_path]

    def _result(self, job: Job) -> Any:
        return task_backends[self.task_backend].get_result(str(job.id))
