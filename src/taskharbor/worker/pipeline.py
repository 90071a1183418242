"""The assembly of a worker: source → executor → recorder → hooks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.codec import JsonCodec
from taskharbor.janitor import ClockGuard
from taskharbor.observability.hook_caller import HookCaller
from taskharbor.service import ServiceLoops
from taskharbor.worker.claimer import Claimer
from taskharbor.worker.context import HandlerServices, ProgressWriter
from taskharbor.worker.execution import ExecutionSlots
from taskharbor.worker.executor import Executor
from taskharbor.worker.heartbeats import LeaseHeartbeat
from taskharbor.worker.hooks import AttemptHooks
from taskharbor.worker.log_writer import LogWriter
from taskharbor.worker.message_acks import MessageAcks
from taskharbor.worker.message_source import MAX_RECEIVERS, MessageSource
from taskharbor.worker.polling_source import PollingSource
from taskharbor.worker.prefetch import Prefetch
from taskharbor.worker.recorder import Recorder
from taskharbor.worker.refusals import RefusalNotes
from taskharbor.worker.statistics import AttemptStatistics
from taskharbor.worker.stop_request import StopRequest
from taskharbor.worker.timeouts import TimeoutMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.handlers import HandlerRegistry
    from taskharbor.worker.isolation.setup import Isolation


_LOG: Final = logging.getLogger("taskharbor.worker")
STAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "source": "claims due jobs",
        "executor": "runs the handler",
        "recorder": "settles the job",
        "hooks": "log and notify",
    }
)
"""The way of a job through a worker; `tools/render_picture.py` draws it."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of one worker. Each stage holds the next one; none of them knows the worker."""

    loops: ServiceLoops
    stop: StopRequest
    slots: ExecutionSlots
    services: HandlerServices
    progress: ProgressWriter
    guard: ClockGuard
    acks: MessageAcks | None
    logs: LogWriter
    timeouts: TimeoutMonitor
    leases: LeaseHeartbeat
    call_hooks: HookCaller
    statistics: AttemptStatistics
    recorder: Recorder
    executor: Executor
    source: PollingSource | MessageSource


def build_pipeline(
    config: WorkerConfig,
    driver: Driver,
    runtime: Runtime,
    handlers: HandlerRegistry,
    isolation: Isolation,
) -> Pipeline:
    """Connect the stages of a worker, from the last one to the first."""
    call_hooks = HookCaller(config.hooks, _LOG)
    loops = ServiceLoops(runtime, call_hooks=call_hooks)  # named loops; any stage may call loops.wake("recorder")
    failures = loops.failures  # all stages log outages with it
    stop = StopRequest(runtime, loops, config.grace)
    prefetch = Prefetch(
        runtime,
        concurrency=config.concurrency,
        limit=config.prefetch,
        lease=config.lease,
        on_low=partial(loops.wake, "source"),
    )
    slots = ExecutionSlots(runtime, prefetch, concurrency=config.concurrency, queues=config.queues)
    guard = ClockGuard(runtime, driver, lease=config.lease, failures=failures, call_hooks=call_hooks)
    acks = MessageAcks(runtime, driver, config.delivery, loops, call_hooks, guard=guard) if config.delivery else None
    timeouts = TimeoutMonitor(runtime, slots, loops, stop, lease=config.lease, call_hooks=call_hooks)
    refusals = RefusalNotes(loops)
    leases = LeaseHeartbeat(
        runtime, driver, slots, timeouts=timeouts, acks=acks, failures=failures, refusals=refusals, config=config
    )
    logs = LogWriter(driver, loops, config.redact)
    hooks = AttemptHooks(  # 4. resolve the message, log, call hooks
        runtime, call_hooks, loops, leases, acks, logs=logs, spans=config.spans
    )
    statistics = AttemptStatistics(runtime)  # handed over by the worker heartbeat
    recorder = Recorder(runtime, driver, slots, loops, hooks, statistics=statistics)  # 3. settle in batches
    progress = ProgressWriter(runtime, driver, loops)
    services = HandlerServices(driver, config.codec or JsonCodec(), save=progress.save, redact=config.redact)
    children = isolation.children if runtime.can_block else None
    new_executor = partial(Executor, prefetch=prefetch, call_hooks=call_hooks, logs=logs, children=children)
    executor = new_executor(runtime, handlers, recorder, services, spans=config.spans)  # 2. run the handler
    of_stages = partial(Claimer, runtime, driver, slots, executor=executor, hooks=hooks, guard=guard, stop=stop)
    new_claimer = partial(of_stages, handlers=handlers, failures=failures, config=config)
    source: PollingSource | MessageSource  # 1. claim jobs
    if acks:
        claimers = _claimers(config, runtime, new_claimer)
        source = MessageSource(runtime, slots, loops=loops, stop=stop, acks=acks, claimers=claimers, config=config)
    else:
        source = PollingSource(slots, stop, new_claimer(), config)
    stages = (timeouts, leases, call_hooks, statistics, recorder, executor, source)
    return Pipeline(loops, stop, slots, services, progress, guard, acks, logs, *stages)


def _claimers(
    config: WorkerConfig, runtime: Runtime, new_claimer: Callable[[], Claimer]
) -> Mapping[str, Sequence[Claimer]]:
    """Return the claimers of the receivers of each queue."""
    # In a runtime with a single thread no receiver can help another.
    receivers = range(MAX_RECEIVERS if runtime.can_block else 1)
    return {queue: [new_claimer() for _ in receivers] for queue in config.queues}
