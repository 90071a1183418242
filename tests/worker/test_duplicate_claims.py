"""A worker that lost a job may claim it again while the first attempt still runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from taskharbor import Client, JobRequest, MemoryDriver
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.simulation.runtime import SimulatedRuntime
from taskharbor.testing.simulation.world import Process, World
from taskharbor.worker.execution import Execution, StopReason
from taskharbor.worker.recorder import Recorder
from taskharbor.worker.statistics import AttemptStatistics
from tests.support.stages import StageRecorder, slots_without_prefetch

LEASE: Final = timedelta(seconds=5)


def test_of_two_outcomes_of_one_job_in_a_call_the_valid_one_is_recorded() -> None:
    driver, runtime, first, second = claimed_twice()
    slots = slots_without_prefetch(runtime, concurrency=2, queues={"default": 2})
    stages = StageRecorder()
    recorder = Recorder(runtime, driver, slots, stages.loops, stages.hooks, statistics=AttemptStatistics(runtime))
    recorder.put(first, Outcome.ack())
    recorder.put(second, Outcome.ack())

    recorder.tick()

    [lost, recorded] = [answer for _, _, answer in stages.answers]
    assert str(lost) == f"job {first.claim.job.id} is leased under another token"
    assert recorded.status == "SUCCEEDED"


def test_an_attempt_is_stopped_when_its_job_is_claimed_again() -> None:
    _, runtime, first, second = claimed_twice()
    slots = slots_without_prefetch(runtime, concurrency=2, queues={"default": 2})
    slots.fill("default", slots.acquire("default", 1), [first])

    slots.fill("default", slots.acquire("default", 1), [second])

    assert (first.stop_reason, second.stop_reason) == (StopReason.LOST, None)


def test_an_attempt_is_stopped_if_an_older_one_of_its_job_ended_after_its_claim() -> None:
    _, runtime, first, second = claimed_twice()
    third = Execution(second.claim, ends_at=1e9, times_out_at=None)
    slots = slots_without_prefetch(runtime, concurrency=3, queues={"default": 3})
    for each in (first, second):
        slots.fill("default", slots.acquire("default", 1), [each])

    slots.remove([first])
    slots.fill("default", slots.acquire("default", 1), [third])
    slots.remove([third, second])

    assert (second.stop_reason, third.stop_reason) == (StopReason.LOST, None)
    assert slots.is_full is False
    assert len(slots) == 0


def test_an_attempt_that_has_ended_is_forgotten() -> None:
    _, runtime, first, second = claimed_twice()
    slots = slots_without_prefetch(runtime, concurrency=1, queues={"default": 1})
    for each in (first, second):
        slots.fill("default", slots.acquire("default", 1), [each])
        slots.remove([each])

    assert first.stop_reason is None


def claimed_twice() -> tuple[MemoryDriver, SimulatedRuntime, Execution, Execution]:
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)
    Client(driver, clock=clock).enqueue(JobRequest(type="greet"))
    executions = []
    for _ in range(2):
        clock.advance(LEASE)
        [claim] = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE)
        executions.append(Execution(claim, ends_at=1e9, times_out_at=None))
    runtime = SimulatedRuntime(Process(World(1), "w"), failed=lambda _part, _error: None)
    return driver, runtime, executions[0], executions[1]
