"""A heartbeat and an executor whose clock the test moves."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.codec import JsonCodec
from taskharbor.core.ids import new_token
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.observability.failure_log import FailureLog
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import new_job
from taskharbor.worker.context import HandlerServices
from taskharbor.worker.execution import Execution, ExecutionSlots
from taskharbor.worker.executor import Executor
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.heartbeats import LeaseHeartbeat
from taskharbor.worker.refusals import RefusalNotes
from taskharbor.worker.timeouts import TimeoutMonitor
from tests.support.stages import no_prefetch, worker_config
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS

if TYPE_CHECKING:
    from taskharbor.core.model import Job
    from taskharbor.core.outcome import Outcome

LEASE: Final = timedelta(seconds=9)
TIMEOUT: Final = timedelta(seconds=20)


class ManualRuntime(ThreadRuntime):
    """A runtime with real threads, whose clock the test moves."""

    def __init__(self) -> None:
        super().__init__(sync_threads=4)
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


class Rig:
    """A heartbeat and an executor without a worker, and a store whose clock moves with theirs."""

    def __init__(self, concurrency: int = 4) -> None:
        self.clock, self.runtime = ManualClock(), ManualRuntime()
        self.driver = MemoryDriver(clock=self.clock)
        self._prefetch = no_prefetch(self.runtime, concurrency=concurrency)
        self.slots = ExecutionSlots(
            self.runtime, self._prefetch, concurrency=concurrency, queues={"default": concurrency}
        )
        self.changes: list[int] = []
        self.ends: list[bool] = []
        self.kept: list[list[Execution]] = []
        self.reported: list[tuple[Execution, Outcome | None]] = []
        around: Any = SimpleNamespace(
            wake=lambda _name: self.changes.append(self.slots.lost_slots),
            set=self.request_stop,
            is_set=False,
            extend_visibility=self.kept.append,
        )
        self._stop = around
        self.timeouts = TimeoutMonitor(self.runtime, self.slots, around, around, lease=LEASE)
        self.heartbeat = LeaseHeartbeat(
            self.runtime,
            self.driver,
            self.slots,
            timeouts=self.timeouts,
            acks=around,
            failures=FailureLog(logging.getLogger("taskharbor.runtime"), self.runtime.monotonic),
            refusals=RefusalNotes(around),
            config=worker_config(LEASE),
        )
        self.began, self.may_end, self.has_ended = threading.Event(), threading.Event(), threading.Event()

    def request_stop(self) -> None:
        self._stop.is_set = True
        self.ends.append(True)

    def start(self, *, jobs: int = 1) -> list[Execution]:
        """Start *jobs* jobs whose handler waits for `may_end`."""
        self.driver.insert([new_job(timeout=TIMEOUT) for _ in range(jobs)])
        claims = self.driver.reserve(
            "default", token=new_token(), worker="w", lease=LEASE, limit=jobs, overdue_after=LEASE
        )
        now = self.runtime.monotonic()
        executions = [
            Execution(claim, ends_at=now + LEASE.total_seconds() - 0.5, times_out_at=now + TIMEOUT.total_seconds())
            for claim in claims
        ]
        self.slots.fill("default", self.slots.acquire("default", jobs), executions)
        handlers = HandlerRegistry()
        handlers.register("greet", self._wait)
        services = HandlerServices(self.driver, JsonCodec(), save=lambda _execution, _progress: None)
        Executor(self.runtime, handlers, self, services, prefetch=self._prefetch).start(executions)
        wait_until(lambda: all(execution.thread is not None for execution in executions))
        return executions

    def pass_time(self, seconds: float, *, step: float = 1.0) -> None:
        """Advance time, with a heartbeat after every *step* seconds."""
        until = self.runtime.seconds + seconds
        while self.runtime.seconds < until:
            by = min(step, until - self.runtime.seconds)
            self.runtime.seconds += by
            self.clock.advance(timedelta(seconds=by))
            self.heartbeat.tick()

    def end(self) -> None:
        self.may_end.set()
        assert self.has_ended.wait(LIMIT_SECONDS)

    def _wait(self, _job: Job) -> str:
        self.began.set()
        assert self.may_end.wait(LIMIT_SECONDS)
        return "late"

    def put(self, execution: Execution, outcome: Outcome | None) -> None:
        self.timeouts.ended(execution)
        self.reported.append((execution, outcome))
        self.has_ended.set()
