"""A harness for testing tasks: runs a harbor's jobs in the test's thread, on an in-memory store with a manual clock."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, get_args, overload

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.ids import new_token
from taskharbor.core.model import payload_context
from taskharbor.core.results import JobFilter, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.open_store import OpenStore
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.harness_store import HarnessStore
from taskharbor.worker.context import HandlerServices
from taskharbor.worker.execution import Execution
from taskharbor.worker.executor import Executor
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.lifespan import FINISHED, astep, ended, yielded
from taskharbor.worker.prefetch import Prefetch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from contextvars import Context
    from datetime import datetime

    from taskharbor.core.durations import Duration
    from taskharbor.core.model import Claim, Job, Progress
    from taskharbor.core.outcome import Outcome
    from taskharbor.drivers.base import Driver
    from taskharbor.harbor import Harbor
    from taskharbor.runtime import AsyncObserver, AsyncWork
    from taskharbor.tasks import Task

P = ParamSpec("P")
Step = Literal["claim", "run", "settle"]
LEASE: Final = timedelta(seconds=30)
MAX_ATTEMPTS_PER_DRAIN: Final = 10_000
"""A drain that runs more attempts than this fails the test: most likely a task enqueues itself."""


class InlineExecutor:
    """A worker's executor for the tasks of *harbor* that runs one attempt at a time."""

    def __init__(self, harbor: Harbor, state: Any) -> None:
        self._driver = harbor.driver
        self._runtime = _InlineRuntime(harbor.driver)
        self._codec = harbor.codec
        handlers = HandlerRegistry(harbor.middleware)
        for task in harbor.tasks.values():
            for each in task.types:
                handlers.register(each, task.handler(), task.retry or harbor.policy)
        services = HandlerServices(
            harbor.driver, harbor.codec, save=self._save_progress, state=state, redact=harbor.redact
        )
        prefetch = Prefetch(self._runtime, concurrency=1, limit=0, lease=LEASE)
        self._executor = Executor(self._runtime, handlers, self, services, prefetch=prefetch)
        self._execution: Execution | None = None
        self.outcome: Outcome | None = None

    @property
    def is_completed(self) -> bool:
        """Whether the handler settled its job itself."""
        return self._execution is not None and self._execution.is_completed

    def start(self, claim: Claim) -> Coroutine[Any, Any, None] | None:
        """Run a sync handler to its end; return the coroutine of an async one for the caller to run."""
        self.outcome, self._runtime.work = None, None
        claim.job.use_codec(self._codec)
        self._execution = Execution(claim, ends_at=inf, times_out_at=None)
        self._executor.start([self._execution])
        return self._runtime.work

    def put(self, _execution: Execution, outcome: Outcome | None) -> None:
        """Keep the outcome, as the recorder of a worker would record it."""
        self.outcome = outcome

    def _save_progress(self, execution: Execution, progress: Progress) -> None:
        self._driver.save_progress([(execution.claim.lease, progress)])


class _InlineRuntime(ThreadRuntime):
    """A runtime that runs sync work immediately in the calling thread and leaves coroutines to the caller."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(sync_threads=1)
        self._driver = driver
        self.work: Coroutine[Any, Any, None] | None = None

    def now(self) -> datetime:
        return self._driver.inspector.now()

    def monotonic(self) -> float:
        return self.now().timestamp()  # time passes only if the test advances it

    def run_sync(self, work: Callable[[], None], on_idle: Callable[[], None]) -> None:
        work()
        on_idle()

    def run_async(self, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:  # noqa: ARG002  nothing cancels it
        [(self.work, _)] = works


@contextmanager
def harness(harbor: Harbor) -> Iterator[Harness]:
    """Replace the store and clock of *harbor* with an in-memory store and a manual clock inside the block."""
    clock = ManualClock()
    driver = HarnessStore(clock=clock)
    store = OpenStore(driver, harbor.make_client(driver, clock=clock), clock=clock, warns=True)
    with harbor.using_store(store):
        harbor.scheduler().put(harbor.schedules.values())
        try:
            yield Harness(harbor, driver, clock)
        finally:
            store.close()


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One attempt: its job, the status the job has afterwards, and the error if the attempt failed."""

    job: Job
    status: Status
    error: str | None


class DrainLimitExceeded(AssertionError):
    """Raised when jobs are still due after `MAX_ATTEMPTS_PER_DRAIN` attempts in one drain."""

    def __str__(self) -> str:
        return f"jobs are still due after {MAX_ATTEMPTS_PER_DRAIN:,} attempts in one drain; does a task enqueue itself?"


class EventLoopRunning(AssertionError):
    """Raised when `drain` must run async code in a thread whose event loop is running."""

    def __str__(self) -> str:
        return "drain() cannot run async code while an event loop is running in this thread; use await adrain()"


class Harness:
    """A harbor under test. Jobs run only in `drain`, and time passes only in `advance`."""

    def __init__(self, harbor: Harbor, driver: HarnessStore, clock: ManualClock) -> None:
        self.harbor = harbor
        self.driver = driver
        self.clock = clock
        self._crashes_after: Step | None = None
        self.run_coroutine: Callable[[Coroutine[Any, Any, Any]], Any] | None = None
        """How `drain` runs async code; by default on an event loop of its own."""

    def enqueued(self, task: Task[..., Any, Any] | None = None) -> list[Job]:
        """Return the jobs of *task*, or of all tasks, in any status, oldest first."""
        found = self.driver.inspector.find(JobFilter(), limit=MAX_ATTEMPTS_PER_DRAIN).jobs
        jobs = self.driver.inspector.get([job.id for job in reversed(found)]).values()
        return [job for job in jobs if task is None or job.type in task.types]

    @overload
    def assert_enqueued(self, task: Task[..., Any, Any], /) -> Job: ...
    @overload
    def assert_enqueued(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> Job: ...
    def assert_enqueued(self, task: Task[..., Any, Any], /, *args: Any, **kwargs: Any) -> Job:
        """Return the newest job for this call of *task*, or raise an AssertionError that lists what was enqueued.

        Without arguments, any call of *task* is meant.
        """
        found = self._jobs_for(task, args, kwargs)
        assert found, f"no such call of {task.type} was enqueued; {self._all_calls()}"  # noqa: S101  it is an assertion
        return found[-1]

    @overload
    def refute_enqueued(self, task: Task[..., Any, Any], /) -> None: ...
    @overload
    def refute_enqueued(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def refute_enqueued(self, task: Task[..., Any, Any], /, *args: Any, **kwargs: Any) -> None:
        """Raise an AssertionError if this call of *task*, or any without arguments, was enqueued."""
        found = self._jobs_for(task, args, kwargs)
        assert not found, f"this call of {task.type} was enqueued, as job {found[-1].id}"  # noqa: S101  as above

    def advance(self, by: Duration | None = None, **span: float) -> None:
        """Advance the clock by seconds, by a timedelta, or by its arguments: ``advance(hours=1)``."""
        self.clock.advance(timedelta(**span) if by is None else by)

    @contextmanager
    def crash_after(self, step: Step) -> Iterator[None]:
        """Simulate a worker crash in each drain inside the block: after claiming a job, running it, or settling it.

        The job runs again when its lease has expired: `advance` by 30 seconds and drain again.
        """
        if step not in get_args(Step):
            rule = f"must be one of {', '.join(get_args(Step))}"
            raise UsageError(Problem(field="step", value=repr(step), rule=rule))
        self._crashes_after = step
        try:
            yield
        finally:
            self._crashes_after = None

    def drain(self) -> list[AttemptResult]:
        """Run due jobs in this thread until none are due; return their attempts. Handler errors are recorded."""
        results: list[AttemptResult] = []
        with closing(_Loop(self.run_coroutine)) as loop, self._state(loop) as state:
            executor = InlineExecutor(self.harbor, state)
            for claim in self._claims():
                if (work := executor.start(claim)) is not None:
                    loop.run(work, copy_context())
                if not self._settle(executor, claim, results):
                    break
        return results

    async def adrain(self) -> list[AttemptResult]:
        """Do the same inside an event loop: async handlers run on the loop, sync handlers in a thread."""
        results: list[AttemptResult] = []
        async with self._astate() as state:
            executor = InlineExecutor(self.harbor, state)
            for claim in self._claims():
                if (work := await asyncio.to_thread(executor.start, claim)) is not None:
                    await asyncio.get_running_loop().create_task(work)
                if not self._settle(executor, claim, results):
                    break
        return results

    def _claims(self) -> Iterator[Claim]:
        """Yield due jobs, one at a time, until none are due or the worker crashes."""
        scheduler = self.harbor.scheduler()
        for _ in range(MAX_ATTEMPTS_PER_DRAIN):
            scheduler.tick()
            self.driver.maintenance.expire(limit=MAX_ATTEMPTS_PER_DRAIN)
            claim = self._claim()
            if claim is None or self._crashes_after == "claim":
                return
            yield claim
        raise DrainLimitExceeded

    def _claim(self) -> Claim | None:
        for queue in self.driver.inspector.queues():
            options: dict[str, Any] = {
                "token": new_token(),
                "worker": "harness",
                "lease": LEASE,
                "overdue_after": timedelta(0),
            }
            for claim in self.driver.reserve(queue.name, limit=1, **options):
                return claim
        return None

    def _settle(self, executor: InlineExecutor, claim: Claim, results: list[AttemptResult]) -> bool:
        """Record the outcome of an attempt; return False if the worker crashed."""
        if self._crashes_after == "run":
            return False
        outcome = executor.outcome
        [answer] = self.driver.settle([Settlement(claim.lease, outcome)]) if outcome is not None else [None]
        if isinstance(answer, Settled):
            failure = None if outcome is None or outcome.recorded_failure is None else str(outcome.recorded_failure)
            results.append(AttemptResult(claim.job, answer.status, failure))
        elif executor.is_completed:
            results.append(AttemptResult(claim.job, Status.SUCCEEDED, None))
        return self._crashes_after != "settle"

    @contextmanager
    def _state(self, loop: _Loop) -> Iterator[Any]:
        lifespan: Any = self.harbor.start_lifespan()
        is_async = inspect.isasyncgen(lifespan)
        try:
            yield yielded(loop.run(astep(lifespan)) if is_async else next(lifespan, FINISHED), lifespan.__name__)
        finally:
            ended(loop.run(astep(lifespan)) if is_async else next(lifespan, FINISHED), lifespan.__name__)

    @asynccontextmanager
    async def _astate(self) -> AsyncIterator[Any]:
        lifespan: Any = self.harbor.start_lifespan()
        is_async = inspect.isasyncgen(lifespan)
        try:
            yield yielded(await astep(lifespan) if is_async else next(lifespan, FINISHED), lifespan.__name__)
        finally:
            ended(await astep(lifespan) if is_async else next(lifespan, FINISHED), lifespan.__name__)

    def _jobs_for(self, task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Job]:
        if not args and not kwargs:
            return self.enqueued(task)
        codec = self.harbor.codec
        wanted = codec.digest(task.arguments.pack(args, kwargs))
        return [job for job in self.enqueued(task) if codec.digest(_decode(self.harbor, job)) == wanted]

    def _all_calls(self) -> str:
        calls = [f"{job.type}({_decode(self.harbor, job)!r})" for job in self.enqueued()]
        found = f"enqueued: {', '.join(calls)}" if calls else "nothing was enqueued"
        uncommitted = self.driver.uncommitted
        return f"{found}; jobs in transactions that were not committed: {uncommitted}" if uncommitted else found


def _decode(harbor: Harbor, job: Job) -> Any:
    return harbor.codec.decode(job.payload, context=payload_context(job.id, job.type))


class _Loop:
    """An event loop for this thread, created for the first coroutine and reused for later ones."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any] | None = None) -> None:
        self._run = run
        self._runner: asyncio.Runner | None = None

    def run(self, work: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
        if self._run is not None:
            return self._run(work)
        if asyncio._get_running_loop() is not None:  # noqa: SLF001  get_running_loop raises
            work.close()
            raise EventLoopRunning
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work, context=context)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
