"""Running Django's tasks in a worker: their calls, their signals, and Django's connections around each job."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.db import connections, reset_queries

from taskharbor.core.hooks import (
    AttemptFailed,
    AttemptLost,
    AttemptReturned,
    JobCanceled,
    JobDead,
    JobsEnqueued,
    JobsSucceeded,
)
from taskharbor.core.outcome import DeadLetter
from taskharbor.integrations.django.tasks_api import (
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from taskharbor.worker.context import Context  # noqa: TC001  annotations of tasks are read when they run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.harbor import Harbor


class ReturnValueNotStorable(DeadLetter):
    """A task returned a value that is not JSON. The job is not retried: it would fail again."""

    def __str__(self) -> str:
        return f"its return value cannot be stored: {self.args[0]}"


def prepare(harbor: Harbor) -> None:
    """Let the workers of *harbor* treat each job as Django treats a request, and send Django's signals."""
    harbor.wrap((_sync_around, _async_around))
    harbor.hooks = (*harbor.hooks, send_finished)


def register(harbor: Harbor, task: Any) -> None:
    """Add *task* to the tasks of *harbor*: its jobs have the arguments ``args`` and ``kwargs``."""
    run = (_async_runner if iscoroutinefunction(task.func) else _sync_runner)(task)
    run.__name__, run.__qualname__, run.__doc__ = task.func.__name__, task.func.__qualname__, task.func.__doc__
    options: dict[str, Any] = {
        "type": task.module_path,
        "queue": task.queue_name,
        "priority": -int(task.priority),
        "timeout": task.timeout,
        "max_attempts": task.max_attempts,
        "retry": task.retry,
        "metadata": {"django_backend": task.backend},
    }
    harbor.task(**{name: value for name, value in options.items() if value is not None})(run)


def _sync_around(job: Job, ctx: Context, call: Callable[[Job, Context], Any]) -> Any:
    begin_job()
    try:
        return call(job, ctx)
    finally:
        close_connections()


async def _async_around(job: Job, ctx: Context, call: Callable[[Job, Context], Awaitable[Any]]) -> Any:
    # In the thread in which asgiref runs the synchronous parts of async tasks, such as queries.
    await sync_to_async(begin_job)()
    try:
        return await call(job, ctx)
    finally:
        await sync_to_async(close_connections)()


def begin_job() -> None:
    """Do what Django does before a request: forget the queries that DEBUG keeps, and close unusable connections."""
    reset_queries()
    close_connections()


def close_connections() -> None:
    """Close the connections of this thread that are broken or older than CONN_MAX_AGE, as after a request.

    One inside ``atomic()`` stays open: it belongs to a test that runs the job itself.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _sync_runner(task: Any) -> Callable[..., Any]:
    def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = _started(ctx)
        task_started.send(sender_of(result), task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        return _returned(result, task.func(*context, *args, **kwargs))

    return run


def _async_runner(task: Any) -> Callable[..., Any]:
    async def run(ctx: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = await sync_to_async(_started)(ctx)
        await sync_to_async(task_started.send)(sender_of(result), task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        return _returned(result, await task.func(*context, *args, **kwargs))

    return run


def _started(ctx: Context) -> Any:
    """Return the result of the job as it is now, running, and keep it until its end is committed."""
    from taskharbor.integrations.django.results import result_of  # noqa: PLC0415  it imports the stores

    harbor = _harbor_of(ctx.job)
    attempts = harbor.driver.inspector.attempts([ctx.job_id]) if ctx.attempt > 1 else []
    result = result_of(ctx.job, attempts, harbor)
    _RUNNING.put(ctx.job_id, result)
    return result


def _returned(result: Any, value: object) -> Any:
    try:
        stored = normalize_json(value)
    except (TypeError, ValueError) as error:
        raise ReturnValueNotStorable(error) from error
    object.__setattr__(result, "_return_value", stored)
    return stored


@dataclass(frozen=True, slots=True)
class _RunningTasks:
    """The results of the attempts that run in this process, by job id."""

    results: dict[JobId, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, job_id: JobId, result: Any) -> None:
        with self.lock:
            self.results[job_id] = result

    def pop(self, job_id: JobId) -> Any:
        with self.lock:
            return self.results.pop(job_id, None)


_RUNNING: Final = _RunningTasks()


class _Enqueued(threading.local):
    """When the last job of this thread was created. Hooks are called before an enqueue returns."""

    created_at: datetime | None = None


ENQUEUED: Final = _Enqueued()


def send_finished(event: HookEvent) -> None:
    """Send ``task_finished`` for jobs of Django's tasks, and note when a job was created. It is a hook."""
    match event:
        case JobsEnqueued(jobs=jobs):
            ENQUEUED.created_at = jobs[-1].created_at
            return
        case JobsSucceeded(jobs=jobs, ended_at=ended_at):
            for job in jobs:
                send_success(job.id, ended_at)
        case AttemptFailed(job=job) | AttemptReturned(job=job) | AttemptLost(job=job):
            drop_running(job.id)
        case JobDead(job_id=job_id, type=type_name, exception=exception):
            send_failure(job_id, type_name, exception)
        case JobCanceled(job_id=job_id, type=type_name):
            send_failure(job_id, type_name, None)
        case _:
            return
    close_connections()  # of the receivers: this thread is the worker's own


def drop_running(job_id: JobId) -> None:
    """Forget the result of an attempt: another attempt follows."""
    _RUNNING.pop(job_id)


def send_success(job_id: JobId, ended_at: datetime) -> None:
    """Send the signal for a job that has succeeded in this process. Jobs of other kinds are ignored."""
    result = _RUNNING.pop(job_id)
    if result is not None:
        from taskharbor.integrations.django.results import local  # noqa: PLC0415  it imports the stores

        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        object.__setattr__(result, "finished_at", local(ended_at))
        task_finished.send(sender_of(result), task_result=result)


def send_failure(job_id: JobId, type_name: str, exception: BaseException | None) -> None:
    """Send the signal for a job that has failed for good, as the store has it: another process may have run it."""
    _RUNNING.pop(job_id)
    result = _stored(job_id, type_name)
    if result is None:
        return
    if exception is None:
        task_finished.send(sender_of(result), task_result=result)
        return
    try:
        raise exception  # noqa: TRY301  receivers, such as Django's log, find it with sys.exc_info()
    except BaseException:  # noqa: BLE001  whatever the task raised
        task_finished.send(sender_of(result), task_result=result)


def _stored(job_id: JobId, type_name: str) -> Any:
    from taskharbor.integrations.django.stores import aliases, defined_tasks  # noqa: PLC0415  it imports this module

    for alias in aliases():
        if any(task.module_path == type_name for task in defined_tasks(alias)):
            return task_backends[alias].find_result(job_id)
    return None


def _harbor_of(job: Job) -> Harbor:
    from taskharbor.integrations.django.stores import harbor_of  # noqa: PLC0415  it imports this module

    return harbor_of(job.metadata["django_backend"])


def sender_of(result: Any) -> type:
    """Return the sender of the signals about *result*: the class of its backend."""
    return type(task_backends[result.backend])
