"""The `Harbor`: the entry point for tasks, schedules, workers and results."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, cast, overload

from taskharbor.client import Client
from taskharbor.core.codec import JsonCodec, can_store
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.request import MAX_ATTEMPTS, validate_attempts
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.signatures import CallSignature
from taskharbor.core.statistics import check_version
from taskharbor.core.typed_values import UnresolvedAnnotation
from taskharbor.drivers import unwrap
from taskharbor.drivers.connect import connect
from taskharbor.observability.tracing import spans_for
from taskharbor.open_store import OpenStore
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.schedules.spec import DAY, spec_for
from taskharbor.settings import Settings
from taskharbor.task_options import TaskOptions, check_options
from taskharbor.task_registry import Names, TaskRegistry, caller_place, name_of_app
from taskharbor.tasks import Call, Handle, Task, check_calls, handles_of, request_for_schedule
from taskharbor.worker.context import Context
from taskharbor.worker.lifespan import check_lifespan
from taskharbor.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import TracerProvider

    from taskharbor.core.clocks import Clock
    from taskharbor.core.codec import Codec
    from taskharbor.core.durations import Duration
    from taskharbor.core.failure import Redact
    from taskharbor.core.hooks import Hook
    from taskharbor.core.ids import JobId
    from taskharbor.core.request import JobRequest
    from taskharbor.core.results import Enqueued
    from taskharbor.drivers.base import Driver, Inserter
    from taskharbor.outbox import Publisher
    from taskharbor.schedules.firing import Missed, Overlap
    from taskharbor.schedules.spec import ScheduleSpec
    from taskharbor.task_registry import TaskDecorator
    from taskharbor.testing.harness import Harness
    from taskharbor.watcher import JobWatcher
    from taskharbor.worker.config import Queues, WorkerOptions
    from taskharbor.worker.handlers import Middleware
    from taskharbor.worker.lifespan import Lifespan

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[..., Any, Any]")
L = TypeVar("L", bound="Lifespan")

_POLICY: Final = RetryPolicy()


class Harbor:
    """A set of tasks and the store of their jobs.

    - *store*: a URL (``postgresql://…``, ``sqlite:///jobs.db`` or ``memory://``) or a driver. Without it, the
      environment variable TASKHARBOR_URL has the URL. The store is opened when it is first used.
    - *codec*: how payloads and results are encoded; by default `JsonCodec`.
    - *max_attempts*: how many attempts a job has if its task or call does not say. It is stored with the job.
    - *policy*: the retry policy of tasks without *retry*: the delays that workers of this harbor put between attempts.
    - *hooks*: callables that receive the events of `taskharbor.core.hooks`, for metrics and alerts.
    - *publisher*: a callable that workers call with the `DeadTaskEvent` of each job that has failed for good.
    - *redact*: a callable that gets each text of a task's error, and returns the text to store and log.
    - *notify*: whether a job that is stored in your transaction wakes a worker when you commit.
    - *names*: the type of tasks that set none: the name of the "function", or "qualified", with the module.
    - *keep*, *keep_dead*: how long finished jobs (7 days) and dead letters (until you remove them) are kept.
    - *tracing*: whether enqueues and attempts make OpenTelemetry spans, or the tracer provider that makes them; by
      default as the environment variable TASKHARBOR_TRACING says.
    - *version*: that of your application, such as a commit; by default TASKHARBOR_APP_VERSION. Workers report it.

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
        max_attempts: int = MAX_ATTEMPTS,
        policy: RetryPolicy = _POLICY,
        hooks: Sequence[Hook] = (),
        publisher: Publisher | None = None,
        redact: Redact | None = None,
        notify: bool = True,
        names: Names = "function",
        keep: Duration | None = None,
        keep_dead: Duration | None = None,
        tracing: bool | TracerProvider | None = None,
        version: str | None = None,
    ) -> None:
        self.codec: Codec = codec or JsonCodec()
        validate_attempts(max_attempts, field="max_attempts")
        self.source, self.policy, self._notify, self.max_attempts = store, policy, notify, max_attempts
        self.hooks, self.publisher, self.redact = tuple(hooks), publisher, redact
        settings = Settings.from_env()
        self.retention = settings.retention(keep, keep_dead)
        self.spans = spans_for(settings.is_tracing if tracing is None else tracing)
        self.version = check_version(version or settings.app_version)
        self._open_lock = threading.Lock()
        self._store: OpenStore | None = None
        self._override: OpenStore | None = None
        self._tasks = TaskRegistry(names)
        self._schedules: dict[str, ScheduleSpec] = {}
        self._lifespan: Lifespan | None = None
        self.middleware: tuple[Middleware, ...] = ()
        self.extra_queues: tuple[str, ...] = ()

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
        """The tasks, by type. Included modules are imported first."""
        return self._tasks.load()

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks, those that an integration adds, and ``"default"``."""
        return sorted({"default", *self.extra_queues, *(task.queue for task in self.tasks.values())})

    @property
    def schedules(self) -> Mapping[str, ScheduleSpec]:
        """The schedules that were defined with `schedule`, by name. Included modules are imported first."""
        self._tasks.load()
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
        if a parameter cannot be stored, or if another task of this harbor has the same type.
        """
        if function is None:
            check_options(options, TaskOptions)
            return lambda function: self._add_task(function, options)
        return self._add_task(function, {})

    def include(self, *modules: str) -> None:
        """Import *modules*, given by their dotted names, when the tasks are needed: ``harbor.include("shop.mail")``.

        They are imported by the first use of `tasks`, `queues`, `schedules`, `worker` or `register`, and so when a
        worker starts; not by an enqueue. So the modules can import this harbor to define their tasks.
        """
        self._tasks.include(modules, caller_place())

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
            spec = spec_for(
                request_for_schedule(self, task),
                name=name or task.type,
                cron=cron,
                timezone=tz,
                missed=missed,
                overlap=overlap,
                window=window,
                jitter=jitter,
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

    def wrap(self, middleware: Middleware) -> None:
        """Call *middleware* around every handler of this harbor's workers and of its test harness.

        It is described in `Worker`. The first one is outermost, and those of a worker's options are innermost.
        """
        self.middleware += (middleware,)

    def worker(
        self, *, queues: Queues | None = None, hooks: Sequence[Hook] = (), **options: Unpack[WorkerOptions]
    ) -> Worker:
        """Return a worker that runs the tasks and schedules of this harbor. It is not started.

        *queues* are the queues that it serves, with limits if it is a mapping; by default the `queues` of the harbor.
        *hooks* are added to those of the harbor. `Worker` describes the *options*, such as *concurrency* and *lease*.
        Raises `UsageError` if an option is invalid.
        """
        own: dict[str, Any] = {"publisher": self.publisher, "redact": self.redact}
        own |= {"tracing": self.spans, "version": self.version}
        own["middleware"] = (*self.middleware, *options.pop("middleware", ()))
        options = cast("WorkerOptions", {**own, **self.retention, **options})
        worker = Worker(
            self.driver,
            queues=queues or self.queues,
            codec=self.codec,
            lifespan=self._lifespan,
            hooks=(*self.hooks, *hooks),
            scheduler=self.scheduler(),
            schedules=tuple(self.schedules.values()),
            **options,
        )
        worker.use_app(partial(name_of_app, self), self.source if isinstance(self.source, str) else None)
        self.register(worker)
        return worker

    def scheduler(self) -> Scheduler:
        """Return a scheduler, which enqueues the jobs of all schedules in the store. Every worker has one."""
        return Scheduler(
            self.driver, codec=self.codec, max_attempts=self.max_attempts, hooks=self.hooks, tracing=self.spans
        )

    def register(self, worker: Worker) -> None:
        """Register the tasks of this harbor as handlers of *worker*. Raises `UsageError` if one cannot be stored."""
        self.check_tasks()
        for task in self.tasks.values():
            for each in task.types:
                worker.register(each, task.handler(), **task.handler_options(self.policy))

    def check_tasks(self) -> None:
        """Import the included modules, and check all annotations: those of classes defined below their task, too.

        Raises `UsageError` if a parameter or a result cannot be stored. `worker` and `register` call this.
        """
        self._tasks.check(partial(can_store, self.codec))

    def enqueue_many(self, calls: Iterable[Call[R]], *, connection: Any = None) -> list[Handle[R]]:
        """Store calls (see `Task.call`) in one statement, and return their handles in the same order.

        With *connection*, your database connection or session, the jobs are stored in its transaction.
        Raises `InvalidRequest` if a call is invalid, and `UsageError` if its task belongs to another harbor; nothing
        is stored then. Raises `EnqueueRefused` if idempotency keys belong to other jobs; all other jobs are stored.
        """
        checked = check_calls(self, calls)
        client = self.client if connection is None else self._joined_client(connection)
        return handles_of(checked, client.enqueue_calls(checked))

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Store calls as `enqueue_many` does, without blocking the event loop."""
        checked = check_calls(self, calls)
        return handles_of(checked, await self.client.aenqueue_calls(checked))

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
        if connection is None:
            return await self.client.aenqueue(request)
        if not unwrap.is_async(connection):
            return self._joined_client(connection).enqueue(request)
        joined = await unwrap.ajoin(self.driver, connection, notify=self._notify)
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
        self.source = store

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

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _open(self) -> OpenStore:
        store = self.source
        driver = (
            connect(store or Settings.from_env().require_url()) if store is None or isinstance(store, str) else store
        )
        if self.spans is not None:
            self.spans.use_store(driver)
        return OpenStore(driver, self.make_client(driver), warns=Settings.from_env().is_development)

    def make_client(self, inserter: Inserter, *, clock: Clock | None = None) -> Client:
        """Return a client that stores jobs through *inserter*, with the codec, attempts and hooks of this harbor."""
        return Client(
            inserter,
            codec=self.codec,
            max_attempts=self.max_attempts,
            hooks=self.hooks,
            clock=clock,
            tracing=self.spans,
        )

    def start_lifespan(self) -> Iterator[Any] | AsyncIterator[Any]:
        """Return a new generator of the lifespan. If there is no lifespan, it yields None."""
        return (each for each in [None]) if self._lifespan is None else self._lifespan()

    def _joined_client(self, connection: Any) -> Client:
        if unwrap.is_async(connection):
            rule = "it is async; use await aenqueue(…)"
            raise UsageError(Problem(field="connection", value=type(connection).__name__, rule=rule))
        joined = unwrap.join(self.driver, connection, notify=self._notify)
        return self.make_client(joined, clock=self.store.clock)

    def _add_task(self, function: Any, options: TaskOptions) -> Task[..., Any, Any]:
        is_inner = "<locals>" in getattr(function, "__qualname__", "")
        scope = sys._getframe(2).f_locals if is_inner else None  # noqa: SLF001  its annotations may name local classes
        arguments = CallSignature(function, context=Context, scope=scope)
        with suppress(UnresolvedAnnotation):  # of a class that is defined below; a worker checks it when it starts
            arguments.check(partial(can_store, self.codec))
        task: Task[..., Any, Any] = Task(
            self,
            function,
            arguments,
            is_async=inspect.iscoroutinefunction(function),
            options=options,
            type=options.get("type") or self._tasks.default_type(function),
        )
        self._tasks.add(task, function)
        self._schedules = {name: spec for name, spec in self._schedules.items() if spec.type != task.type}
        return task
