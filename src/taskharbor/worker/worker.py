"""The public `Worker` class: its options, start and shutdown. `taskharbor.worker.pipeline` connects its stages."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.codec import JsonCodec
from taskharbor.core.durations import Duration, as_timedelta
from taskharbor.core.messages import OVERDUE_AFTER
from taskharbor.core.outcome import DEFAULT_POLICY
from taskharbor.core.retention import KEEP, check_retention
from taskharbor.core.statistics import check_version
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
from taskharbor.health import WatchedService
from taskharbor.janitor import MAX_TICK as MAX_JANITOR_TICK
from taskharbor.janitor import Janitor
from taskharbor.observability.tracing import spans_for
from taskharbor.outbox import OUTBOX_LOCK, relay_for
from taskharbor.runtime import NO_PAUSE, ThreadRuntime
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.service import LOST_SLOTS_EXIT, RECYCLED_EXIT, run_until_signal
from taskharbor.worker.attempt_spans import AttemptSpans
from taskharbor.worker.codec_check import CodecCheck
from taskharbor.worker.config import (
    GRACE,
    LEASE,
    POLL,
    PREFETCH,
    RECEIVE_WAIT,
    UNKNOWN_TYPES,
    WorkerConfig,
    check_options,
    delivery_config,
    limits_of,
    prefetch_limit,
    unhandled_delay,
)
from taskharbor.worker.execution import StopReason
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.heartbeats import WorkerHeartbeat, worker_id
from taskharbor.worker.isolation.pool import CHILD_MAX_JOBS
from taskharbor.worker.isolation.setup import Isolation
from taskharbor.worker.lifespan import LifespanRun, check_lifespan
from taskharbor.worker.notified_pause import NotifiedPause
from taskharbor.worker.pipeline import build_pipeline
from taskharbor.worker.recycling import Recycling
from taskharbor.worker.schedule_registration import register_schedules
from taskharbor.worker.stalls import STALL_AFTER, StallDetector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.failure import Redact
    from taskharbor.core.hooks import Hook
    from taskharbor.core.retention import RetentionOptions
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.observability.tracing import TracingOption
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
LISTEN_PAUSE: Final = timedelta(minutes=1)
"""How long one wait for notifications takes at most. Sources poll by themselves, and a stop ends the wait."""
MAX_STORE_CALL: Final = timedelta(seconds=15)
"""How long one call of a store may take: it may wait for a connection, and then for the reply."""
STORE_AWAY_JOIN_TIMEOUT: Final = timedelta(milliseconds=500)
STOP_GRACE_SECONDS: Final = 1.0
"""How long handlers may take to return after they were asked to stop."""


class Worker:
    """Runs the jobs of some queues. Durations are timedeltas or numbers of seconds.

    *queues* are names, or a mapping from each name to its concurrency limit. *concurrency* is the
    total limit: by default 16, or the sum of the mapping. While handlers are short, up to *prefetch* jobs are claimed
    ahead: those that it will run within 50 ms; none if a queue has a limit of its own, or with a *transport*.
    An attempt holds its job by a *lease*, which is extended every *heartbeat*. *unknown_types* says what happens to
    jobs of a type without a handler: ``dead-letter:5m`` leaves them for other workers until they have been due for
    five minutes, then makes them dead letters; ``dead-letter`` does that at once, and ``leave`` never. *policy*
    decides after which delays failed jobs are retried, if their handler has no policy of its own. Handlers read the
    value that *lifespan* yields as ``ctx.state``. *version* is that of your application; the store keeps when each was
    first and last seen. *schedules* are stored when the worker starts, and fire only while
    a live worker declares them.

    Unless *janitor* is false, the worker also maintains the store. It removes finished jobs after *keep* (7 days),
    and dead letters after *keep_dead* (None: a person removes them). The shortest *keep* of all workers applies.

    With a *transport*, jobs are claimed by the messages that a `DueTaskEnqueuer` sends. Messages stay
    hidden from other workers for *visibility* (a minute, or *lease* if that is longer). Jobs without a
    message are claimed after they have been due for *overdue_after*. Events of dead jobs go to
    *publisher* (`taskharbor.outbox`), or to the queue *dead_letter_queue* of the transport. *redact* gets each text
    of a handler's error (message, traceback, reason), and returns the text to store and log. With *capture_logs*, the
    log lines of handlers from that level on (True: INFO) are kept with their attempts, also after *redact*.
    *tracing* makes a span of each attempt: true, with the global tracer provider of OpenTelemetry, or a provider.

    After about *max_jobs* jobs, or when the process uses more than *max_memory* bytes, the worker finishes its running
    jobs and stops; `run` then raises `SystemExit` with code 13, so that whatever started the process starts a new one.
    A handler that blocks the event loop for *stall_after* is logged with its stack. With *isolate*, each attempt runs
    in a child process that can be killed, also of handlers that do not say so. A child process is replaced after
    *child_max_jobs* attempts, and when it uses more than *child_max_memory* (bytes, or a text as ``"512MB"``).

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
        prefetch: int = PREFETCH,
        lease: Duration = LEASE,
        heartbeat: Duration | None = None,
        grace: Duration = GRACE,
        poll: Duration = POLL,
        overdue_after: Duration = OVERDUE_AFTER,
        unknown_types: str = UNKNOWN_TYPES,
        policy: RetryPolicy = DEFAULT_POLICY,
        middleware: Sequence[Middleware] = (),
        codec: Codec | None = None,
        hooks: Sequence[Hook] = (),
        transport: Transport | None = None,
        visibility: Duration | None = None,
        receive_wait: Duration = RECEIVE_WAIT,
        dead_letter_queue: str | None = DEAD_EVENTS_QUEUE,
        publisher: Publisher | None = None,
        redact: Redact | None = None,
        capture_logs: bool | str | None = None,
        janitor: bool = True,
        keep: Duration = KEEP,
        keep_dead: Duration | None = None,
        scheduler: Scheduler | None = None,
        schedules: Sequence[ScheduleSpec] = (),
        lifespan: Lifespan | None = None,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        isolate: bool = False,
        child_max_jobs: int = CHILD_MAX_JOBS,
        child_max_memory: int | str | None = None,
        stall_after: Duration = STALL_AFTER,
        tracing: TracingOption = False,
        name: str | None = None,
        version: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        limits, total = limits_of(queues, concurrency)
        lease, interval = check_options(limits, total, lease, heartbeat)
        check_lifespan(lifespan)
        self.id = worker_id(name)
        spans = spans_for(tracing, driver)
        config = WorkerConfig(
            worker=self.id,
            queues=limits,
            concurrency=total,
            prefetch=prefetch_limit(prefetch, queues, transport),
            lease=lease,
            heartbeat=interval,
            grace=as_timedelta(grace, "grace"),
            poll=as_timedelta(poll, "poll"),
            overdue_after=as_timedelta(overdue_after, "overdue_after"),
            unhandled_after=unhandled_delay(unknown_types),
            codec=codec,
            hooks=tuple(hooks),
            redact=redact,
            spans=None if spans is None else AttemptSpans(spans, self.id),
            delivery=delivery_config(transport, visibility, receive_wait, lease=lease, heartbeat=interval),
            schedules=tuple(sorted(spec.name for spec in schedules)),
            version=check_version(version),
        )
        self._config, self._driver = config, driver
        self._lifespan, self._schedules = lifespan, tuple(schedules)
        self._runtime = runtime or ThreadRuntime(sync_threads=total)
        self._handlers = HandlerRegistry(middleware, policy, capture_logs, isolate=isolate)
        self._scheduler = scheduler or Scheduler(driver, codec=codec or JsonCodec(), hooks=hooks, tracing=spans)
        self.isolation = Isolation(driver, self._handlers, max_jobs=child_max_jobs, max_memory=child_max_memory)
        stages = self._pipeline = build_pipeline(config, driver, self._runtime, self._handlers, self.isolation)
        self._loops, self._stop, self._slots, self._source = stages.loops, stages.stop, stages.slots, stages.source
        self._loops.add("shutdown", self._finish_shutdown, on_demand=True)
        self._recycling = Recycling(self._slots, self._stop, max_jobs=max_jobs, max_memory=max_memory)
        self.stalls = StallDetector(self._runtime, self._slots, after=as_timedelta(stall_after, "stall_after"))
        new_relay = partial(relay_for, publisher=publisher, transport=transport, queue=dead_letter_queue)
        self._outbox_relay = new_relay(driver, stages.loops.failures, stages.call_hooks)
        self.codec_check = CodecCheck(driver, stages.services.codec, self._stop, stages.loops.failures)
        self._janitor = self._new_janitor(check_retention(keep, keep_dead)) if janitor else None
        self._worker_heartbeat = WorkerHeartbeat(self._runtime, driver, self._handlers, config, self._pipeline)

    def register(
        self,
        type: str,
        function: Callable[..., Any],
        *,
        policy: RetryPolicy | None = None,
        capture_logs: bool | str | None = None,
        isolate: bool | None = None,
        memory_bytes: int = 0,
    ) -> None:
        """Register *function* for jobs of *type*: ``handler(job)`` or ``handler(job, ctx)``, sync or async.

        *policy* decides on the delays of its retries, *capture_logs* whether its log lines are kept, and *isolate*
        whether each attempt runs in a child process; by default those of the worker. There it may use *memory_bytes*.
        """
        self._handlers.register(
            type, function, policy, capture_logs=capture_logs, isolate=isolate, memory_bytes=memory_bytes
        )

    def use_app(self, app: str | Callable[[], str | None], url: str | None = None) -> None:
        """Say what child processes import to run isolated tasks: ``module:attribute`` or ``file.py:attribute``.

        `Harbor.worker` does this. *url* is that of the store, if the app does not know it.
        """
        self.isolation.use_app(app, url)

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until another thread calls `stop`. A second signal ends the process at once.

        Raises `SystemExit` with code 12 if half of the slots were lost to handlers that do not return, and with 13
        after *max_jobs* or *max_memory*.
        """
        run_until_signal(self.start, self.stop, is_over=lambda: self.is_over)
        self.codec_check.raise_refusal()
        if self.exit_code:
            raise SystemExit(self.exit_code)

    def start(self) -> None:
        """Start the worker's threads. A store that is unavailable is tried again until it is available.

        Raises `SchemaOutOfDate` if migrations are pending, `CodecMismatch` if the store's payloads have another codec,
        and `StoreUnavailable` if the store refuses access, as for a wrong password.
        """
        self.codec_check.begin()
        if self._runtime.can_block:
            self.isolation.start(self._pipeline.services.codec)
        with self.isolation.ended_by_error():
            if self._lifespan is not None and not self.isolation.is_total:  # else each child has its own
                self._lifespan_run = LifespanRun(self._runtime, self._lifespan)
                self._pipeline.services.state = self._lifespan_run.enter()
            self._recycling.check_start(self._lifespan_run)
        if self._handlers.captures_logs:
            self._pipeline.logs.start()
        notified = self._listen() if self._runtime.can_block else None
        for name, tick in self._ticks().items():
            between = notified if name == "source" else None
            self._loops.add(name, tick, may_take=self._max_tick(name.partition(":")[0]), between=between)
        if self._schedules:
            self._loops.add(
                "schedules", partial(register_schedules, self._scheduler, self._schedules, self._loops.failures)
            )
        if self._runtime.can_block:
            self._loops.add("stall-detector", self.stalls.tick)
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
            **({"recycling": self._recycling.tick} if self._recycling.is_on else {}),
            **({"isolation": self.isolation.children.tick} if self.isolation.is_on else {}),
            **({} if self._janitor is None else {"janitor": self._janitor.tick}),
            **({} if stages.acks is None else {"message-acks": stages.acks.tick}),
            **({} if self._outbox_relay is None else {"outbox-relay": self._outbox_relay.tick}),
            **self.codec_check.guarded(stages.source.ticks),
        }

    def _max_tick(self, loops: str) -> timedelta:
        """Return how long a tick of these loops takes by design; zero if it only calls the store."""
        if loops == "source" and self._config.delivery is None:
            return MAX_STORE_CALL * (len(self._config.queues) - 1)  # queues are polled one after another
        receive_wait = NO_PAUSE if self._config.delivery is None else self._config.delivery.receive_wait
        return {"source": receive_wait, "janitor": MAX_JANITOR_TICK, "outbox-relay": OUTBOX_LOCK}.get(loops, NO_PAUSE)

    def drain(self, timeout: Duration = NO_TIMEOUT) -> None:
        """Run until no job is due or running, or *timeout* has passed, then stop."""
        limit = as_timedelta(timeout, "timeout")
        self._slots.is_draining = True
        self.start()
        is_idle = self._runtime.serve("drain", lambda: SHUTDOWN_POLL if self._is_busy() else None)
        is_idle.join(limit)
        self.stop()
        self.codec_check.raise_refusal()

    def _is_busy(self) -> bool:
        if self.is_over or self.codec_check.refusal is not None:
            return False
        return not self._source.is_idle or len(self._slots) > self.lost_slots

    def stop(self, grace: Duration | None = None) -> None:
        """Stop claiming, let running jobs finish within *grace*, release the rest, and wait until all is done."""
        self.begin_stop(grace)
        self._loops.join("shutdown", NO_TIMEOUT)

    def begin_stop(self, grace: Duration | None = None) -> None:
        """Request the stop, and return immediately."""
        self._stop.set(None if grace is None else as_timedelta(grace, "grace"))

    @property
    def config(self) -> WorkerConfig:
        """The options, checked and complete."""
        return self._config

    @property
    def watched(self) -> WatchedService:
        """What `taskharbor.health` judges the worker by."""
        return WatchedService(
            loops=self._loops,
            ask_store=self._driver.inspector.settings,
            is_stopping=lambda: self._stop.is_set,
            problems=lambda: {"claims": self._source.claim_problem},
            event_loop_wait=self._runtime.event_loop_wait,
        )

    @property
    def concurrency(self) -> int:
        """How many jobs it runs at the same time at most."""
        return self._config.concurrency

    @property
    def running_jobs(self) -> int:
        """How many jobs it runs, or has run without a recorded outcome."""
        return len(self._slots) - len(self._slots.prefetch)

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
    def exit_code(self) -> int:
        """The exit code for a process that runs this worker only: not 0 if the worker has stopped itself."""
        if self.is_exhausted:
            return LOST_SLOTS_EXIT
        return RECYCLED_EXIT if self._recycling.is_due else 0

    @property
    def is_over(self) -> bool:
        """Whether the worker has stopped and released its jobs."""
        return self._loops.is_stopped

    def _finish_shutdown(self) -> timedelta | None:
        """Wait for running handlers. After the grace, ask them to stop; a second later, release their jobs."""
        self._pipeline.executor.release_waiting()  # repeatedly: a claim may have arrived after the stop
        late = self._runtime.monotonic() - self._stop.deadline
        for execution in self._slots.all():
            if late >= 0:
                execution.stop(StopReason.SHUTDOWN)
            if late >= STOP_GRACE_SECONDS or execution.is_slot_lost:
                # This thread does not check whether it must stop: the process ends before its handler returns.
                self._pipeline.executor.abandon(execution)
        # After one more lease, leases that could not be released have expired.
        last = STOP_GRACE_SECONDS + self._config.lease.total_seconds()
        is_done = self._pipeline.logs.is_done
        if (len(self._slots) or self._may_claim() or self._has_messages() or not is_done) and late < last:
            return SHUTDOWN_POLL
        self._end()
        return None

    def _may_claim(self) -> bool:
        """Return whether jobs may still arrive: a claim is running, or its reply was lost.

        While the store is unavailable, lost replies are not awaited for long: their leases expire.
        """
        if not self._loops.is_started or self._source.is_stopped_cleanly:
            return False
        return not self._source.is_failing or self._runtime.monotonic() - self._stop.requested_at < STOP_GRACE_SECONDS

    def _has_messages(self) -> bool:
        """Return whether messages must still be deleted or released."""
        return self._pipeline.acks is not None and not self._pipeline.acks.is_done

    def _end(self) -> None:
        self._loops.begin_stop()
        if unreleased := len(self._slots):
            _LOG.error("stopped with %d unreleased jobs; their leases will expire", unreleased)
        # Loops that wait for a store that is unavailable end later, without effect.
        self._loops.join_all(STORE_AWAY_JOIN_TIMEOUT if self._source.is_failing else LOOP_JOIN_TIMEOUT)
        if self._loops.is_started and not self._source.is_failing:
            self._worker_heartbeat.remove()
        self.isolation.children.close()
        self._pipeline.logs.close()
        if self._listener is not None:
            self._listener.close()
        if self._lifespan_run is not None:
            self._lifespan_run.leave()
        self.stalls.close()
        self._runtime.close()

    def _new_janitor(self, retention: RetentionOptions) -> Janitor:
        return Janitor(
            self._runtime,
            self._driver,
            lease=self._config.lease,
            guard=self._pipeline.guard,
            failures=self._loops.failures,
            relay=None if self._outbox_relay is None else lambda: self._loops.wake("outbox-relay"),
            hooks=self._config.hooks,
            scheduler=self._scheduler,
            **retention,
        )

    def _listen(self) -> NotifiedPause:
        """Listen to the store. The source waits for its notifications, unless a queue service delivers jobs."""
        queues = list(self._config.queues) if self._config.delivery is None else []
        self._listener = self._driver.listen(queues, worker=self.id)
        notified = NotifiedPause(self._listener, on_cancels=self._note_cancels)
        if self._config.delivery is not None:
            self._loops.add("listener", lambda: LISTEN_PAUSE, between=notified)
        return notified

    def _note_cancels(self) -> None:
        self._pipeline.leases.note_cancels()
        if len(self._slots):
            self._loops.wake("lease-heartbeat")
