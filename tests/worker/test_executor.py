"""The executor alone, without a worker around it."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import closing
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Client, JobRequest, MemoryDriver
from taskharbor.core.codec import JsonCodec
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.outcome import Outcome, Snooze
from taskharbor.core.states import Event
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker.context import HandlerServices
from taskharbor.worker.execution import Execution, StopReason
from taskharbor.worker.executor import Executor
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.prefetch import Prefetch
from tests.support.manual_worker import TIMEOUT
from tests.support.stages import StageRecorder, no_prefetch
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from taskharbor.core.model import Job
    from taskharbor.runtime import AsyncObserver, AsyncWork
    from tests.support.manual_worker import Rig

MINUTE = timedelta(minutes=1)


class Busy(ThreadRuntime):
    """A runtime whose thread and event loop are busy until `work`."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self._sync: list[Callable[[], None]] = []
        self._async: list[Coroutine[Any, Any, None]] = []

    def run_sync(self, work: Callable[[], None], on_idle: Callable[[], None]) -> None:
        self._sync += [work, on_idle]

    def run_async(self, works: Sequence[AsyncWork], observer: AsyncObserver) -> None:  # noqa: ARG002  none is suspended
        self._async += [work for work, _ in works]

    def work(self) -> None:
        for work in self._sync:
            work()
        for coroutine in self._async:
            asyncio.run(coroutine)


def _run(_job: Job) -> None:
    pytest.fail("the handler ran although it was asked to stop before")


async def _arun(job: Job) -> None:
    _run(job)


@pytest.mark.parametrize("run", [_run, _arun])
@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (StopReason.SHUTDOWN, Outcome.release(bound=None)),
        (StopReason.CANCEL, Outcome.cancel(StopReason.CANCEL.value)),
        (StopReason.LOST, None),
    ],
)
def test_a_handler_that_was_asked_to_stop_before_it_began_does_not_begin(
    run: Callable[[Job], Any], reason: StopReason, outcome: Outcome | None
) -> None:
    driver, runtime = MemoryDriver(), Busy()
    Client(driver).enqueue(JobRequest(type="run"))
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=1, overdue_after=MINUTE)
    execution = Execution(claim, ends_at=inf, times_out_at=None)
    handlers, stages = HandlerRegistry(), StageRecorder()
    handlers.register("run", run)
    services = HandlerServices(driver, JsonCodec(), save=lambda _execution, _progress: None)
    executor = Executor(runtime, handlers, stages, services, prefetch=no_prefetch(runtime, concurrency=1))

    executor.start([execution])
    execution.stop(reason)
    runtime.work()

    assert stages.outcomes == [(execution, outcome)]


def test_a_snooze_counts_from_the_claim_of_a_job_that_waited_before_it_began() -> None:
    driver, runtime = MemoryDriver(), ThreadRuntime(sync_threads=1)
    Client(driver).enqueue(JobRequest(type="nap"))
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=1, overdue_after=MINUTE)
    claimed_at = runtime.monotonic() - timedelta(hours=1).total_seconds()
    until = driver.inspector.now() + timedelta(hours=3)

    def nap(_job: Job) -> None:
        raise Snooze(until=until)

    handlers, stages = HandlerRegistry(), StageRecorder()
    handlers.register("nap", nap)
    services = HandlerServices(driver, JsonCodec(), save=lambda _execution, _progress: None)
    executor = Executor(runtime, handlers, stages, services, prefetch=no_prefetch(runtime, concurrency=1))
    with closing(runtime):
        executor.start([Execution(claim, ends_at=inf, times_out_at=None, claimed_at=claimed_at)])
        wait_until(lambda: bool(stages.outcomes))

    [(_, outcome)] = stages.outcomes
    assert outcome is not None
    assert abs(outcome.delay - timedelta(hours=2)) < MINUTE


def test_waiting_jobs_are_started_again_after_a_start_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, runtime, began = MemoryDriver(), ThreadRuntime(sync_threads=1), list[int]()
    jobs = [Client(driver).enqueue(JobRequest(type="run")).id for _ in range(6)]
    claims = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=6, overdue_after=MINUTE)

    async def run(_job: Job) -> None:
        began.append(len(began))
        await asyncio.sleep(0)

    handlers, stages = HandlerRegistry(), StageRecorder()
    handlers.register("run", run)
    services = HandlerServices(driver, JsonCodec(), save=lambda _execution, _progress: None)
    prefetch = Prefetch(runtime, concurrency=2, limit=6, lease=MINUTE)
    executor = Executor(runtime, handlers, stages, services, prefetch=prefetch)
    take, failures = prefetch.take, [OSError("out of memory")]

    def take_later() -> list[Execution]:
        if began and failures:
            raise failures.pop()
        return take()

    monkeypatch.setattr(prefetch, "take", take_later)
    with closing(runtime):
        executor.start([Execution(claim, ends_at=inf, times_out_at=None) for claim in claims])
        wait_until(lambda: not failures)
        executor.start([])  # as the source does with its next claim
        wait_until(lambda: len(stages.outcomes) == len(jobs))

    assert len(began) == len(jobs)


class Slow(ThreadRuntime):
    """A runtime where a second passes between two looks at the clock."""

    def __init__(self) -> None:
        super().__init__(sync_threads=1)
        self.monotonic = itertools.count().__next__


def test_handlers_that_wait_continue_between_others_that_take_long_and_do_not_wait() -> None:
    driver, runtime, seen = MemoryDriver(), Slow(), list[str]()
    Client(driver).enqueue_many([JobRequest(type="wait"), *[JobRequest(type="run")] * 9])
    claims = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=10, overdue_after=MINUTE)

    async def wait(_job: Job) -> None:
        while seen.count("run") < 9:
            seen.append("continue")
            await asyncio.sleep(0)

    async def run(_job: Job) -> None:
        seen.append("run")

    handlers, stages = HandlerRegistry(), StageRecorder()
    handlers.register("wait", wait)
    handlers.register("run", run)
    services = HandlerServices(driver, JsonCodec(), save=lambda _execution, _progress: None)
    executor = Executor(
        runtime, handlers, stages, services, prefetch=Prefetch(runtime, concurrency=2, limit=10, lease=MINUTE)
    )
    with closing(runtime):
        executor.start([Execution(claim, ends_at=inf, times_out_at=None) for claim in claims])
        wait_until(lambda: len(stages.outcomes) == len(claims))

    assert ("run", "run") not in itertools.pairwise(seen)


def test_a_handler_that_cancels_all_tasks_keeps_no_places_of_those_that_had_not_begun() -> None:
    driver, runtime, began = MemoryDriver(), ThreadRuntime(sync_threads=1), list[JobId]()
    Client(driver).enqueue_many([JobRequest(type="run")] * 6)
    claims = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=6, overdue_after=MINUTE)
    jobs = [claim.job.id for claim in claims]

    async def run(job: Job) -> None:
        began.append(job.id)
        if len(began) == 1:
            for task in asyncio.all_tasks():  # its own, too
                task.cancel()

    handlers, stages = HandlerRegistry(), StageRecorder()
    handlers.register("run", run)
    services = HandlerServices(driver, JsonCodec(), save=lambda _execution, _progress: None)
    prefetch = Prefetch(runtime, concurrency=3, limit=6, lease=MINUTE)
    executor = Executor(runtime, handlers, stages, services, prefetch=prefetch)
    with closing(runtime):
        executor.start([Execution(claim, ends_at=inf, times_out_at=None) for claim in claims])
        wait_until(lambda: len(stages.outcomes) == len(jobs))

    outcomes = {execution.claim.job.id: outcome for execution, outcome in stages.outcomes}
    assert [outcome.event for outcome in map(outcomes.get, jobs) if outcome is not None] == [
        Event.ACK, Event.RETRY, Event.RETRY, Event.ACK, Event.ACK, Event.ACK,
    ]  # fmt: skip
    assert began == [jobs[0], *jobs[3:]]
    assert len(prefetch.admit([execution for execution, _ in stages.outcomes])) == 3  # as many as there are places


def test_a_return_after_the_timeout_is_no_success_even_before_the_next_heartbeat(rig: Rig) -> None:
    [execution] = rig.start()

    rig.runtime.seconds += TIMEOUT.total_seconds()
    rig.end()

    [(_, outcome)] = rig.reported
    assert execution.stop_reason is StopReason.TIMEOUT
    assert outcome is not None
    assert (outcome.event, outcome.failure and outcome.failure.type) == (
        Event.RETRY,
        "taskharbor.JobTimedOut",
    )


def test_a_return_just_before_the_timeout_is_a_success(rig: Rig) -> None:
    rig.start()

    rig.runtime.seconds += TIMEOUT.total_seconds() - 0.001
    rig.end()

    [(_, outcome)] = rig.reported
    assert outcome == Outcome.ack(b'"late"')


class BrokenSpans:
    """Stands for any part of an attempt, around its handler, that raises."""

    def begin(self, _execution: Execution) -> None:
        raise RuntimeError("out of order")


async def _nothing_async(_job: Job) -> None:
    pass


def _nothing(_job: Job) -> None:
    pass


@pytest.mark.parametrize("run", [_nothing, _nothing_async], ids=["sync", "async"])
def test_an_error_before_the_handler_is_the_outcome_and_frees_the_place(run: Callable[[Job], Any]) -> None:
    driver, runtime = MemoryDriver(), Busy()
    ids = [Client(driver).enqueue(JobRequest(type="run")).id for _ in range(2)]
    claims = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=2, overdue_after=MINUTE)
    handlers, stages = HandlerRegistry(), StageRecorder()
    handlers.register("run", run)
    services = HandlerServices(driver, JsonCodec(), save=lambda _execution, _progress: None)
    spans: Any = BrokenSpans()
    prefetch = no_prefetch(runtime, concurrency=1)
    executor = Executor(runtime, handlers, stages, services, prefetch=prefetch, spans=spans)

    executor.start([Execution(claim, ends_at=inf, times_out_at=None) for claim in claims])
    runtime.work()

    outcomes = [(execution.claim.job.id, outcome and outcome.event) for execution, outcome in stages.outcomes]
    assert outcomes == [(job_id, Event.RETRY) for job_id in ids]


def test_a_late_return_of_an_async_handler_is_no_success() -> None:
    driver, runtime = MemoryDriver(), Busy()
    Client(driver).enqueue(JobRequest(type="run", timeout=MINUTE))
    claims = driver.reserve("default", token=new_token(), worker="w", lease=MINUTE, limit=1, overdue_after=MINUTE)

    async def run(_job: Job) -> str:
        [execution] = executions
        execution.times_out_at = runtime.monotonic()  # as if the handler had blocked the event loop for a minute
        return "late"

    handlers, stages = HandlerRegistry(), StageRecorder()
    handlers.register("run", run)
    services = HandlerServices(driver, JsonCodec(), save=lambda _execution, _progress: None)
    executor = Executor(runtime, handlers, stages, services, prefetch=no_prefetch(runtime, concurrency=1))
    executions = [Execution(claim, ends_at=inf, times_out_at=None) for claim in claims]

    executor.start(executions)
    runtime.work()

    [(_, outcome)] = stages.outcomes
    assert outcome is not None
    assert (outcome.event, outcome.failure and outcome.failure.type) == (Event.RETRY, "taskharbor.JobTimedOut")
