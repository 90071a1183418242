"""The backend for Django's tasks: each task that is enqueued becomes a job, in the transaction that is open."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone

from taskharbor.core.errors import InvalidRequest, UsageError
from taskharbor.core.ids import JobId
from taskharbor.core.request import JobRequest, validate
from taskharbor.drivers.connect import NotAUrl
from taskharbor.integrations.django.checks import check_backend
from taskharbor.integrations.django.results import BACKEND, RUN_AFTER, local, result_of
from taskharbor.integrations.django.runner import ENQUEUED
from taskharbor.integrations.django.stores import add_task, backend_options, follow_database, harbor_of
from taskharbor.integrations.django.task import HarborTask
from taskharbor.integrations.django.tasks_api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from taskharbor.harbor import Harbor

_IN_MEMORY: Final = (
    "the database {!r} is in memory, where no worker finds its jobs; in tests, use "
    "taskharbor.integrations.django.testing.HarborTestMixin, or set TEST['NAME'] of the database to a file"
)


class TaskHarborBackend(BaseTaskBackend):  # type: ignore[misc]  # Django has no annotations
    """Stores tasks as jobs through Django's own connection, so that ``atomic()`` decides about them.

    OPTIONS in TASKS: ``DATABASE`` is the alias of the database, by default "default"; ``IMPORTS`` names modules with
    tasks besides ``tasks`` of each app; ``HARBOR`` has arguments of `taskharbor.Harbor`: ``{"max_attempts": 5}``.
    """

    task_class = HarborTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = backend_options(alias)["DATABASE"]

    @property
    def harbor(self) -> Harbor:
        """The harbor of this backend, on the database that Django uses now."""
        harbor = harbor_of(self.alias)
        follow_database(harbor, self.database)
        return harbor

    def validate_task(self, task: Any) -> None:
        """Raise ``InvalidTask`` if *task* cannot be stored. A valid one can be run by workers from now on."""
        super().validate_task(task)
        try:
            validate(_request(task, [], {}))
        except (InvalidRequest, UsageError) as error:
            raise InvalidTask(str(error)) from error
        add_task(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Store the call as a job, and return its result. The job exists when the transaction is committed."""
        self.validate_task(task)
        result = _new_result(task, args, kwargs, self.alias)
        request = _request(task, result.args, result.kwargs)
        connection = connections[self.database]
        try:
            with nullcontext() if _is_atomic(connection) else transaction.atomic(using=self.database):
                enqueued = self.harbor.enqueue_request(request, connection)
        except NotAUrl as error:
            raise ImproperlyConfigured(_IN_MEMORY.format(self.database)) from error
        object.__setattr__(result, "id", str(enqueued.id))
        object.__setattr__(result, "enqueued_at", local(ENQUEUED.created_at))
        if enqueued.existed:
            return self.find_result(enqueued.id) or result
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a committed job. Raises ``TaskResultDoesNotExist``."""
        try:
            result = self.find_result(JobId(UUID(str(result_id))))
        except ValueError:
            result = None
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def find_result(self, job_id: JobId) -> Any:
        """Return the result of a job of this backend, or None."""
        harbor = self.harbor
        job = harbor.driver.inspector.get([job_id]).get(job_id)
        if job is None or job.metadata.get(BACKEND) != self.alias:
            return None
        return result_of(job, harbor.driver.inspector.attempts([job_id]), harbor)

    def check(self, **_: Any) -> Iterable[Any]:
        """Return what is wrong with the settings of this backend."""
        return check_backend(self)


def _new_result(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], alias: str) -> Any:
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=normalize_json(list(args)),
        kwargs=normalize_json(dict(kwargs)),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def _request(task: Any, args: list[Any], kwargs: dict[str, Any]) -> JobRequest:
    run_after = _aware(task.run_after)
    deferred = {} if run_after is None else {RUN_AFTER: run_after.isoformat()}
    return JobRequest(
        type=task.module_path,
        payload={"args": args, "kwargs": kwargs},
        queue=task.queue_name,
        scheduled_for=run_after,
        timeout=task.timeout,
        max_attempts=task.max_attempts,
        priority=-int(task.priority),  # Django runs the largest number first, and TaskHarbor the smallest
        idempotency_key=task.idempotency_key,
        metadata={BACKEND: task.backend, **deferred},
    )


def _aware(moment: datetime | None) -> datetime | None:
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment


def _is_atomic(connection: Any) -> bool:
    """Return whether the application has begun a transaction. The one of Django's ``TestCase`` does not count."""
    return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
