"""The options of tasks and of their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.sizes import as_size
from taskharbor.observability.log_capture import capture_level

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from taskharbor.core.durations import Duration


class CallOptions(TypedDict, total=False):
    """The options of `Task.using`. They take precedence over those of the task.

    - *queue*: the queue of the job.
    - *delay*: how long after the enqueue the job is due.
    - *scheduled_for*: the time at which the job is due, with a time zone. Set this or *delay*, not both.
    - *timeout*: how long one attempt may run.
    - *max_attempts*: how many attempts the job has.
    - *priority*: of due jobs in a queue, the one with the lowest number runs first.
    - *idempotency_key*: a second enqueue with the same key in the same queue stores no second job.
    - *metadata*: text values that are stored with the job, merged with those of the task.
    - *connection*: your database connection or session. The job is stored in its transaction.
    """

    queue: str
    delay: Duration
    scheduled_for: datetime
    timeout: Duration
    max_attempts: int
    priority: int
    idempotency_key: str
    metadata: Mapping[str, str]
    connection: Any


class TaskOptions(TypedDict, total=False):
    """The options of `Harbor.task`.

    - *type*: the name that jobs are stored with; by default the name of the function, or as *names* of the
      harbor says.
    - *aliases*: earlier types of the task. Stored jobs of these types still run.
    - *queue*: the queue of its jobs; by default ``"default"``.
    - *timeout*: how long one attempt may run; by default there is no limit.
    - *max_attempts*: how many attempts a job has; by default that of the harbor.
    - *priority*: of due jobs in a queue, the one with the lowest number runs first; by default 0.
    - *retry*: after which delays a failed attempt is repeated; by default the policy of the harbor.
    - *metadata*: text values that are stored with each job.
    - *capture_logs*: whether its log lines are kept with each attempt, or from which level on; by default as its
      worker says.
    - *isolate*: whether each attempt runs in a child process, which is killed at its timeout; by default as its
      worker says.
    - *memory*: how much memory an attempt may use, in bytes or as ``"512MB"``. It implies *isolate*.
    """

    type: str
    aliases: tuple[str, ...]
    queue: str
    timeout: Duration
    max_attempts: int
    priority: int
    retry: RetryPolicy
    metadata: Mapping[str, str]
    capture_logs: bool | str
    isolate: bool
    memory: int | str


class HandlerOptions(TypedDict):
    """The options of a task that `Worker.register` takes."""

    policy: RetryPolicy
    capture_logs: bool | str | None
    isolate: bool | None
    memory_bytes: int


def check_options(options: Mapping[str, Any], known: type[Any]) -> None:
    """Raise `UsageError` for an option that the TypedDict *known* does not have."""
    if others := [name for name in options if name not in known.__annotations__]:
        rule = f"must be one of {', '.join(known.__annotations__)}"
        raise UsageError(Problem(field="option", value=repr(others[0]), rule=rule))


def memory_limit(options: Mapping[str, Any]) -> int:
    """Return the memory limit of a task in bytes; 0 if it has none. Raise `UsageError` if it cannot have one."""
    memory = options.get("memory")
    if memory is None:
        return 0
    if options.get("isolate") is False:
        rule = "needs a process of its own; leave out isolate=False"
        raise UsageError(Problem(field="memory", value=repr(memory), rule=rule))
    return as_size(memory, "memory")


def check_task_options(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if the aliases, the retry policy, the capture level or the memory of a task are invalid."""
    aliases, policy = options.get("aliases", ()), options.get("retry")
    if isinstance(aliases, str):
        raise UsageError(Problem(field="aliases", value=repr(aliases), rule=f"must be a tuple: ({aliases!r},)"))
    capture_level(options.get("capture_logs"))
    memory_limit(options)
    if policy is not None and not isinstance(policy, RetryPolicy):
        rule = "must be a RetryPolicy; to set only the number of attempts, use max_attempts"
        raise UsageError(Problem(field="retry", value=repr(policy), rule=rule))
