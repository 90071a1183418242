"""Jobs as Django's task results: status, errors, attempts and return value."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.utils import timezone

from taskharbor.core.durations import as_timedelta
from taskharbor.core.errors import PayloadNotDecodable
from taskharbor.core.model import AttemptOutcome, result_context
from taskharbor.core.states import Status
from taskharbor.integrations.django.stores import is_aware, task_at
from taskharbor.integrations.django.task import task_without_checks
from taskharbor.integrations.django.tasks_api import TaskError, TaskResult, TaskResultStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.durations import Duration
    from taskharbor.core.model import Attempt, Job
    from taskharbor.harbor import Harbor
    from taskharbor.integrations.django.task import HarborTask

BACKEND: Final = "django_backend"
"""The metadata entry with the alias of the backend, by which a job of a Django task is recognized."""
RUN_AFTER: Final = "django_run_after"
STATUSES: Final = {
    Status.PENDING: TaskResultStatus.READY,
    Status.ENQUEUED: TaskResultStatus.READY,
    Status.FAILED: TaskResultStatus.READY,  # it waits for its next attempt
    Status.PROCESSING: TaskResultStatus.RUNNING,
    Status.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    Status.DEAD: TaskResultStatus.FAILED,
    Status.CANCELED: TaskResultStatus.FAILED,
}
_COUNTED: Final = frozenset({AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST})
_ERRORS_OF_OURS: Final = "taskharbor.core.errors."


class Canceled(Exception):
    """The job of the task was canceled. It is the last of the errors of its result."""


class WorkerLost(Exception):
    """A worker ended, or lost its connection, during an attempt of the task."""


class TaskRemoved(Exception):
    """The function of a stored task does not exist any more."""

    def __str__(self) -> str:
        return f"the function {self.args[0]} does not exist any more"


def result_of(job: Job, attempts: Sequence[Attempt], harbor: Harbor) -> Any:
    """Return the task result of *job*. *attempts* are those that the store has recorded."""
    codec = harbor.codec
    job.use_codec(codec)
    counted = [each for each in attempts if each.outcome in _COUNTED]
    ids = [each.worker_id or "" for each in counted]
    if job.status in {Status.PROCESSING, Status.SUCCEEDED} and job.worker_id is not None:
        ids.append(job.worker_id)
    starts = [each.started_at for each in counted if each.started_at is not None]
    if job.processing_started_at is not None:
        starts.append(job.processing_started_at)
    args, kwargs = _arguments(job)
    result = TaskResult(
        task=stored_task(job, harbor.max_attempts),
        id=str(job.id),
        status=STATUSES[job.status],
        enqueued_at=local(job.created_at),
        started_at=local(min(starts, default=None)),
        finished_at=local(job.dead_at or job.completed_at) if job.status.is_final else None,
        last_attempted_at=local(max(starts, default=None)),
        args=args,
        kwargs=kwargs,
        backend=job.metadata[BACKEND],
        errors=_errors(job, attempts),
        worker_ids=ids,
    )
    if job.status is Status.SUCCEEDED and job.result is not None:
        set_value(result, "_return_value", codec.decode(job.result, context=result_context(job.id)))
    return result


def set_value(result: Any, name: str, value: object) -> None:
    """Set an attribute of a result, which is frozen, as Django's own backends do."""
    object.__setattr__(result, name, value)


def stored_task(job: Job, max_attempts: int) -> HarborTask:
    """Return the task of *job* with its stored options. *max_attempts* is the default of the harbor.

    Calling a task whose function was removed raises `TaskRemoved`.
    """
    found = task_at(job.type, job.metadata[BACKEND])
    function = getattr(found, "func", None)
    run_after = job.metadata.get(RUN_AFTER)
    return task_without_checks(
        func=function or _removed(job.type),
        priority=-job.priority,
        backend=job.metadata[BACKEND],
        queue_name=job.queue,
        run_after=None if run_after is None else local(datetime.fromisoformat(run_after)),
        takes_context=getattr(found, "takes_context", False),
        max_attempts=None if job.max_attempts == max_attempts else job.max_attempts,
        timeout=_given_timeout(job, found),
        retry=getattr(found, "retry", None),
        idempotency_key=job.idempotency_key,
    )


def _given_timeout(job: Job, found: Any) -> Duration | None:
    """Return the timeout in the form in which the task has it, such as a number, if that is the same."""
    given: Duration | None = getattr(found, "timeout", None)
    is_same = given is not None and job.timeout == as_timedelta(given, "timeout")
    return given if is_same else job.timeout


def local(moment: datetime | None) -> datetime | None:
    """Return a time of the store as the project writes times: aware, or naive without USE_TZ."""
    return moment if moment is None or is_aware() else timezone.make_naive(moment)


def _removed(path: str) -> Callable[..., None]:
    def removed(*_args: object, **_kwargs: object) -> None:
        raise TaskRemoved(path)

    removed.__module__, _, removed.__qualname__ = path.rpartition(".")
    removed.__name__ = removed.__qualname__
    return removed


def _arguments(job: Job) -> tuple[list[Any], dict[str, Any]]:
    with suppress(PayloadNotDecodable, KeyError, TypeError):  # written by another codec; the rest can be shown
        return job.data["args"], job.data["kwargs"]
    return [], {}


def _errors(job: Job, attempts: Sequence[Attempt]) -> list[Any]:
    errors = [error for each in attempts if (error := _error(each)) is not None]
    if job.status is Status.DEAD and not errors:
        errors.append(_made(WorkerLost, job.dead_reason or ""))
    if job.status is Status.CANCELED:
        errors.append(_made(Canceled, "the job was canceled"))
    return errors


def _error(attempt: Attempt) -> Any:
    if attempt.outcome is AttemptOutcome.LOST:
        return _made(WorkerLost, f"the lease of worker {attempt.worker_id} expired")
    if attempt.outcome not in _COUNTED or attempt.failure is None:
        return None
    return TaskError(exception_class_path=_class_path(attempt.failure.type), traceback=attempt.failure.traceback)


def _made(kind: type[Exception], text: str) -> Any:
    return TaskError(exception_class_path=f"taskharbor.integrations.django.{kind.__name__}", traceback=text)


def _class_path(name: str) -> str:
    """Return the path from which the class of a recorded error can be imported."""
    if "." not in name:
        return f"builtins.{name}"
    is_ours = name.startswith("taskharbor.") and name.count(".") == 1
    return _ERRORS_OF_OURS + name.partition(".")[2] if is_ours else name
