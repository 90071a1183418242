"""Whatever a store call raises, every service continues, and all jobs end as they should."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor.client import Client
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.request import JobRequest
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.testing.simulation.queue_service import QueueService
from taskharbor.testing.simulation.run import SimulatedClock
from taskharbor.testing.simulation.runtime import SimulatedRuntime
from taskharbor.testing.simulation.world import Process, World
from taskharbor.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.ids import JobId
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver

LEASE: Final = timedelta(seconds=5)
OUTAGE_SECONDS: Final = 4.0  # shorter than a lease
POLLED: Final = (
    "reserve", "read_back", "settle", "extend", "save_progress", "now", "claim_duty", "expire", "bury", "roll_up",
    "record_worker", "due_schedules", "prune", "prune_audit", "prune_workers", "prune_schedules",
)  # fmt: skip
WITH_MESSAGES: Final = (
    "claim",
    "dispatch",
    "record_dispatch",
    "record_delivery",
    "next_due_in",
    "settle",
    "extend",
    "claim_outbox",
    "settle_outbox",
)
NEEDS: Final = {"read_back": "reserve"}
"""Verbs that must fail too, so that the key is called."""
ERRORS: Final = (RuntimeError("SQLSTATE 58030"), KeyError(b"PENDING"), StoreUnavailable("away"))


class Broken:
    """A driver with one verb that raises for a while, before or after it takes effect."""

    def __init__(self, inner: object, gate: Gate) -> None:
        self._inner, self._gate = inner, gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in {"maintenance", "inspector", "control"}:
            return Broken(found, self._gate)
        return found if not callable(found) else lambda *given, **named: self._gate(name, found, *given, **named)


class Gate:
    def __init__(self, world: World, verb: str, error: Exception, *, commits: bool) -> None:
        self._world, self._verb, self._error, self._commits = world, verb, error, commits
        self.raised = self.answered = 0

    def __call__(self, verb: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._world.spend(0.001)
        is_on = self._world.now < OUTAGE_SECONDS
        self.answered += verb == self._verb and not is_on
        if not is_on or verb not in {self._verb, NEEDS.get(self._verb)}:
            return call(*given, **named)
        self.raised += verb == self._verb
        if self._commits:
            call(*given, **named)
        raise self._error


class Rig:
    """A worker, and with messages an enqueuer, in virtual time, on a store with one verb that raises at first."""

    def __init__(self, verb: str, error: Exception, *, commits: bool, uses_messages: bool) -> None:
        self.world = World(1)
        self.store = MemoryDriver(clock=SimulatedClock(self.world))
        self.gate = Gate(self.world, verb, error, commits=commits)
        driver = cast("Driver", Broken(self.store, self.gate))
        service = QueueService(lambda: self.world.now, Random(1)) if uses_messages else None
        process = Process(self.world, "w1")
        runtime = SimulatedRuntime(process, failed=lambda _part, _error: None)
        self.worker = Worker(
            driver,
            lease=LEASE,
            poll=timedelta(seconds=1),
            overdue_after=timedelta(seconds=6),
            transport=cast("Transport | None", service),
            visibility=timedelta(seconds=6),
            runtime=runtime,
        )
        process.schedule(0, self.worker.start)
        if service is not None:
            enqueuer = DueTaskEnqueuer(
                SimulatedRuntime(process, failed=lambda _part, _error: None), driver, service, queues=["default"]
            )
            process.schedule(0, enqueuer.start)

        async def slow(job: Any, ctx: Any) -> str:
            import asyncio  # noqa: PLC0415  the loop is the simulated one

            ctx.progress(1, 2)
            await asyncio.sleep(job.data)
            return "done"

        self.worker.register("slow", slow)
        self.worker.register("fail", lambda _job: 1 / 0)
        self._client = Client(self.store, clock=SimulatedClock(self.world), ids=self.world.job_id)

    def enqueue(self, job_type: str, payload: object = None, **fields: Any) -> JobId:
        return self._client.enqueue(JobRequest(type=job_type, payload=payload, **fields)).id

    def job(self, job_id: JobId) -> Any:
        return self.store.inspector.get([job_id])[job_id]


CASES: Final = [(verb, False) for verb in POLLED] + [(verb, True) for verb in WITH_MESSAGES]


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("verb", "uses_messages"), CASES)
def test_every_service_continues_whatever_a_store_call_raises(
    verb: str, uses_messages: bool, error: Exception, commits: bool
) -> None:
    rig = Rig(verb, error, commits=commits, uses_messages=uses_messages)
    early = [rig.enqueue("slow", 2.5), rig.enqueue("slow", 0.1), rig.enqueue("fail", max_attempts=1)]
    rig.world.run(OUTAGE_SECONDS + 1.0)
    raised = rig.gate.raised
    late = [rig.enqueue("slow", 6.0), rig.enqueue("fail", max_attempts=1)]
    rig.world.run(120.0)

    ends = [rig.job(job_id).status for job_id in (*early, *late)]
    assert ends == [Status.SUCCEEDED, Status.SUCCEEDED, Status.DEAD, Status.SUCCEEDED, Status.DEAD]
    assert [rig.job(job_id).dead_reason for job_id in (early[2], late[1])] == ["attempts exhausted"] * 2
    assert raised > 0
    assert rig.gate.answered > 0
