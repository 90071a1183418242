"""The `Harbor`: the entry point for tasks, schedules, workers and results, with its open store."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from taskharbor.client import Client
from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.signatures import CallSignature
from taskharbor.drivers import unwrap
from taskharbor.drivers.connect import connect
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.schedules.spec import DAY, ScheduleSpec
from taskharbor.settings import Settings
from taskharbor.tasks import (
    Call,
    Handle,
    Task,
    TaskOptions,
    as_timedelta,
    check_calls,
    check_options,
    request_for_schedule,
)
from taskharbor.watcher import JobWatcher
from taskharbor.worker.context import Context
from taskharbor.worker.lifespan import check_lifespan
from taskharbor.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from taskharbor.core.clocks import Clock
    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import Hook
    from taskharbor.core.ids import JobId
    from taskharbor.core.request import JobRequest
    from taskharbor.core.results import Enqueued
    from taskharbor.drivers.base import Driver, Inserter
    from taskharbor.outbox import Publisher
    from taskharbor.schedules.firing import Missed, Overlap
    from taskharbor.tasks import Duration
    from taskharbor.testing.harness import Harness
    from taskharbor.worker.config import Queues, WorkerOptions
    from taskharbor.worker.lifespan import Lifespan

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[..., Any, Any]")
L = TypeVar("L", bound="Lifespan")

_POLICY: Final = RetryPolicy()


class OpenStore:
    """An open store: its driver, client and watcher. *joins*: whether jobs are stored in users' transactions."""

    def __init__(self, driver: Driver, client: Client, *, joins: bool = True) -> None:
        self.driver = driver
        self.client = client
        self.watcher = JobWatcher(driver.inspector)
        self.joins = joins

    def close(self) -> None:
        self.watcher.close()
        self.client.close()
        self.driver.close()


class TaskDecorator(Protocol):
    """The decorator that `Harbor.task` returns if it is called with options."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Task[P, R, Callable[Concatenate[Context, P], R]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, Callable[P, R]]: ...


class Harbor:
    """A set of tasks and the store of their jobs.

    - *store*: a URL (``postgresql://…``, ``sqlite:///jobs.db`` or ``memory://``) or a driver. Without it, the
      environment variable TASKHARBOR_URL has the URL. The store is opened when it is first used.
    - *codec*: how payloads and results are encoded; by default `JsonCodec`.
    - *policy*: the retry policy of tasks that have no *retry* of their own.
    - *hooks*: callables that receive an event when a job is enqueued, and from workers for each attempt.
    - *publisher*: a callable that workers call with the `DeadTaskEvent` of each job that has failed for good.
    - *notify*: whether a job that is stored in your transaction wakes a worker when you commit.

    A harbor may be shared by threads. Use it as a context manager, or `close` it, to close the store.

    >>> from taskharbor import Harbor
    >>> harbor = Harbor("memory://")
    >>> @harbor.task
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> handle = double.enqueue(21)
    >>> harbor.worker().drain()
    >>> handle.result()
    42
    """

    def __init__(
        self,
        store: str | Driver | None = None,
        *,
        codec: Codec | None = None,
        policy: RetryPolicy = _POLICY,
        hooks: Sequence[Hook] = (),
        publisher: Publisher | None = None,
        notify: bool = True,
    ) -> None:
        self.codec: Codec = codec or JsonCodec()
        self._source, self.policy, self._notify = store, policy, notify
        self.hooks, self.publisher = tuple(hooks), publisher
        self._open_lock = threading.Lock()
        self._store: OpenStore | None = None
        self._override: OpenStore | None = None
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self._schedules: dict[str, ScheduleSpec] = {}
        self._lifespan: Lifespan | None = None

    @property
    def driver(self) -> Driver:
        """The driver of the store. Raises `UsageError` if there is no valid URL."""
        return self.store.driver

    @property
    def client(self) -> Client:
        """The client, which enqueues jobs of any type without a task."""
        return self.store.client

    @property
    def watcher(self) -> JobWatcher:
        """The watcher, which waits for jobs to reach a final state."""
        return self.store.watcher

    @property
    def store(self) -> OpenStore:
        """The open store. It is opened on the first access."""
        if (store := self._override or self._store) is not None:
            return store
        with self._open_lock:
            if self._store is None:
                self._store = self._open()
            return self._store

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """The tasks, by type."""
        return dict(self._tasks)

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks, and ``"default"``."""
        return sorted({"default", *(task.queue for task in self._tasks.values())})

    @property
    def schedules(self) -> Mapping[str, ScheduleSpec]:
        """The schedules that were defined with `schedule`, by name."""
        return dict(self._schedules)

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Task[P, R, Callable[Concatenate[Context, P], R]]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, Callable[P, R]]: ...
    @overload
    def task(self, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:  # type: ignore[misc]
        """Make a task of a sync or async function: its calls can be stored as jobs, which workers run.

        Use it as ``@harbor.task`` or with `TaskOptions`: ``@harbor.task(queue="mail", max_attempts=5)``. All
        parameters must be annotated. If the first one is annotated with `Context`, workers pass the context of the
        attempt; it is not an argument of the call.

        Raises `UsageError` or `InvalidRequest` if an option is unknown or invalid, if a parameter is not annotated,
        or if another task of this harbor has the same type.
        """
        if function is None:
            check_options(options, TaskOptions)
            return lambda function: self._add_task(function, options)
        return self._add_task(function, {})

    def schedule(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        missed: Missed = "once",
        overlap: Overlap = "allow",
        window: Duration = DAY,
        jitter: Duration = 0,
    ) -> Callable[[T], T]:
        """Enqueue a task at the times of a cron expression, once per fire time, however many workers run.

        Write it above ``@harbor.task``, of a task that needs no arguments. The schedule is stored when a worker starts.

        - *cron*: five fields, as in ``"0 2 * * *"``; *tz*: the time zone of these times.
        - *name*: the name of the schedule; by default the type of the task.
        - *missed*: what to do about fire times that have passed without a running worker: "skip", "once" or "all".
        - *overlap*: what to do while the previous job has not ended: "allow", "skip", "queue" or "cancel".
        - *window*: how far back *missed* "all" goes; *jitter*: the longest random delay after a fire time.

        `ScheduleSpec` describes them in detail. Raises `InvalidRequest` if an option is invalid, and `UsageError`
        if the name is in use or the task requires arguments.
        """

        def define(task: T) -> T:
            request = request_for_schedule(self, task)
            spec = ScheduleSpec(
                name=name or task.type,
                cron=cron,
                timezone=tz,
                type=request.type,
                payload=request.payload,
                queue=request.queue,
                timeout=request.timeout,
                max_attempts=request.max_attempts,
                priority=request.priority,
                missed=missed,
                overlap=overlap,
                window=as_timedelta(window, "window"),
                jitter=as_timedelta(jitter, "jitter"),
            )
            if (other := self._schedules.setdefault(spec.name, spec)) is not spec:
                rule = f"a schedule of {other.type!r} has this name; set another name=… for one of them"
                raise UsageError(Problem(field="name", value=repr(spec.name), rule=rule))
            return task

        return define

    def lifespan(self, function: L) -> L:
        """Run *function*, a generator, around the jobs of each worker: a decorator for setup and cleanup of resources.

        A worker runs it up to its ``yield`` before the first job, and the rest after the last job. The value that it
        yields is ``ctx.state``. It takes no arguments and may be async. A harbor has one lifespan; a second one,
        or a function that is not a generator, raises `UsageError`.
        """
        check_lifespan(function)
        if self._lifespan is not None:
            rule = "a harbor has one lifespan; set up all resources in it"
            raise UsageError(Problem(field="lifespan", value="already defined", rule=rule))
        self._lifespan = function
        return function

    def worker(
        self, *, queues: Queues | None = None, hooks: Sequence[Hook] = (), **options: Unpack[WorkerOptions]
    ) -> Worker:
        """Return a worker that runs the tasks and schedules of this harbor. It is not started.

        *queues* are the queues that it serves, with limits if it is a mapping; by default the `queues` of the harbor.
        *hooks* are added to those of the harbor. `Worker` describes the *options*, such as *concurrency* and *lease*.
        Raises `UsageError` if an option is invalid.
        """
        options.setdefault("publisher", self.publisher)
        worker = Worker(
            self.driver,
            queues=queues or self.queues,
            codec=self.codec,
            lifespan=self._lifespan,
            hooks=(*self.hooks, *hooks),
            scheduler=self.scheduler(),
            schedules=tuple(self._schedules.values()),
            **options,
        )
        self.register(worker)
        return worker

    def scheduler(self) -> Scheduler:
        """Return a scheduler, which enqueues the jobs of all schedules in the store. Every worker has one."""
        return Scheduler(self.driver, codec=self.codec, policy=self.policy)

    def register(self, worker: Worker) -> None:
        """Register the tasks of this harbor as handlers of *worker*."""
        for task in self._tasks.values():
            for each in task.types:
                worker.register(each, task.handler(), policy=task.retry or self.policy)

    def enqueue_many(self, calls: Iterable[Call[R]], *, connection: Any = None) -> list[Handle[R]]:
        """Store calls (see `Task.call`) in one statement, and return their handles in the same order.

        With *connection*, your database connection or session, the jobs are stored in its transaction.
        Raises `InvalidRequest` if a call is invalid, and `UsageError` if its task belongs to another harbor; nothing
        is stored then. Raises `EnqueueRefused` if idempotency keys belong to other jobs; all other jobs are stored.
        """
        checked = check_calls(self, calls)
        client = self.client if connection is None else self._joined_client(connection)
        return _handles(self, checked, client.enqueue_many([call.request for call in checked]))

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Store calls as `enqueue_many` does, without blocking the event loop."""
        checked = check_calls(self, calls)
        return _handles(self, checked, await self.client.aenqueue_many([call.request for call in checked]))

    def handle(self, job_id: JobId) -> Handle[Any]:
        """Return a handle to a job of any type. Its result is the decoded value; `Task.handle` returns a typed one."""
        return Handle(self, job_id)

    def enqueue_request(self, request: JobRequest, connection: Any = None) -> Enqueued:
        """Store a job, in the transaction of *connection* unless that is None. Raises what `Client.enqueue` raises."""
        if connection is not None:
            return self._joined_client(connection).enqueue(request)
        return (self._override or self._store or self.store).client.enqueue(request)

    async def aenqueue_request(self, request: JobRequest, connection: Any = None) -> Enqueued:
        """Store a job as `enqueue_request` does, without blocking the event loop. *connection* may be async."""
        if connection is None or not self.store.joins:
            return await self.client.aenqueue(request)
        if not unwrap.is_async(connection):
            return self._joined_client(connection).enqueue(request)
        joined = self._join("ajoin", await unwrap.aunwrap(connection))
        return await self.client.aenqueue_in(joined, request)

    def testing(self) -> AbstractContextManager[Harness]:
        """Return a context manager for tests. Inside it, the harbor has a memory store and a clock that you advance."""
        from taskharbor.testing.harness import harness  # noqa: PLC0415  only tests need it

        return harness(self)

    @contextmanager
    def using_store(self, store: OpenStore) -> Iterator[None]:
        """Use *store* instead of this harbor's own inside a ``with`` block. `close` does not close it."""
        before, self._override = self._override, store
        try:
            yield
        finally:
            self._override = before

    def use_store(self, store: str | Driver) -> None:
        """Close the store, and use another from now on: a URL or a driver."""
        self.close()
        self._source = store

    def close(self) -> None:
        """Close the store, and end all waits for results. The store is opened again if it is used again."""
        with self._open_lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    async def aclose(self) -> None:
        """Close as `close` does, without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def _open(self) -> OpenStore:
        store = self._source
        driver = (
            connect(store or Settings.from_env().require_url()) if store is None or isinstance(store, str) else store
        )
        return OpenStore(driver, self.make_client(driver))

    def make_client(self, inserter: Inserter, *, clock: Clock | None = None) -> Client:
        """Return a client that stores jobs through *inserter*, with the codec, policy and hooks of this harbor."""
        return Client(inserter, codec=self.codec, policy=self.policy, hooks=self.hooks, clock=clock)

    def start_lifespan(self) -> Iterator[Any] | AsyncIterator[Any]:
        """Return a new generator of the lifespan. If there is no lifespan, it yields None."""
        return (each for each in [None]) if self._lifespan is None else self._lifespan()

    def _joined_client(self, connection: Any) -> Client:
        if not self.store.joins:
            return self.client
        if unwrap.is_async(connection):
            rule = "it is async; use await aenqueue(…)"
            raise UsageError(Problem(field="connection", value=type(connection).__name__, rule=rule))
        return self.make_client(self._join("join", unwrap.unwrap(connection)))

    def _join(self, method: str, connection: Any) -> Any:
        return unwrap.join(self.driver, method, connection, notify=self._notify)

    def _add_task(self, function: Any, options: TaskOptions) -> Task[..., Any, Any]:
        is_inner = "<locals>" in getattr(function, "__qualname__", "")
        scope = sys._getframe(2).f_locals if is_inner else None  # noqa: SLF001  its annotations may name local classes
        arguments = CallSignature(function, context=Context, scope=scope)
        task: Task[..., Any, Any] = Task(
            self,
            function,
            arguments,
            is_async=inspect.iscoroutinefunction(function),
            options=options,
            type=options.get("type") or function.__name__,
        )
        for each in task.types:
            if (other := self._task_of_type(each)) is not None and not _is_redefinition(other, task):
                rule = f"{other.__module__}.{other.__qualname__} has this type; set another type=… for one of them"
                raise UsageError(Problem(field="type", value=repr(each), rule=rule))
        self._tasks[task.type] = task
        self._schedules = {name: spec for name, spec in self._schedules.items() if spec.type != task.type}
        return task

    def _task_of_type(self, type: str) -> Any:
        return next((task for task in self._tasks.values() if type in task.types), None)


def _is_redefinition(one: Any, other: Any) -> bool:
    """Return whether both tasks are the same function, which is defined again when its module is reloaded."""
    return bool((one.__module__, one.__qualname__) == (other.__module__, other.__qualname__))


def _handles(harbor: Harbor, calls: Sequence[Call[R]], enqueued: Sequence[Enqueued]) -> list[Handle[R]]:
    return [
        Handle(harbor, each.id, arguments=call.task.arguments, existed=each.existed)
        for call, each in zip(calls, enqueued, strict=True)
    ]
