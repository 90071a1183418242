"""The assembly of a worker: source → executor → recorder → hooks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.codec import JsonCodec
from taskharbor.janitor import ClockGuard
from taskharbor.service import ServiceLoops
from taskharbor.worker.claimer import Claimer
from taskharbor.worker.context import HandlerServices, ProgressWriter
from taskharbor.worker.execution import ExecutionSlots
from taskharbor.worker.executor import Executor
from taskharbor.worker.heartbeats import LeaseHeartbeat
from taskharbor.worker.hooks import AttemptHooks, HookCaller
from taskharbor.worker.message_acks import MessageAcks
from taskharbor.worker.message_source import MessageSource
from taskharbor.worker.polling_source import PollingSource
from taskharbor.worker.recorder import Recorder
from taskharbor.worker.stop_request import StopRequest
from taskharbor.worker.timeouts import TimeoutMonitor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime
    from taskharbor.worker.config import WorkerConfig
    from taskharbor.worker.handlers import HandlerRegistry


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
    timeouts: TimeoutMonitor
    leases: LeaseHeartbeat
    call_hooks: HookCaller
    recorder: Recorder
    executor: Executor
    source: PollingSource | MessageSource


def build_pipeline(config: WorkerConfig, driver: Driver, runtime: Runtime, handlers: HandlerRegistry) -> Pipeline:
    """Connect the stages of a worker, from the last one to the first."""
    loops = ServiceLoops(runtime)  # named loops; any stage may call loops.wake("recorder")
    stop = StopRequest(runtime, loops, config.grace)
    slots = ExecutionSlots(runtime, concurrency=config.concurrency, queues=config.queues)  # and whether a source waits
    call_hooks = HookCaller(config.hooks)
    acks = MessageAcks(runtime, driver, config.delivery, loops, call_hooks) if config.delivery else None
    timeouts = TimeoutMonitor(runtime, slots, loops, stop, lease=config.lease)
    leases = LeaseHeartbeat(runtime, driver, slots, timeouts=timeouts, acks=acks, config=config)
    hooks = AttemptHooks(runtime, call_hooks, loops, leases, acks)  # 4. resolve the message, log, call hooks
    recorder = Recorder(runtime, driver, slots, loops, hooks)  # 3. settle in batches
    progress = ProgressWriter(runtime, driver, loops)
    services = HandlerServices(driver, config.codec or JsonCodec(), save=progress.save)
    executor = Executor(runtime, handlers, recorder, services)  # 2. run the handler
    guard = ClockGuard(runtime, driver, lease=config.lease)
    new_claimer = partial(
        Claimer, runtime, driver, slots, executor=executor, hooks=hooks, guard=guard, stop=stop, handlers=handlers
    )
    source: PollingSource | MessageSource  # 1. claim jobs
    if acks:
        claimers = {queue: new_claimer(config=config) for queue in config.queues}  # each reads back its lost replies
        source = MessageSource(runtime, slots, loops=loops, stop=stop, acks=acks, claimers=claimers, config=config)
    else:
        source = PollingSource(slots, stop, new_claimer(config=config), config)
    return Pipeline(
        loops, stop, slots, services, progress, guard, acks, timeouts, leases, call_hooks, recorder, executor, source
    )
