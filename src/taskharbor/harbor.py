"""The way in for most people: tasks, schedules, workers and results around one store."""

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
    """What a harbor has open: the driver, who accepts jobs, and who waits for them. *joins*: users' transactions."""

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
    """What `Harbor.task` with options returns."""

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
    """Tasks and the store that their jobs are kept in.

    *store* is its URL, or a driver of yours; without one TASKHARBOR_URL names it. Nothing is
    opened before it is needed. *policy* says how tasks are tried again that have no *retry* of their
    own. *publisher* is what workers give the `DeadTaskEvent` of each death to. *notify* lets a job that joins
    your transaction wake a worker as you commit.

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
        self._given, self.policy, self._notify = store, policy, notify
        self.hooks, self.publisher = tuple(hooks), publisher
        self._opening = threading.Lock()
        self._store: OpenStore | None = None
        self._lent: OpenStore | None = None
        self._tasks: dict[str, Task[..., Any, Any]] = {}
        self._schedules: dict[str, ScheduleSpec] = {}
        self._lifespan: Lifespan | None = None

    @property
    def driver(self) -> Driver:
        """The store itself."""
        return self.store.driver

    @property
    def client(self) -> Client:
        """Accepts jobs of any type, without a task."""
        return self.store.client

    @property
    def watcher(self) -> JobWatcher:
        """Waits for jobs to end."""
        return self.store.watcher

    @property
    def store(self) -> OpenStore:
        """What is open; it is opened now if it was not."""
        if (store := self._lent or self._store) is not None:
            return store
        with self._opening:
            if self._store is None:
                self._store = self._opened()
            return self._store

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """The tasks, by type."""
        return dict(self._tasks)

    @property
    def queues(self) -> list[str]:
        """The queues that tasks name, and the default one."""
        return sorted({"default", *(task.queue for task in self._tasks.values())})

    @property
    def schedules(self) -> Mapping[str, ScheduleSpec]:
        """The schedules that were defined here, by name."""
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
        """Make a task of a function: its calls can be stored as jobs from then on, and workers run them.

        Bare, or with options. Parameters must be annotated. A first one annotated `Context` is filled in
        by the worker. The type under which jobs are stored is the function's name, unless *type* says
        another; *aliases* are names that jobs may still be stored under.
        """
        if function is None:
            check_options(options, TaskOptions)
            return lambda function: self._add(function, options)
        return self._add(function, {})

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
        """Let a task, which needs no arguments, run again and again; whatever processes run, once each time.

        It is stored when a worker of this harbor starts. `ScheduleSpec` says what the options mean.
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
                rule = f"a schedule of {other.type!r} has it; give one of them another with name=…"
                raise UsageError(Problem(field="name", value=repr(spec.name), rule=rule))
            return task

        return define

    def lifespan(self, function: L) -> L:
        """Let workers run *function* up to its ``yield`` before their first job, and to its end after their last.

        What it yields is ``ctx.state``. It may be async.
        """
        check_lifespan(function)
        if self._lifespan is not None:
            rule = "a harbor has one; let it make ready all that handlers need"
            raise UsageError(Problem(field="lifespan", value="defined already", rule=rule))
        self._lifespan = function
        return function

    def worker(
        self, *, queues: Queues | None = None, hooks: Sequence[Hook] = (), **options: Unpack[WorkerOptions]
    ) -> Worker:
        """Return a worker for all tasks; without *queues*, of all that they name. It takes the options of `Worker`."""
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
        """Return what fires the schedules in the store; every worker has one."""
        return Scheduler(self.driver, codec=self.codec, policy=self.policy)

    def register(self, worker: Worker) -> None:
        """Let *worker* run the tasks."""
        for task in self._tasks.values():
            for each in task.types:
                worker.register(each, task.handler(), policy=task.retry or self.policy)

    def enqueue_many(self, calls: Iterable[Call[R]], *, connection: Any = None) -> list[Handle[R]]:
        """Store calls in one statement, in the transaction of *connection* if given; all or none for a bad one."""
        made = check_calls(self, calls)
        client = self.client if connection is None else self._joined_client(connection)
        return _handles(self, made, client.enqueue_many([call.request for call in made]))

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[Handle[R]]:
        """Store calls in one statement, without blocking the event loop."""
        made = check_calls(self, calls)
        return _handles(self, made, await self.client.aenqueue_many([call.request for call in made]))

    def handle(self, job_id: JobId) -> Handle[Any]:
        """Return the handle on a job, whatever its type. Its result comes as it was stored."""
        return Handle(self, job_id)

    def enqueue_request(self, request: JobRequest, connection: Any = None) -> Enqueued:
        """Store a job, in the transaction of *connection* if that is not None."""
        if connection is not None:
            return self._joined_client(connection).enqueue(request)
        return (self._lent or self._store or self.store).client.enqueue(request)

    async def aenqueue_request(self, request: JobRequest, connection: Any = None) -> Enqueued:
        """Store a job without blocking the event loop."""
        if connection is None or not self.store.joins:
            return await self.client.aenqueue(request)
        if not unwrap.is_async(connection):
            return self._joined_client(connection).enqueue(request)
        joined = self._join("ajoin", await unwrap.aunwrap(connection))
        return await self.client.aenqueue_in(joined, request)

    def testing(self) -> AbstractContextManager[Harness]:
        """Swap a store in memory and a clock of yours in for everything that belongs to this harbor, for a while."""
        from taskharbor.testing.harness import harness  # noqa: PLC0415  only tests need it

        return harness(self)

    @contextmanager
    def using_store(self, store: OpenStore) -> Iterator[None]:
        """Use *store* instead of this harbor's own, for a while; `close` does not touch it."""
        before, self._lent = self._lent, store
        try:
            yield
        finally:
            self._lent = before

    def use_store(self, store: str | Driver) -> None:
        """Keep jobs in another store from now on."""
        self.close()
        self._given = store

    def close(self) -> None:
        """Close the store, and end what waits for it. It is opened anew if it is needed again."""
        with self._opening:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
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

    def _opened(self) -> OpenStore:
        given = self._given
        driver = (
            connect(given or Settings.from_env().require_url()) if given is None or isinstance(given, str) else given
        )
        return OpenStore(driver, self.make_client(driver))

    def make_client(self, inserter: Inserter, *, clock: Clock | None = None) -> Client:
        """Return a client that stores jobs through *inserter* as this harbor does."""
        return Client(inserter, codec=self.codec, policy=self.policy, hooks=self.hooks, clock=clock)

    def start_lifespan(self) -> Iterator[Any] | AsyncIterator[Any]:
        """Return a run of the lifespan, not begun; without one, of one that makes nothing ready."""
        return (each for each in [None]) if self._lifespan is None else self._lifespan()

    def _joined_client(self, connection: Any) -> Client:
        if not self.store.joins:
            return self.client
        if unwrap.is_async(connection):
            rule = "it is async: await aenqueue(…) instead"
            raise UsageError(Problem(field="connection", value=type(connection).__name__, rule=rule))
        return self.make_client(self._join("join", unwrap.unwrap(connection)))

    def _join(self, way: str, raw: Any) -> Any:
        return unwrap.join(self.driver, way, raw, notify=self._notify)

    def _add(self, function: Any, options: TaskOptions) -> Task[..., Any, Any]:
        is_inner = "<locals>" in getattr(function, "__qualname__", "")
        scope = sys._getframe(2).f_locals if is_inner else None  # noqa: SLF001  where its annotations are defined
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
            if (other := self._owner(each)) is not None and not _is_same(other, task):
                rule = f"{other.__module__}.{other.__qualname__} has it; give one of them another with type=…"
                raise UsageError(Problem(field="type", value=repr(each), rule=rule))
        self._tasks[task.type] = task
        self._schedules = {name: spec for name, spec in self._schedules.items() if spec.type != task.type}
        return task

    def _owner(self, type: str) -> Any:
        return next((task for task in self._tasks.values() if type in task.types), None)


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether both are the same function, defined anew as its module was loaded again."""
    return bool((one.__module__, one.__qualname__) == (other.__module__, other.__qualname__))


def _handles(harbor: Harbor, calls: Sequence[Call[R]], enqueued: Sequence[Enqueued]) -> list[Handle[R]]:
    return [
        Handle(harbor, each.id, arguments=call.task.arguments, existed=each.existed)
        for call, each in zip(calls, enqueued, strict=True)
    ]
