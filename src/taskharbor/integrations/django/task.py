"""The task class of the backend: a Django task with TaskHarbor's options."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from taskharbor.integrations.django.tasks_api import Task

if TYPE_CHECKING:
    from taskharbor.core.durations import Duration
    from taskharbor.core.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask(Task):  # type: ignore[misc]  # Django has no annotations
    """A Django task. ``@task(max_attempts=3)`` sets its options; with Django 6.0, use ``using(max_attempts=3)``.

    - *max_attempts*: how many attempts a job has; by default that of the harbor.
    - *timeout*: how long one attempt may run; by default there is no limit.
    - *retry*: after which delays a failed attempt is repeated. Workers use that of the decorator.
    - *idempotency_key*: a second enqueue with the same key in the same queue stores no second job. Set it by `using`.
    """

    max_attempts: int | None = None
    timeout: Duration | None = None
    retry: RetryPolicy | None = None
    idempotency_key: str | None = None

    def using(self, **options: Any) -> Self:
        """Return the task with other options: those of Django, *max_attempts*, *timeout* and *idempotency_key*."""
        return replace(self, **{name: value for name, value in options.items() if value is not None})


def task_without_checks(**values: Any) -> HarborTask:
    """Return a task as it was when its job was stored. It may not be valid any more: its queue may be removed."""
    task = object.__new__(HarborTask)
    for field in fields(HarborTask):
        object.__setattr__(task, field.name, values.get(field.name, field.default))
    return task
