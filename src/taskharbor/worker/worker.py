"""The public `Worker` class: its options, start and shutdown. `taskharbor.worker.pipeline` connects its stages."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from taskharbor.core.codec import JsonCodec
from taskharbor.core.messages import OVERDUE_AFTER
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
from taskharbor.janitor import Janitor
from taskharbor.outbox import relay_for
from taskharbor.runtime import NO_PAUSE, ThreadRuntime
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.service import LOST_SLOTS_EXIT, run_until_signal
from taskharbor.worker.codec_check import CodecCheck
from taskharbor.worker.config import (
    GRACE,
    LEASE,
    POLL,
    RECEIVE_WAIT,
    UNHANDLED_AFTER,
    WorkerConfig,
    check_options,
    delivery_config,
    limits_of,
)
from taskharbor.worker.execution import StopReason
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.heartbeats import WorkerHeartbeat, new_worker_id
from taskharbor.worker.lifespan import LifespanRun, check_lifespan
from taskharbor.worker.pipeline import build_pipeline
from taskharbor.worker.schedule_registration import register_schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.hooks import Hook
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.outbox import Publisher
    from taskharbor.runtime import Runtime
    from taskharbor.schedules.spec import ScheduleSpec
    from taskharbor.worker.config import Queues
    from taskharbor.worker.handlers import Middleware
    from taskharbor.worker.lifespan import Lifespan

_LOG: Final = logging.getLogger("taskharbor.worker")
SHUTDOWN_POLL: Final = timedelta(milliseconds=20)
NO_TIMEOUT: Final = timedelta(days=3650)
LOOP_JOIN_TIMEOUT: Final = timedelta(seconds=5)
STOP_GRACE_SECONDS: Final = 1.0
"""How long handlers may take to return after they were asked to stop."""


class Worker:
    """Runs the jobs of some queues.

    *queues* are names, or a mapping from each name to its concurrency limit. *concurrency* is the
    total limit: by default 16, or the sum of the mapping. An attempt holds its job by a *lease*, which
    is extended every *heartbeat*. *unknown_types* says what happens to jobs of a type without a handler:
    ``dead-letter`` leaves them for other workers until they have been due for *unhandled_after*, then
    makes them dead letters; ``leave`` always leaves them for other workers. Handlers read the value that
    *lifespan* yields as ``ctx.state``. *schedules* are stored when the worker starts.

    With a *transport*, jobs are claimed by the messages that a `DueTaskEnqueuer` sends. Messages stay
    hidden from other workers for *visibility* (a minute, or *lease* if that is longer). Jobs without a
    message are claimed after they have been due for *overdue_after*. Events of dead jobs go to
    *publisher* (`taskharbor.outbox`), or to the queue *dead_letter_queue* of the transport.

    >>> from taskharbor import Client, JobRequest, MemoryDriver
    >>> driver = MemoryDriver()
    >>> worker = Worker(driver)
    >>> worker.register("greet", lambda job: print("hello", job.data))
    >>> _ = Client(driver).enqueue(JobRequest(type="greet", payload="Ada"))
    >>> worker.drain()
    hello Ada
    """

    _lifespan_run: LifespanRun | None = None
    _listener: Listener | None = None

    def __init__(
        self,
        driver: Driver,
        *,
        queues: Queues = ("default",),
        concurrency: int | None = None,
        lease: timedelta = LEASE,
        heartbeat: timedelta | None = None,
        grace: timedelta = GRACE,
        poll: timedelta = POLL,
        overdue_after: timedelta = OVERDUE_AFTER,
        unknown_types: Literal["dead-letter", "leave"] = "dead-letter",
        unhandled_after: timedelta = UNHANDLED_AFTER,
        middleware: Sequence[Middleware] = (),
        codec: Codec | None = None,
        hooks: Sequence[Hook] = (),
        transport: Transport | None = None,
        visibility: timedelta | None = None,
        receive_wait: timedelta = RECEIVE_WAIT,
        dead_letter_queue: str | None = DEAD_EVENTS_QUEUE,
        publisher: Publisher | None = None,
        janitor: bool = True,
        scheduler: Scheduler | None = None,
        schedules: Sequence[ScheduleSpec] = (),
        lifespan: Lifespan | None = None,
        name: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        limits, total = limits_of(queues, concurrency)
        interval = lease / 3 if heartbeat is None else heartbeat
        check_options(limits, total, lease, interval)
        if lifespan is not None:
            check_lifespan(lifespan)
        self.id = name or new_worker_id()
        config = WorkerConfig(
            worker=self.id,
            queues=limits,
            concurrency=total,
            lease=lease,
            heartbeat=interval,
            grace=grace,
            poll=poll,
            overdue_after=overdue_after,
            unhandled_after=None if unknown_types == "leave" else unhandled_after,
            codec=codec,
            hooks=tuple(hooks),
            delivery=delivery_config(transport, visibility, receive_wait, lease=lease, heartbeat=interval),
        )
        self._config = config
        self._driver = driver
        self._runtime = runtime or ThreadRuntime(sync_threads=total)
        self._handlers = HandlerRegistry(middleware)
        self._lifespan, self._schedules = lifespan, tuple(schedules)
        self._scheduler = scheduler or Scheduler(driver, codec=codec or JsonCodec())
        self._pipeline = build_pipeline(config, driver, self._runtime, self._handlers)
        self._loops, self._stop = self._pipeline.loops, self._pipeline.stop
        self._slots, self._source = self._pipeline.slots, self._pipeline.source
        self._loops.add("shutdown", self._finish_shutdown, on_demand=True)
        self._outbox_relay = relay_for(driver, publisher=publisher, transport=transport, queue=dead_letter_queue)
        self.codec_check = CodecCheck(driver, self._pipeline.services.codec, self._stop)
        self._janitor = self._new_janitor() if janitor else None
        self._worker_heartbeat = WorkerHeartbeat(self._runtime, driver, self._slots, self._handlers, config)

    def register(self, type: str, function: Callable[..., Any], *, policy: RetryPolicy | None = None) -> None:
        """Register *function* for jobs of *type*: ``handler(job)`` or ``handler(job, ctx)``, sync or async."""
        self._handlers.register(type, function, policy)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until another thread calls `stop`. A second signal ends the process at once.

        Raises `SystemExit` with code 12 if half of the slots were lost to handlers that do not return.
        """
        run_until_signal(self.start, self.stop, is_over=lambda: self.is_over)
        self.codec_check.raise_refusal()
        if self.is_exhausted:
            raise SystemExit(LOST_SLOTS_EXIT)

    def start(self) -> None:
        """Start the worker's threads. Raises `CodecMismatch` if the store's payloads have another codec."""
        self.codec_check.begin()
        if self._lifespan is not None:
            self._lifespan_run = LifespanRun(self._runtime, self._lifespan)
            self._pipeline.services.state = self._lifespan_run.enter()
        for name, tick in self._ticks().items():
            self._loops.add(name, tick)
        if self._schedules:
            self._loops.add("schedules", partial(register_schedules, self._scheduler, self._schedules))
        if self._runtime.can_block and self._config.delivery is None:  # a queue service delivers by itself
            self._listener = self._driver.listen(list(self._config.queues))
            self._loops.add("listener", self._listen)
        self._loops.start()
        if self._runtime.can_block:
            self._loops.wake_all()  # a wake that came before its loop was registered was lost

    def _ticks(self) -> dict[str, Callable[[], timedelta]]:
        stages = self._pipeline
        return {
            "progress": stages.progress.tick,
            "recorder": stages.recorder.tick,
            "lease-heartbeat": stages.leases.tick,
            "worker-heartbeat": self._worker_heartbeat.tick,
            "clock-guard": stages.guard.tick,
            **({} if self._janitor is None else {"janitor": self._janitor.tick}),
            **({} if stages.acks is None else {"message-acks": stages.acks.tick}),
            **({} if self._outbox_relay is None else {"outbox-relay": self._outbox_relay.tick}),
            **self.codec_check.guarded(stages.source.ticks),
        }

    def drain(self, timeout: timedelta = NO_TIMEOUT) -> None:
        """Run until no job is due or running, or *timeout* has passed, then stop."""
        self._slots.is_draining = True
        self.start()
        is_idle = self._runtime.serve("drain", lambda: SHUTDOWN_POLL if self._is_busy() else None)
        is_idle.join(timeout)
        self.stop()
        self.codec_check.raise_refusal()

    def _is_busy(self) -> bool:
        if self.is_over or self.codec_check.refusal is not None:
            return False
        return not self._source.is_idle or len(self._slots) > self.lost_slots

    def stop(self, grace: timedelta | None = None) -> None:
        """Stop claiming, let running jobs finish within *grace*, release the rest, and wait until all is done."""
        self.begin_stop(grace)
        self._loops.join("shutdown", NO_TIMEOUT)

    def begin_stop(self, grace: timedelta | None = None) -> None:
        """Request the stop, and return immediately."""
        self._stop.set(grace)

    @property
    def types(self) -> tuple[str, ...]:
        """The types that have a handler."""
        return tuple(sorted(self._handlers.types))

    @property
    def lost_slots(self) -> int:
        """How many slots are held by sync handlers that did not return within a lease after their timeout."""
        return self._slots.lost_slots

    @property
    def is_exhausted(self) -> bool:
        """Whether the worker stops by itself because half of its slots were lost."""
        return self._pipeline.timeouts.is_exhausted

    @property
    def is_over(self) -> bool:
        """Whether the worker has stopped and released its jobs."""
        return self._loops.is_stopped

    def _finish_shutdown(self) -> timedelta | None:
        """Wait for running handlers. After the grace, ask them to stop; a second later, release their jobs."""
        late = self._runtime.monotonic() - self._stop.deadline
        for execution in self._slots.all():
            if late >= 0:
                execution.stop(StopReason.SHUTDOWN)
            if late >= STOP_GRACE_SECONDS or execution.is_slot_lost:
                # This thread does not check whether it must stop: the process ends before its handler returns.
                self._pipeline.executor.abandon(execution)
        # After one more lease, leases that could not be released have expired.
        last = STOP_GRACE_SECONDS + self._config.lease.total_seconds()
        if (len(self._slots) or self._may_claim() or self._has_messages()) and late < last:
            return SHUTDOWN_POLL
        self._end()
        return None

    def _may_claim(self) -> bool:
        """Return whether jobs may still arrive: a claim is running, or its reply was lost."""
        return self._loops.is_started and not self._source.is_stopped_cleanly

    def _has_messages(self) -> bool:
        """Return whether messages must still be deleted or released."""
        return self._pipeline.acks is not None and not self._pipeline.acks.is_done

    def _end(self) -> None:
        self._loops.begin_stop()
        if self._listener is not None:
            self._listener.wake()
        if unreleased := len(self._slots):
            _LOG.error("stopped with %d unreleased jobs; their leases will expire", unreleased)
        self._loops.join_all(LOOP_JOIN_TIMEOUT)
        if self._listener is not None:
            self._listener.close()
        if self._lifespan_run is not None:
            self._lifespan_run.leave()
        self._runtime.close()

    def _new_janitor(self) -> Janitor:
        return Janitor(
            self._runtime,
            self._driver,
            lease=self._config.lease,
            guard=self._pipeline.guard,
            relay=None if self._outbox_relay is None else lambda: self._loops.wake("outbox-relay"),
            notify=self._pipeline.call_hooks,
            scheduler=self._scheduler,
        )

    def _listen(self) -> timedelta:
        if self._listener is not None and self._listener.wait(self._config.poll):
            self._loops.wake("source")
        return NO_PAUSE
