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


def test_two_outcomes_of_one_job_are_recorded_in_two_calls() -> None:
    driver, runtime, first, second = claimed_twice()
    slots = slots_without_prefetch(runtime, concurrency=2, queues={"default": 2})
    stages = StageRecorder()
    recorder = Recorder(runtime, driver, slots, stages.loops, stages.hooks, statistics=AttemptStatistics(runtime))
    recorder.put(first, Outcome.ack())
    recorder.put(second, Outcome.ack())

    assert recorder.tick() == timedelta(0)
    assert [str(answer) for _, _, answer in stages.answers] == [
        f"job {first.claim.job.id} is leased under another token"
    ]

    recorder.tick()

    assert stages.answers[1][2].status == "SUCCEEDED"


def test_an_attempt_is_stopped_when_its_job_is_claimed_again() -> None:
    _, runtime, first, second = claimed_twice()
    slots = slots_without_prefetch(runtime, concurrency=2, queues={"default": 2})
    slots.fill("default", slots.acquire("default", 1), [first])

    slots.mark_lost({second.claim.job.id})

    assert first.stop_reason is StopReason.LOST


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
