"""Parts of a worker's pipeline for tests of one stage: a configuration, and stages that only record calls."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from taskharbor.observability.failure_log import FailureLog
from taskharbor.worker.claimer import Claimer
from taskharbor.worker.config import WorkerConfig
from taskharbor.worker.execution import ExecutionSlots
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.polling_source import PollingSource
from taskharbor.worker.prefetch import Prefetch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskharbor.core.outcome import Outcome
    from taskharbor.drivers.base import Driver
    from taskharbor.janitor import ClockGuard
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.executor import Executor
    from taskharbor.worker.hooks import AttemptHooks
    from taskharbor.worker.stop_request import StopRequest


def worker_config(lease: timedelta, **options: Any) -> WorkerConfig:
    """Return the configuration of a polling worker with one queue."""
    defaults: dict[str, Any] = {
        "worker": "w",
        "queues": {"default": 1},
        "concurrency": 1,
        "lease": lease,
        "heartbeat": lease / 3,
        "grace": timedelta(0),
        "poll": lease,
        "overdue_after": lease,
        "unhandled_after": None,
        "codec": None,
        "hooks": (),
        "delivery": None,
    }
    return WorkerConfig(**{**defaults, **options})


@dataclass
class StageRecorder:
    """Stands for the stages around the one under test: loops, hooks, executor, recorder and stop request."""

    woken: list[str] = field(default_factory=list)
    started_jobs: list[Execution] = field(default_factory=list)
    outcomes: list[tuple[Execution, Outcome | None]] = field(default_factory=list)
    answers: list[tuple[Execution, Outcome | None, Any]] = field(default_factory=list)
    failures: FailureLog = field(default_factory=lambda: FailureLog(logging.getLogger("taskharbor.runtime")))
    stops: int = 0
    is_set: bool = False

    @property
    def loops(self) -> ServiceLoops:
        return cast("ServiceLoops", self)

    @property
    def hooks(self) -> AttemptHooks:
        return cast("AttemptHooks", self)

    @property
    def executor(self) -> Executor:
        return cast("Executor", self)

    @property
    def stop(self) -> StopRequest:
        return cast("StopRequest", self)

    def wake(self, name: str) -> None:
        self.woken.append(name)

    def set(self) -> None:
        self.stops += 1

    def start(self, executions: Sequence[Execution]) -> None:
        self.started_jobs.extend(executions)

    def release_overdue(self) -> None: ...

    def claimed(self, queue: str, executions: Sequence[Execution]) -> None: ...

    def started(self, executions: Sequence[Execution]) -> None: ...

    def ended(self, execution: Execution) -> None: ...

    def put(self, execution: Execution, outcome: Outcome | None) -> None:
        self.outcomes.append((execution, outcome))

    def recorded(self, ended: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Any]) -> None:
        self.answers += [
            (execution, outcome, answer) for (execution, outcome), answer in zip(ended, answers, strict=True)
        ]


def no_prefetch(runtime: Runtime, *, concurrency: int) -> Prefetch:
    """Return the places of a worker that claims nothing ahead."""
    return Prefetch(runtime, concurrency=concurrency, limit=0, lease=timedelta(seconds=30))


def slots_without_prefetch(runtime: Runtime, *, concurrency: int, queues: Mapping[str, int]) -> ExecutionSlots:
    """Return the slots of a worker that claims nothing ahead."""
    prefetch = no_prefetch(runtime, concurrency=concurrency)
    return ExecutionSlots(runtime, prefetch, concurrency=concurrency, queues=queues)


def claimer(
    runtime: Runtime,
    driver: Driver,
    slots: ExecutionSlots,
    stages: StageRecorder,
    config: WorkerConfig,
    *,
    types: Sequence[str],
) -> Claimer:
    """Return a claimer that may reclaim, and passes what it claims to *stages*."""
    handlers = HandlerRegistry()
    for each in types:
        handlers.register(each, lambda _job: None)
    return Claimer(
        runtime,
        driver,
        slots,
        executor=stages.executor,
        hooks=stages.hooks,
        guard=cast("ClockGuard", SimpleNamespace(may_reclaim=lambda: True)),
        stop=stages.stop,
        handlers=handlers,
        failures=stages.failures,
        config=config,
    )


def polling_source(
    runtime: Runtime,
    driver: Driver,
    slots: ExecutionSlots,
    stages: StageRecorder,
    config: WorkerConfig,
    *,
    types: Sequence[str],
) -> PollingSource:
    return PollingSource(slots, stages.stop, claimer(runtime, driver, slots, stages, config, types=types), config)
