"""Typed tasks, calls and handles: functions whose calls are stored as jobs, and references to those jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast

from taskharbor.cancellation import cancel_jobs
from taskharbor.core.durations import Duration, as_timedelta
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
from taskharbor.core.request import JobRequest, RequestTemplate, new_request, validate
from taskharbor.core.states import Status
from taskharbor.task_options import (
    CallOptions,
    HandlerOptions,
    TaskOptions,
    check_options,
    check_task_options,
    memory_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from taskharbor.client import Client
    from taskharbor.core.codec import Codec
    from taskharbor.core.flat_calls import FlatShape
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job, Progress
    from taskharbor.core.results import Enqueued
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.core.signatures import CallSignature
    from taskharbor.drivers.base import Driver
    from taskharbor.watcher import JobWatcher

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F")

RESULT_TIMEOUT: Final = timedelta(seconds=60)
"""How long `Handle.result` waits by default."""
_NO_OPTIONS: Final[CallOptions] = {}


class TaskBackend(Protocol):
    """The part of a `Harbor` that tasks and handles use."""

    @property
    def driver(self) -> Driver:
        """The store."""

    @property
    def client(self) -> Client:
        """The client, which has the hooks."""

    @property
    def codec(self) -> Codec:
        """How payloads and results are encoded."""

    @property
    def watcher(self) -> JobWatcher:
        """Waits for jobs to reach a final state."""

    def enqueue_request(self, request: JobRequest, connection: Any) -> Enqueued:
        """Store a job, in the transaction of *connection* unless that is None."""

    async def aenqueue_request(self, request: JobRequest, connection: Any) -> Enqueued:
        """Store a job as `enqueue_request` does, without blocking the event loop."""


class ResultNotEncodable(DeadLetter):
    """The task returned a value that does not match its annotation. The job is not retried: it would fail again."""

    def __str__(self) -> str:
        return f"its result cannot be stored: {self.args[0]}"


class Task(Generic[P, R, F]):
    """A function whose calls can be stored as jobs. `Harbor.task` makes it.

    Calling a task calls the function directly, without a job. The type parameters are the parameters of a call
    without the context (``P``), its result (``R``) and the function itself (``F``).

    >>> from taskharbor import Harbor
    >>> harbor = Harbor("memory://")
    >>> @harbor.task(queue="mail")
    ... def greet(name: str) -> str:
    ...     return f"hello {name}"
    >>> greet("Ada")
    'hello Ada'
    >>> greet.enqueue("Ada").job().queue
    'mail'
    >>> greet.using(queue="bulk", delay=60).enqueue("Ada").job().queue
    'bulk'
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
        self._template = RequestTemplate.of(type, options)
        self.__name__: str
        self.__qualname__: str
        self.arguments = arguments
        self.is_async = is_async
        self.type = type
        check_task_options(options)
        for each in self.types:
            validate(replace(self.request(None, _NO_OPTIONS), type=each))

    def __repr__(self) -> str:
        return f"Task({self.type!r})"

    @property
    def __call__(self) -> F:
        """The function itself."""
        return self._function

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call with these arguments as a job, and return after it is committed.

        Raises `InvalidRequest` if the arguments do not match the parameters or cannot be encoded, `CodecMismatch` if
        the store has another codec, and `StoreUnavailable` if it is unknown whether the job was stored. To be able to
        enqueue safely again after the last one, set an *idempotency_key* with `using`.
        """
        request = self.request(self.arguments.pack(args, kwargs), _NO_OPTIONS)
        enqueued = self.backend.enqueue_request(request, None)
        return Handle(self.backend, enqueued.id, arguments=self.arguments, existed=enqueued.existed)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as `enqueue` does, without blocking the event loop.

        If the coroutine is canceled, the job may still be stored.
        """
        request = self.request(self.arguments.pack(args, kwargs), _NO_OPTIONS)
        enqueued = await self.backend.aenqueue_request(request, None)
        return Handle(self.backend, enqueued.id, arguments=self.arguments, existed=enqueued.existed)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call that is not stored yet, for `Harbor.enqueue_many`.

        Raises `InvalidRequest` if the arguments do not match the parameters.
        """
        known = self.arguments
        # Without names, flat_shape would only add a frame, a sixth of the time of a call.
        flat = known.flat_shape(args, kwargs) if kwargs else known.flat_shapes.get((*map(type, args),))
        if flat is None:
            return Call(self.request(self.arguments.pack(args, kwargs), _NO_OPTIONS), self)
        call: Call[R] = _bare(Call)  # takes half the time of the constructor
        call._request, call.task, call.flat = None, self, flat  # noqa: SLF001  of this module
        call.values = (*args, *kwargs.values()) if kwargs else args
        return call

    def using(self, **options: Unpack[CallOptions]) -> BoundTask[P, R]:
        """Return the task with options for its calls: ``task.using(delay=60).enqueue(…)``.

        `CallOptions` describes the options. An unknown option raises `UsageError`; an invalid value raises
        `InvalidRequest` or `UsageError` when a call is enqueued.
        """
        check_options(options, CallOptions)
        return BoundTask(self, options)

    def handle(self, job_id: JobId) -> Handle[R]:
        """Return a handle to a job of this task that was enqueued earlier, in any process.

        The store is not accessed.
        """
        return Handle(self.backend, job_id, arguments=self.arguments)

    @property
    def queue(self) -> str:
        """The queue of its jobs, unless a call sets another."""
        return self._template.queue

    @property
    def types(self) -> tuple[str, ...]:
        """The types that its jobs are stored with: its type and its aliases."""
        return (self.type, *self._options.get("aliases", ()))

    @property
    def retry(self) -> RetryPolicy | None:
        """Its retry policy, or None if it uses the policy of its harbor."""
        return self._options.get("retry")

    @property
    def capture_logs(self) -> bool | str | None:
        """Whether its log lines are kept, or from which level on; None if its worker decides."""
        return self._options.get("capture_logs")

    def handler_options(self, policy: RetryPolicy) -> HandlerOptions:
        """Return the options of `Worker.register` for its handler; *policy* applies if it has none of its own."""
        return HandlerOptions(
            policy=self.retry or policy,
            capture_logs=self.capture_logs,
            isolate=True if "memory" in self._options else self._options.get("isolate"),
            memory_bytes=memory_limit(self._options),
        )

    def request(self, payload: object, options: CallOptions) -> JobRequest:
        """Return the request for a job of this task. *payload* is the packed call."""
        template = self._template
        if not options:
            return new_request(payload, template)
        return JobRequest(
            type=template.type,
            payload=payload,
            queue=options.get("queue", template.queue),
            scheduled_for=options.get("scheduled_for"),
            delay=options.get("delay"),
            timeout=options.get("timeout", template.timeout),
            max_attempts=options.get("max_attempts", template.max_attempts),
            priority=options.get("priority", template.priority),
            idempotency_key=options.get("idempotency_key"),
            metadata={**template.metadata, **options.get("metadata", {})},
        )

    def handler(self) -> Callable[..., Any]:
        """Return the handler that a worker runs for its jobs: it calls the function with the stored arguments."""
        function: Any = self._function
        unpack, pack_result = self._unpack, self._pack_result

        async def handle_async(job: Job, ctx: Any) -> object:
            args, kwargs = unpack(job, ctx)
            # Without names, no dict of them is made for the call.
            return pack_result(await (function(*args, **kwargs) if kwargs else function(*args)))

        def handle_sync(job: Job, ctx: Any) -> object:
            args, kwargs = unpack(job, ctx)
            return pack_result(function(*args, **kwargs) if kwargs else function(*args))

        return handle_async if self.is_async else handle_sync

    def _pack_result(self, result: object) -> object:
        try:
            return self.arguments.pack_result(result)
        except InvalidRequest as error:
            raise ResultNotEncodable(error) from error

    def _unpack(self, job: Job, ctx: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of the function, with *ctx* if it takes one."""
        arguments = self.arguments
        try:
            args, kwargs = arguments.unpack_job(job)
        except CallNotReadable as error:
            raise DeadLetter(str(error)) from error  # a retry would fail again
        ctx.use_result_encoder(self._pack_result)
        return ((ctx, *args), kwargs) if arguments.takes_context else (args, kwargs)


class BoundTask(Generic[P, R]):
    """A task with options for its calls. `Task.using` makes it."""

    def __init__(self, task: Task[P, R, Any], options: CallOptions) -> None:
        self._task = task
        self._options = options
        self._connection = options.get("connection")

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as `Task.enqueue` does. With a *connection* the job is committed by your own commit.

        Also raises `IdempotencyConflict` if the *idempotency_key* belongs to a job with another type or payload, and
        `UsageError` if the store cannot join the *connection*.
        """
        return self._handle(self._task.backend.enqueue_request(self._request(args, kwargs), self._connection))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call as `enqueue` does, without blocking the event loop. The *connection* may be async."""
        return self._handle(await self._task.backend.aenqueue_request(self._request(args, kwargs), self._connection))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call that is not stored yet, for `Harbor.enqueue_many`. It cannot have a *connection*."""
        if self._connection is not None:
            rule = "pass it to enqueue_many(…, connection=…), which stores all calls in one transaction"
            raise UsageError(Problem(field="connection", value="set for a single call", rule=rule))
        return Call(self._request(args, kwargs), self._task)

    def _request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobRequest:
        return self._task.request(self._task.arguments.pack(args, kwargs), self._options)

    def _handle(self, enqueued: Enqueued) -> Handle[R]:
        return Handle(self._task.backend, enqueued.id, arguments=self._task.arguments, existed=enqueued.existed)


class Call(Generic[R_co]):
    """A call of a task that is not stored yet. `Task.call` makes it, and `Harbor.enqueue_many` stores it.

    Its ``request`` is made when it is needed, since a bulk enqueue of scalar arguments writes their payloads without
    one: see `core.flat_calls`.
    """

    __slots__ = ("_request", "flat", "task", "values")

    def __init__(self, request: JobRequest, task: Task[..., R_co, Any]) -> None:
        self._request: JobRequest | None = request
        self.task = task
        self.flat: FlatShape | None = None
        self.values: tuple[Any, ...] = ()

    @property
    def request(self) -> JobRequest:
        """The request for its job."""
        if self._request is None and self.flat is not None:
            self._request = self.task.request(self.flat.pack(self.values), _NO_OPTIONS)
        return cast("JobRequest", self._request)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and (self.request, self.task) == (other.request, other.task)

    __hash__ = None  # type: ignore[assignment]  # as its payload

    def __repr__(self) -> str:
        return f"Call({self.request!r})"


_bare: Final = object.__new__


class Handle(Generic[R_co]):
    """A reference to an enqueued job: its status, progress and result, and a way to cancel it.

    ``id`` is the id of the job. ``existed`` is true if the idempotency key belonged to an earlier job: the handle
    then refers to that job, and no job was stored. Every method asks the store; nothing is cached.

    `Task.enqueue` returns handles. For a job that was enqueued elsewhere, use `Task.handle` or `Harbor.handle`.
    """

    __slots__ = ("__weakref__", "_arguments", "_backend", "existed", "id")

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
        """Return the job as it is now. Raises `JobNotFound` if it does not exist, for example after retention."""
        found = self._backend.driver.inspector.get([self.id])
        if self.id not in found:
            raise JobNotFound(self.id)
        return found[self.id]

    def status(self) -> Status:
        """Return the status of the job. Raises `JobNotFound`."""
        return self.job().status

    def progress(self) -> Progress | None:
        """Return the progress that the handler has reported, or None. Raises `JobNotFound`."""
        return self.job().progress

    def cancel(self) -> bool:
        """Cancel the job, and return whether that was possible: False if it has already ended.

        A job that waits is canceled immediately. A running handler is asked to stop, and the job is canceled
        when it does. Raises `JobNotFound`.
        """
        [answer] = cancel_jobs(self._backend.driver, [self.id], self._backend.client.call_hooks)
        if isinstance(answer, JobNotFound):
            raise answer
        return not isinstance(answer, TaskHarborError)

    def result(self, timeout: Duration = RESULT_TIMEOUT) -> R_co:
        """Wait until the job has ended, and return the result of the task.

        Raises `JobFailed` if the job is dead or canceled, `ResultTimeout` if it has not ended within *timeout*, with
        what it waits for, and `JobNotFound` if it does not exist.

        A handler that waits for another job keeps its own slot. If the handlers in all slots wait, no worker can run
        the jobs that they wait for, and they time out. In a coroutine, use `aresult`.
        """
        return self._result_of(self._backend.watcher.wait(self.id, as_timedelta(timeout, "timeout")))

    async def aresult(self, timeout: Duration = RESULT_TIMEOUT) -> R_co:  # noqa: ASYNC109  as in result
        """Wait as `result` does, without blocking the event loop."""
        return self._result_of(await self._backend.watcher.await_final(self.id, as_timedelta(timeout, "timeout")))

    def _result_of(self, job: Job) -> R_co:
        if job.status is not Status.SUCCEEDED:
            raise JobFailed(job.id, job.status, job.last_error or job.dead_reason or "")
        if job.result is None:
            return cast("R_co", None)  # the task returned None
        stored = self._backend.codec.decode(job.result, context=result_context(job.id))
        return cast("R_co", stored if self._arguments is None else self._arguments.unpack_result(stored))


def handles_of(calls: Sequence[Call[R]], enqueued: Sequence[Enqueued]) -> list[Handle[R]]:
    """Return the handles of the jobs that were stored for *calls*."""
    handles: list[Handle[R]] = []
    for call, each in zip(calls, enqueued, strict=True):
        handle: Handle[R] = _bare(Handle)  # setting its slots takes a third of the time of the constructor
        handle._backend, handle._arguments = call.task.backend, call.task.arguments  # noqa: SLF001
        handle.id, handle.existed = each.id, each.existed
        handles.append(handle)
    return handles


def check_calls(backend: TaskBackend, calls: Iterable[Call[R]]) -> list[Call[R]]:
    """Return *calls* as a list. Raise `UsageError` if one is not a call, or if its task belongs to another harbor."""
    checked: list[Any] = list(calls)
    for call in checked:
        if not isinstance(call, Call):
            raise UsageError(Problem(field="calls", value=repr(call), rule="it is not a call; write task.call(…)"))
        _check_backend(call.task, backend)
    return checked


def request_for_schedule(backend: TaskBackend, task: Any) -> JobRequest:
    """Return the request that a schedule of *task* enqueues. Raise `UsageError` if *task* cannot be scheduled."""
    if not isinstance(task, Task):
        rule = "it is not a task; write @harbor.schedule(…) above @harbor.task"
        raise UsageError(Problem(field="schedule", value=repr(getattr(task, "__name__", task)), rule=rule))
    _check_backend(task, backend)
    try:
        return task.request(task.arguments.pack((), {}), _NO_OPTIONS)
    except InvalidRequest as error:
        rule = f"a scheduled task is called without arguments ({error.problems[0].rule}): give them defaults"
        raise UsageError(Problem(field="schedule", value=repr(task.type), rule=rule)) from error


def _check_backend(task: Task[..., Any, Any], backend: TaskBackend) -> None:
    if task.backend is not backend:
        rule = "it belongs to another harbor, which has its own store: use that harbor"
        raise UsageError(Problem(field="task", value=repr(task.type), rule=rule))
