"""For the tests of people who use a harbor: their tasks on a store in memory, under a clock of theirs."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec

from taskharbor.core.ids import new_token
from taskharbor.core.model import payload_context
from taskharbor.core.results import JobFilter, Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.harbor import OpenStore
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.clock import ManualClock
from taskharbor.worker.context import HandlerServices
from taskharbor.worker.execution import Execution
from taskharbor.worker.executor import Executor
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.lifespan import FINISHED, astep, ended, yielded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from contextvars import Context
    from datetime import datetime

    from taskharbor.core.model import Claim, Job, Progress
    from taskharbor.core.outcome import Outcome
    from taskharbor.drivers.base import Driver, SettleAnswer
    from taskharbor.harbor import Harbor
    from taskharbor.runtime import AsyncWork
    from taskharbor.tasks import Task

P = ParamSpec("P")
Step = Literal["claim", "run", "settle"]
LEASE: Final = timedelta(seconds=30)
MAX_ATTEMPTS_PER_DRAIN: Final = 10_000
"""Attempts in one drain, after which something must be wrong."""


class InlineExecutor:
    """The executor of a worker, with the tasks of *harbor*, and one attempt in hand."""

    def __init__(self, harbor: Harbor, state: Any) -> None:
        self._driver = harbor.driver
        self._here = _Here(harbor.driver)
        handlers = HandlerRegistry()
        for task in harbor.tasks.values():
            for each in task.types:
                handlers.register(each, task.handler(), task.retry or harbor.policy)
        services = HandlerServices(harbor.driver, harbor.codec, save=self._note, state=state)
        self._executor = Executor(self._here, handlers, self, services)
        self._hand: Execution | None = None
        self.outcome: Outcome | None = None

    @property
    def is_completed(self) -> bool:
        """Whether the handler settled its job itself."""
        return self._hand is not None and self._hand.is_completed

    def start(self, claim: Claim) -> Coroutine[Any, Any, None] | None:
        """Run a plain attempt to its end; return an async one, to be run by the caller."""
        self.outcome, self._here.work = None, None
        self._hand = Execution(claim, ends_at=inf, times_out_at=None)
        self._executor.start([self._hand])
        return self._here.work

    def put(self, _execution: Execution, outcome: Outcome | None) -> None:
        """Keep the outcome, as the recorder of a worker would record it."""
        self.outcome = outcome

    def _note(self, execution: Execution, progress: Progress) -> None:
        self._driver.save_progress([(execution.claim.lease, progress)])


class _Here(ThreadRuntime):
    """A runtime that does at once what it is asked, and leaves coroutines to the caller."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(sync_threads=1)
        self._driver = driver
        self.work: Coroutine[Any, Any, None] | None = None

    def now(self) -> datetime:
        return self._driver.inspector.now()

    def run_sync(self, work: Callable[[], None]) -> None:
        work()

    def run_async(self, works: Sequence[AsyncWork]) -> list[_Here]:
        [(self.work, _)] = works
        return [self]

    def cancel(self) -> None:
        """Nobody asks for it: there is no timeout, no heartbeat and no shutdown here."""


@contextmanager
def harness(harbor: Harbor) -> Iterator[Harness]:
    """Swap a store in memory and a manual clock in for all that belongs to *harbor*."""
    clock = ManualClock()
    driver = _TestStore(clock=clock)
    store = OpenStore(driver, harbor.make_client(driver, clock=clock), joins=False)
    with harbor.using_store(store):
        harbor.scheduler().put(harbor.schedules.values())
        try:
            yield Harness(harbor, driver, clock)
        finally:
            store.close()


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One attempt: its job, the state that it left the job in, and what went wrong."""

    job: Job
    status: Status
    error: str | None


class DrainLimitExceeded(AssertionError):
    """A drain found more and more to do."""

    def __str__(self) -> str:
        return f"after {MAX_ATTEMPTS_PER_DRAIN:,} attempts there were still jobs due: does a task enqueue itself?"


class EventLoopRunning(AssertionError):
    """A plain drain met something async inside of an event loop."""

    def __str__(self) -> str:
        return "an event loop is running here, so that nothing async can be run to its end: await adrain() instead"


class Harness:
    """A harbor under test. Nothing happens by itself: jobs run in `drain`, and time passes in `advance`."""

    def __init__(self, harbor: Harbor, driver: MemoryDriver, clock: ManualClock) -> None:
        self.harbor = harbor
        self.driver = driver
        self.clock = clock
        self._crashes_after: Step | None = None

    def enqueued(self, task: Task[..., Any, Any] | None = None) -> list[Job]:
        """Return the jobs of *task*, or all, oldest first, whatever became of them."""
        found = self.driver.inspector.find(JobFilter(), limit=MAX_ATTEMPTS_PER_DRAIN).jobs
        jobs = self.driver.inspector.get([job.id for job in reversed(found)]).values()
        return [job for job in jobs if task is None or job.type in task.types]

    def assert_enqueued(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Return the job for this very call of *task*; an AssertionError shows what was enqueued instead."""
        found = self._jobs_for(task, args, kwargs)
        assert found, f"no such call of {task.type} was enqueued; {self._all_calls()}"  # noqa: S101  it is an assertion
        return found[-1]

    def refute_enqueued(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Raise an AssertionError if this call of *task* was enqueued."""
        found = self._jobs_for(task, args, kwargs)
        assert not found, f"this call of {task.type} was enqueued, as job {found[-1].id}"  # noqa: S101  as above

    def advance(self, by: timedelta | None = None, **span: float) -> None:
        """Let time pass: ``advance(hours=1)``, or by a timedelta."""
        self.clock.advance(timedelta(**span) if by is None else by)

    @contextmanager
    def crash_after(self, step: Step) -> Iterator[None]:
        """Let the worker die in drains inside: after it has claimed a job, run its handler, or settled it.

        The job comes back when its lease is over: `advance` by half a minute, and drain again.
        """
        self._crashes_after = step
        try:
            yield
        finally:
            self._crashes_after = None

    def drain(self) -> list[AttemptResult]:
        """Run what is due, in this thread, until nothing is, and return what ran. Errors of handlers are recorded."""
        ran: list[AttemptResult] = []
        with closing(_Loop()) as loop, self._state(loop) as state:
            bench = InlineExecutor(self.harbor, state)
            for claim in self._claims():
                if (work := bench.start(claim)) is not None:
                    loop.run(work, copy_context())
                if not self._settled(bench, claim, ran):
                    break
        return ran

    async def adrain(self) -> list[AttemptResult]:
        """Do the same inside of an event loop: async tasks run on it, plain ones in a thread."""
        ran: list[AttemptResult] = []
        async with self._astate() as state:
            bench = InlineExecutor(self.harbor, state)
            for claim in self._claims():
                if (work := await asyncio.to_thread(bench.start, claim)) is not None:
                    await asyncio.get_running_loop().create_task(work)
                if not self._settled(bench, claim, ran):
                    break
        return ran

    def _claims(self) -> Iterator[Claim]:
        """Give what is due, a job at a time, until nothing is or the worker dies."""
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
            asked: dict[str, Any] = {
                "token": new_token(),
                "worker": "harness",
                "lease": LEASE,
                "overdue_after": timedelta(0),
            }
            for claim in self.driver.reserve(queue.name, limit=1, **asked):
                return claim
        return None

    def _settled(self, bench: InlineExecutor, claim: Claim, ran: list[AttemptResult]) -> bool:
        """Record what became of an attempt; False where the worker died."""
        if self._crashes_after == "run":
            return False
        outcome = bench.outcome
        [answer] = self.driver.settle([Settlement(claim.lease, outcome)]) if outcome is not None else [None]
        if isinstance(answer, Settled):
            failure = None if outcome is None or outcome.recorded_failure is None else str(outcome.recorded_failure)
            ran.append(AttemptResult(claim.job, answer.status, failure))
        elif bench.is_completed:
            ran.append(AttemptResult(claim.job, Status.SUCCEEDED, None))
        return self._crashes_after != "settle"

    @contextmanager
    def _state(self, loop: _Loop) -> Iterator[Any]:
        made: Any = self.harbor.start_lifespan()
        is_async = inspect.isasyncgen(made)
        try:
            yield yielded(loop.run(astep(made)) if is_async else next(made, FINISHED), made.__name__)
        finally:
            ended(loop.run(astep(made)) if is_async else next(made, FINISHED), made.__name__)

    @asynccontextmanager
    async def _astate(self) -> AsyncIterator[Any]:
        made: Any = self.harbor.start_lifespan()
        is_async = inspect.isasyncgen(made)
        try:
            yield yielded(await astep(made) if is_async else next(made, FINISHED), made.__name__)
        finally:
            ended(await astep(made) if is_async else next(made, FINISHED), made.__name__)

    def _jobs_for(self, task: Task[..., Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Job]:
        codec = self.harbor.codec
        wanted = codec.digest(task.arguments.pack(args, kwargs))
        return [job for job in self.enqueued(task) if codec.digest(_data(self.harbor, job)) == wanted]

    def _all_calls(self) -> str:
        calls = [f"{job.type}({_data(self.harbor, job)!r})" for job in self.enqueued()]
        return f"there are: {', '.join(calls)}" if calls else "nothing was"


class _TestStore(MemoryDriver):
    """Memory that takes a user's transaction for its own: what happens in it happens at once."""

    def join(self, _connection: object, *, notify: bool = True) -> _TestStore:  # noqa: ARG002  it rings at once
        return self

    def ajoin(self, _connection: object, *, notify: bool = True) -> _Awaited:  # noqa: ARG002  as above
        return _Awaited(self)


class _Awaited:
    """The same, for a transaction of an async connection."""

    def __init__(self, driver: MemoryDriver) -> None:
        self._driver = driver

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        return self._driver.settle(settlements)


def _data(harbor: Harbor, job: Job) -> Any:
    return harbor.codec.decode(job.payload, context=payload_context(job.id, job.type))


class _Loop:
    """An event loop of this thread, made when something async is to be run, and kept for what follows."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, work: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001  the public one raises, and hides this error's cause
            work.close()
            raise EventLoopRunning
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work, context=context)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
