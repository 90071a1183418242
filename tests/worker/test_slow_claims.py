"""A claim whose reply was slow has little of its lease left when it arrives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskharbor import Client, JobRequest, MemoryDriver
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.testing.simulation.runtime import SimulatedRuntime
from taskharbor.testing.simulation.world import Process, World
from taskharbor.worker.execution import Execution
from taskharbor.worker.heartbeats import LeaseHeartbeat
from taskharbor.worker.refusals import RefusalNotes
from taskharbor.worker.timeouts import TimeoutMonitor
from tests.support.stages import StageRecorder, polling_source, slots_without_prefetch, worker_config

LEASE = timedelta(seconds=5)


def test_the_heartbeat_is_late_for_a_claim_that_was_slow_to_arrive_and_not_for_a_fresh_one() -> None:
    driver = MemoryDriver()
    Client(driver).enqueue(JobRequest(type="greet"))
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE)
    runtime = SimulatedRuntime(Process(World(1), "w"), failed=lambda _part, _error: None)
    slots = slots_without_prefetch(runtime, concurrency=2, queues={"default": 2})
    stages = StageRecorder()
    timeouts = TimeoutMonitor(runtime, slots, stages.loops, stages.stop, lease=LEASE)
    heartbeat = LeaseHeartbeat(
        runtime,
        driver,
        slots,
        timeouts=timeouts,
        acks=None,
        failures=stages.failures,
        refusals=RefusalNotes(stages.loops),
        config=worker_config(LEASE),
    )
    heartbeat.tick()

    now = runtime.monotonic()

    assert heartbeat.is_due_before([Execution(claim, ends_at=now + 1, times_out_at=None)])
    assert not heartbeat.is_due_before([Execution(claim, ends_at=now + 4.75, times_out_at=None)])


class ReplyLostOnce(MemoryDriver):
    """A driver whose first reserve commits, and loses its reply."""

    is_lost = False

    def reserve(self, *args: Any, **kwargs: Any) -> Any:
        claims = super().reserve(*args, **kwargs)
        if not self.is_lost:
            self.is_lost = True
            raise StoreUnavailable("cut")
        return claims


def test_a_lease_that_was_read_back_counts_from_the_call_whose_reply_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ReplyLostOnce()
    Client(driver).enqueue(JobRequest(type="greet"))
    runtime = SimulatedRuntime(Process(World(1), "w"), failed=lambda _part, _error: None)
    slots, stages = slots_without_prefetch(runtime, concurrency=1, queues={"default": 1}), StageRecorder()
    source = polling_source(runtime, driver, slots, stages, worker_config(LEASE), types=["greet"])
    called_at = runtime.monotonic()
    source.tick()
    monkeypatch.setattr(runtime, "monotonic", lambda: called_at + 3)

    source.tick()

    [execution] = stages.started_jobs
    assert execution.ends_at == pytest.approx(called_at + 4.75)
