"""Typed tasks: functions whose calls are jobs, and handles on what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast

from taskharbor.core.errors import (
    CallNotReadable,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    Problem,
    TaskHarborError,
    UsageError,
)
from taskharbor.core.model import result_context
from taskharbor.core.outcome import DeadLetter
from taskharbor.core.request import JobRequest, validate
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from taskharbor.core.codec import Codec
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job, Progress
    from taskharbor.core.results import Enqueued
    from taskharbor.core.signatures import CallSignature
    from taskharbor.drivers.base import Driver
    from taskharbor.watcher import JobWatcher

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F")

Duration = timedelta | float
"""A time span; a number is taken for seconds."""
RESULT_TIMEOUT: Final = timedelta(seconds=60)


class CallOptions(TypedDict, total=False):
    """What `Task.using` takes. *connection* is yours: the job is stored in its transaction."""

    queue: str
    delay: Duration
    scheduled_for: datetime
    timeout: Duration
    max_attempts: int
    priority: int
    idempotency_key: str
    metadata: Mapping[str, str]
    connection: Any


_NO_OPTIONS: Final[CallOptions] = {}


class TaskOptions(TypedDict, total=False):
    """What `Harbor.task` takes. *type* is the name that jobs are stored under, *aliases* are earlier ones."""

    type: str
    aliases: tuple[str, ...]
    queue: str
    timeout: Duration
    max_attempts: int
    priority: int
    retry: RetryPolicy
    metadata: Mapping[str, str]


class TaskBackend(Protocol):
    """What tasks and handles need of a harbor."""

    @property
    def driver(self) -> Driver:
        """The store."""

    @property
    def codec(self) -> Codec:
        """How payloads and results are kept."""

    @property
    def watcher(self) -> JobWatcher:
        """Who waits for jobs to end."""

    def enqueue_request(self, request: JobRequest, connection: Any) -> Enqueued:
        """Store a job, in the transaction of *connection* if that is not None."""

    async def aenqueue_request(self, request: JobRequest, connection: Any) -> Enqueued:
        """Do the same without blocking the event loop."""


class ResultNotEncodable(DeadLetter):
    """What the task returned does not fit its annotation: it would fail again."""

    def __str__(self) -> str:
        return f"its result cannot be stored: {self.args[0]}"


class Task(Generic[P, R, F]):
    """A function whose calls can be stored as jobs. Called, it is the plain function.

    Made by `Harbor.task`. ``P`` is what a call takes (without the context), ``R`` what it
    returns, ``F`` the function itself.
    """

    def __init__(
        self,
        backend: TaskBackend,
        function: F,
        arguments: CallSignature,
        *,
        is_async: bool,
        options: TaskOptions,
        type: str,
    ) -> None:
        update_wrapper(cast("Any", self), cast("Any", function))
        self.backend = backend
        self._function = function
        self._options = options
        self.__name__: str
        self.__qualname__: str
        self.arguments = arguments
        self.is_async = is_async
        self.type = type
        _check_own(options)
        for each in self.types:
            validate(replace(self.request(None, _NO_OPTIONS), type=each))

    def __repr__(self) -> str:
        return f"Task({self.type!r})"

    @property
    def __call__(self) -> F:
        """The function, to be called as it was written."""
        return self._function

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as a job. When this returns, it is committed."""
        request = self.request(self.arguments.pack(args, kwargs), _NO_OPTIONS)
        enqueued = self.backend.enqueue_request(request, None)
        return Handle(self.backend, enqueued.id, arguments=self.arguments, existed=enqueued.existed)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as a job, without blocking the event loop."""
        request = self.request(self.arguments.pack(args, kwargs), _NO_OPTIONS)
        enqueued = await self.backend.aenqueue_request(request, None)
        return Handle(self.backend, enqueued.id, arguments=self.arguments, existed=enqueued.existed)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call that is not stored yet, for `Harbor.enqueue_many`."""
        return Call(self.request(self.arguments.pack(args, kwargs), _NO_OPTIONS), self)

    def using(self, **options: Unpack[CallOptions]) -> BoundTask[P, R]:
        """Return the task with options for the calls that are enqueued through it."""
        check_options(options, CallOptions)
        return BoundTask(self, options)

    def handle(self, job_id: JobId) -> Handle[R]:
        """Return the handle on a job of this task that was enqueued earlier, perhaps elsewhere."""
        return Handle(self.backend, job_id, arguments=self.arguments)

    @property
    def queue(self) -> str:
        """Where its jobs go, unless a call says otherwise."""
        return self._options.get("queue", "default")

    @property
    def types(self) -> tuple[str, ...]:
        """The names that its jobs are or were stored under."""
        return (self.type, *self._options.get("aliases", ()))

    @property
    def retry(self) -> RetryPolicy | None:
        """How it is tried again; None leaves that to its harbor."""
        return self._options.get("retry")

    def request(self, payload: object, options: CallOptions) -> JobRequest:
        """Return the request for a job of this task."""
        own = self._options
        policy = own.get("retry")
        attempts = options.get("max_attempts", own.get("max_attempts", policy.max_attempts if policy else None))
        timeout = options.get("timeout", own.get("timeout"))
        delay = options.get("delay")
        return JobRequest(
            type=self.type,
            payload=payload,
            queue=options.get("queue", own.get("queue", "default")),
            scheduled_for=options.get("scheduled_for"),
            delay=None if delay is None else as_timedelta(delay, "delay"),
            timeout=None if timeout is None else as_timedelta(timeout, "timeout"),
            max_attempts=attempts,
            priority=options.get("priority", own.get("priority", 0)),
            idempotency_key=options.get("idempotency_key"),
            metadata={**own.get("metadata", {}), **options.get("metadata", {})},
        )

    def handler(self) -> Callable[..., Any]:
        """Return what a worker runs for its jobs: the function, with the stored call for arguments."""
        return self._handle_async if self.is_async else self._handle_sync

    def _handle_sync(self, job: Job, ctx: Any) -> object:
        return self._packed(self._run(job, ctx))

    async def _handle_async(self, job: Job, ctx: Any) -> object:
        return self._packed(await self._run(job, ctx))

    def _packed(self, result: object) -> object:
        try:
            return self.arguments.pack_result(result)
        except InvalidRequest as error:
            raise ResultNotEncodable(error) from error

    def _run(self, job: Job, ctx: Any) -> Any:
        try:
            args, kwargs = self.arguments.unpack(job.data)
        except CallNotReadable as error:
            raise DeadLetter(str(error)) from error  # trying again would not change it
        ctx.use_result_encoder(self._packed)
        injected = (ctx,) if self.arguments.takes_context else ()
        return cast("Callable[..., Any]", self._function)(*injected, *args, **kwargs)


class BoundTask(Generic[P, R]):
    """A task and options for its calls."""

    def __init__(self, task: Task[P, R, Any], options: CallOptions) -> None:
        self._task = task
        self._options = options
        self._connection = options.get("connection")

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as a job. When this returns it is committed, or with a *connection* will be with it."""
        return self._handle(self._task.backend.enqueue_request(self._request(args, kwargs), self._connection))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as a job, without blocking the event loop."""
        return self._handle(await self._task.backend.aenqueue_request(self._request(args, kwargs), self._connection))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call that is not stored yet, for `Harbor.enqueue_many`."""
        if self._connection is not None:
            rule = "give it to enqueue_many(…, connection=…), which stores all calls in one transaction"
            raise UsageError(Problem(field="connection", value="given to a single call", rule=rule))
        return Call(self._request(args, kwargs), self._task)

    def _request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobRequest:
        return self._task.request(self._task.arguments.pack(args, kwargs), self._options)

    def _handle(self, enqueued: Enqueued) -> Handle[R]:
        return Handle(self._task.backend, enqueued.id, arguments=self._task.arguments, existed=enqueued.existed)


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A call of a task that is not stored yet."""

    request: JobRequest
    task: Task[..., R_co, Any] = field(repr=False)


class Handle(Generic[R_co]):
    """A job that was enqueued. ``existed``: its idempotency key was taken, and this is the earlier job."""

    def __init__(
        self, backend: TaskBackend, job_id: JobId, *, arguments: CallSignature | None = None, existed: bool = False
    ) -> None:
        self._backend = backend
        self._arguments = arguments
        self.id = job_id
        self.existed = existed

    def __repr__(self) -> str:
        return f"Handle({str(self.id)!r})"

    def job(self) -> Job:
        """Return the job as it is now. Raises `JobNotFound` where retention has removed it."""
        found = self._backend.driver.inspector.get([self.id])
        if self.id not in found:
            raise JobNotFound(self.id)
        return found[self.id]

    def status(self) -> Status:
        """Return the state that the job is in."""
        return self.job().status

    def progress(self) -> Progress | None:
        """Return how far the handler said it is; None before it says anything."""
        return self.job().progress

    def cancel(self) -> bool:
        """Call the job off: at once where it waits, or else as soon as its handler stops. False if it has ended."""
        [answer] = self._backend.driver.cancel([self.id])
        if isinstance(answer, JobNotFound):
            raise answer
        return not isinstance(answer, TaskHarborError)

    def result(self, timeout: Duration = RESULT_TIMEOUT) -> R_co:
        """Wait until the job has ended, and return what the task returned.

        Raises `JobFailed` where it ended otherwise, and `ResultTimeout` where it has not ended in time.
        A handler that waits so keeps its own slot meanwhile: where all slots of the workers do, nobody is
        left to run what they wait for, and they time out. In a coroutine `aresult` is the one to use.
        """
        return self._result_of(self._backend.watcher.wait(self.id, as_timedelta(timeout, "timeout")))

    async def aresult(self, timeout: Duration = RESULT_TIMEOUT) -> R_co:  # noqa: ASYNC109  as in result
        """Wait as `result` does, without blocking the event loop."""
        return self._result_of(await self._backend.watcher.await_final(self.id, as_timedelta(timeout, "timeout")))

    def _result_of(self, job: Job) -> R_co:
        if job.status is not Status.SUCCEEDED:
            raise JobFailed(job.id, job.status, job.last_error or job.dead_reason or "")
        if job.result is None:
            return cast("R_co", None)  # which is what the task returned
        stored = self._backend.codec.decode(job.result, context=result_context(job.id))
        return cast("R_co", stored if self._arguments is None else self._arguments.unpack_result(stored))


def check_calls(backend: TaskBackend, calls: Iterable[Call[R]]) -> list[Call[R]]:
    """Return *calls* as a list; raise `UsageError` where one is of a task that belongs to another harbor."""
    made = list(calls)
    for call in made:
        _check_backend(call.task, backend)
    return made


def request_for_schedule(backend: TaskBackend, task: Any) -> JobRequest:
    """Return what a schedule of *task* enqueues; raise `UsageError` where it cannot."""
    if not isinstance(task, Task):
        rule = "it is no task yet: write @harbor.schedule(…) above @harbor.task"
        raise UsageError(Problem(field="schedule", value=repr(getattr(task, "__name__", task)), rule=rule))
    _check_backend(task, backend)
    try:
        return task.request(task.arguments.pack((), {}), _NO_OPTIONS)
    except InvalidRequest as error:
        rule = f"it is called without arguments, and needs some ({error.problems[0].rule}): give them defaults"
        raise UsageError(Problem(field="schedule", value=repr(task.type), rule=rule)) from error


def _check_backend(task: Task[..., Any, Any], backend: TaskBackend) -> None:
    if task.backend is not backend:
        rule = "it belongs to another harbor, which has a store of its own: use that one"
        raise UsageError(Problem(field="task", value=repr(task.type), rule=rule))


def _check_own(options: Mapping[str, Any]) -> None:
    aliases, policy = options.get("aliases", ()), options.get("retry")
    if isinstance(aliases, str):
        raise UsageError(Problem(field="aliases", value=repr(aliases), rule=f"give a tuple: ({aliases!r},)"))
    if policy is not None and not isinstance(policy, RetryPolicy):
        rule = "give a RetryPolicy; for a number of attempts there is max_attempts"
        raise UsageError(Problem(field="retry", value=repr(policy), rule=rule))


def check_options(options: Mapping[str, Any], known: type[Any]) -> None:
    """Raise `UsageError` where there is an option that the TypedDict *known* does not have."""
    for name in options:
        if name not in known.__annotations__:
            rule = f"there are {', '.join(known.__annotations__)}"
            raise UsageError(Problem(field="option", value=repr(name), rule=rule))


def as_timedelta(value: Duration, name: str) -> timedelta:
    """Return a time span as one; a number is taken for seconds."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(Problem(field=name, value=repr(value), rule="give a timedelta, or seconds"))
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError) as error:
        raise UsageError(Problem(field=name, value=repr(value), rule="give a timedelta, or seconds")) from error
