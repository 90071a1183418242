"""A worker: takes jobs, runs their handlers, and records what became of them."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import JobNotInflight
from taskharbor.core.hooks import JobClaimed
from taskharbor.core.messages import OVERDUE_AFTER
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled
from taskharbor.core.states import Event, Status
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
from taskharbor.janitor import ClockGuard, Janitor
from taskharbor.outbox import relay_for
from taskharbor.runtime import ThreadRuntime
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.service import LOST_SLOTS_EXIT, run_until_signal
from taskharbor.worker.claimer import Claimer
from taskharbor.worker.codec_check import CodecCheck
from taskharbor.worker.config import UNHANDLED_AFTER, check_options, checked_visibility, limits_of
from taskharbor.worker.context import HandlerServices, ProgressWriter
from taskharbor.worker.execution import ExecutionSlots, StopReason
from taskharbor.worker.executor import Executor
from taskharbor.worker.handlers import handler
from taskharbor.worker.heartbeats import LeaseHeartbeat, WorkerHeartbeat, new_worker_id
from taskharbor.worker.hooks import AttemptHooks
from taskharbor.worker.lifespan import LifespanRun, check_lifespan
from taskharbor.worker.message_acks import Mail
from taskharbor.worker.message_source import MessageSource
from taskharbor.worker.polling_source import PollingSource
from taskharbor.worker.recorder import Recorder
from taskharbor.worker.schedule_registration import register_schedules
from taskharbor.worker.timeouts import TimeoutMonitor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.hooks import Hook
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.outbox import Publisher
    from taskharbor.runtime import Runtime, ServiceLoop
    from taskharbor.schedules.spec import ScheduleSpec
    from taskharbor.worker.config import Queues
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.handlers import Handler, Middleware
    from taskharbor.worker.lifespan import Lifespan

_LOG: Final = logging.getLogger("taskharbor.worker")
LEASE: Final = timedelta(seconds=30)
GRACE: Final = timedelta(seconds=25)
POLL: Final = timedelta(seconds=1)
RECEIVE_WAIT: Final = timedelta(seconds=2)
"""How long one receive waits for messages. A worker that stops waits for it, or what comes last stays hidden."""
SHUTDOWN_POLL: Final = timedelta(milliseconds=20)
NO_TIMEOUT: Final = timedelta(days=3650)
LOOP_JOIN_TIMEOUT: Final = timedelta(seconds=5)
STOP_GRACE_SECONDS: Final = 1.0  # seconds in which handlers may end by themselves, once they were asked to
LEASE_MARGIN_FRACTION: Final = 0.05
"""The part of a lease by which a worker takes it to be over early: two clocks never run alike."""


class Worker:
    """Runs the jobs of some queues.

    *queues* are names, or a mapping from a name to how many of its jobs run at once;
    *concurrency* is how many do in all: 16, or what the mapping adds up to. An
    attempt holds its job by a *lease* that is renewed every *heartbeat*. *unknown_types* says
    what becomes of a job without a handler here: other workers may take it until it has been due for
    *unhandled_after*, then it becomes a dead letter; or it is always left for other workers. What
    *lifespan* yields is every handler's ``ctx.state``, and *schedules* are stored when it starts.

    With a *transport* jobs are taken by the messages that a `DueTaskEnqueuer` sends, which are
    hidden from others for *visibility* (a minute, or *lease* if that is longer), and those without one
    only when they are due for longer than *overdue_after*. Events of jobs that died go to *publisher*
    (`taskharbor.outbox`), or to its queue *dead_letter_queue*.

    >>> from taskharbor import Client, JobRequest, MemoryDriver
    >>> driver = MemoryDriver()
    >>> worker = Worker(driver)
    >>> worker.register("greet", lambda job: print("hello", job.data))
    >>> _ = Client(driver).enqueue(JobRequest(type="greet", payload="Ada"))
    >>> worker.drain()
    hello Ada
    """

    _span: LifespanRun | None = None
    _listener: Listener | None = None
    _shutdown_loop: ServiceLoop | None = None
    _stops_by: float | None = None
    _is_over = _is_draining = False

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
        limits, in_all = limits_of(queues, concurrency)
        beat = lease / 3 if heartbeat is None else heartbeat
        check_options(limits, in_all, lease, beat)
        if lifespan is not None:
            check_lifespan(lifespan)
        self.id = name or new_worker_id()
        self.grace = grace
        self._driver = driver
        self._runtime = runtime or ThreadRuntime(sync_threads=in_all)
        self._limits, self._poll, self._lease = limits, poll, lease
        self._last_moment = STOP_GRACE_SECONDS + lease.total_seconds()  # after it, unreleased leases have expired
        self._middleware = tuple(middleware)
        self._unhandled_after = None if unknown_types == "leave" else unhandled_after
        self._handlers: dict[str, Handler] = {}
        self._policies: dict[str, RetryPolicy] = {}
        self._lifespan, self._schedules = lifespan, tuple(schedules)
        self._scheduler = scheduler or Scheduler(driver, codec=codec or JsonCodec())
        self._slots = ExecutionSlots(self._runtime, concurrency=in_all, queues=limits)
        self._notify_hooks = AttemptHooks(hooks)
        self._guard = ClockGuard(self._runtime, driver, lease=lease)
        self._recorder = Recorder(self._runtime, driver, self._slots, settled=self._settled, freed=self._freed)
        self._reporter = ProgressWriter(self._runtime, driver, wake=lambda: self._wake("reporter"))
        self._services = HandlerServices(driver, codec or JsonCodec(), save=self._reporter.save)
        self._executor = Executor(
            self._runtime, self._handlers, self._policies, services=self._services, report=self._ended
        )
        self._delivery = self._make_mail(transport, visibility, beat, wait=receive_wait)
        self._outbox_relay = relay_for(driver, publisher=publisher, transport=transport, queue=dead_letter_queue)
        margin = lease.total_seconds() * LEASE_MARGIN_FRACTION
        self._timeouts = TimeoutMonitor(self._runtime, self._slots, lease=lease, wake=self._wake, end=self.begin_stop)
        self._heartbeat = self._make_heartbeat(every=beat, margin=margin)
        self._source = self._make_intake(margin=margin, overdue_after=overdue_after, codec=codec)
        self.codec_check = CodecCheck(driver, self._services.codec, lambda: self._source.is_stopped, self.begin_stop)
        self._janitor = self._make_janitor() if janitor else None
        self._presence = WorkerHeartbeat(
            self._runtime, driver, self._slots, worker=self.id, queues=list(limits), types=lambda: self.types
        )
        self._loops: dict[str, ServiceLoop] = {}
        self._stopping = self._runtime.lock()

    def register(self, type: str, function: Callable[..., Any], *, policy: RetryPolicy | None = None) -> None:
        """Let *function* handle jobs of *type*: ``handler(job)`` or ``handler(job, ctx)``, plain or async."""
        self._handlers[type] = handler(function, self._middleware)
        if policy is not None:
            self._policies[type] = policy

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, or until `stop` is called elsewhere; a second signal ends the process now.

        Raises `SystemExit` with code 12 if half of the slots were lost to handlers that do not return.
        """
        run_until_signal(self.start, self.stop, is_over=lambda: self._is_over)
        self.codec_check.raise_refusal()
        if self.is_exhausted:
            raise SystemExit(LOST_SLOTS_EXIT)

    def start(self) -> None:
        """Begin to work, in threads of the worker's own. Raises `CodecMismatch` if it could not read any payload."""
        self.codec_check.begin()
        if self._lifespan is not None:
            self._span = LifespanRun(self._runtime, self._lifespan)
            self._services.state = self._span.enter()
        serve = self._runtime.serve
        for name, tick in self._ticks().items():
            self._loops[name] = serve(name, self._unless_over(tick))
        if self._schedules:
            put = self._unless_over(partial(register_schedules, self._scheduler, self._schedules))
            self._loops["schedules"] = serve("schedules", put)
        if self._runtime.can_block and self._delivery is None:  # messages ring by themselves
            self._listener = self._driver.listen(list(self._limits))
            self._loops["listener"] = serve("listener", self._unless_over(self._listen))
        if self._runtime.can_block:
            # A loop may have looked, and somebody have called it, before its name was known here.
            for loop in self._loops.values():
                loop.wake()

    def _ticks(self) -> dict[str, Callable[[], timedelta]]:
        return {
            "reporter": self._reporter.tick,
            "recorder": self._recorder.tick,
            "heartbeat": self._heartbeat.tick,
            "alive": self._presence.tick,
            "clock": self._guard.tick,
            **({} if self._janitor is None else {"janitor": self._janitor.tick}),
            **({} if self._delivery is None else self._delivery.ticks),
            **({} if self._outbox_relay is None else {"relay": self._outbox_relay.tick}),
            **self.codec_check.guarded(self._source.ticks),
        }

    def drain(self, timeout: timedelta = NO_TIMEOUT) -> None:
        """Work until nothing is due and nothing in hand, or *timeout* has passed, and stop."""
        self._is_draining = True
        self.start()
        is_dry = self._runtime.serve("drain", lambda: SHUTDOWN_POLL if self._is_busy() else None)
        is_dry.join(timeout)
        self.stop()
        self.codec_check.raise_refusal()

    def _is_busy(self) -> bool:
        if self._is_over or self.codec_check.refusal is not None:
            return False
        return not self._source.is_idle or len(self._slots) > self.lost_slots

    def stop(self, grace: timedelta | None = None) -> None:
        """Take no more jobs, let those in hand end within *grace*, give back the rest, and return when that is done."""
        self.begin_stop(grace)
        if self._shutdown_loop is not None:
            self._shutdown_loop.join(NO_TIMEOUT)

    def begin_stop(self, grace: timedelta | None = None) -> None:
        """Begin to stop, and return at once."""
        self._source.is_stopped = True
        seconds = (self.grace if grace is None else grace).total_seconds()
        self._stops_by = self._runtime.monotonic() + seconds
        self._wake_intake()
        with self._stopping:
            if self._shutdown_loop is None:
                self._shutdown_loop = self._runtime.serve("supervisor", self._finish_shutdown)

    @property
    def types(self) -> tuple[str, ...]:
        """The types that it has a handler for."""
        return tuple(sorted(self._handlers))

    @property
    def lost_slots(self) -> int:
        """How many slots are kept by sync handlers that did not return within a lease of their timeout."""
        return self._slots.lost_slots

    @property
    def is_exhausted(self) -> bool:
        """Whether it ends, or has ended, by itself because half of its slots were lost."""
        return self._timeouts.is_exhausted

    @property
    def is_over(self) -> bool:
        """Whether it has stopped, and given back what it held."""
        return self._is_over

    def _finish_shutdown(self) -> timedelta | None:
        """Wait for what is in hand; when the grace is over, ask it to stop, and a moment later give it back."""
        late = self._runtime.monotonic() - (self._stops_by or 0.0)
        for execution in self._slots.all():
            if late >= 0:
                execution.stop(StopReason.SHUTDOWN)
            if late >= STOP_GRACE_SECONDS or execution.is_slot_lost:
                # A thread that does not look whether it shall stop: the process ends before it does.
                self._ended(execution, self._executor.stopped(execution))
        if (len(self._slots) or self._may_take() or self._has_messages()) and late < self._last_moment:
            return SHUTDOWN_POLL
        self._end()
        return None

    def _may_take(self) -> bool:
        """Whether jobs may still come in: a call for some is under way, or its reply was lost."""
        return any(name in self._loops for name in self._source.ticks) and not self._source.is_stopped_cleanly

    def _has_messages(self) -> bool:
        """Whether messages are still to be deleted, or to be shown to others."""
        return self._delivery is not None and not self._delivery.messages.is_done

    def _end(self) -> None:
        self._is_over = True
        if self._listener is not None:
            self._listener.wake()
        if left := len(self._slots):
            _LOG.error("ending with %d jobs in hand that could not be given back: their leases will end", left)
        for loop in self._loops.values():
            loop.wake()
        for loop in self._loops.values():
            loop.join(LOOP_JOIN_TIMEOUT)
        if self._listener is not None:
            self._listener.close()
        if self._span is not None:
            self._span.leave()
        self._runtime.close()

    def _make_mail(
        self, transport: Transport | None, visibility: timedelta | None, beat: timedelta, **options: Any
    ) -> Mail | None:
        if transport is None:
            return None
        options["visibility"] = checked_visibility(visibility, self._lease, beat)
        return Mail(self._runtime, self._driver, transport, wake=self._wake, tell=self._notify_hooks, **options)

    def _make_heartbeat(self, *, every: timedelta, margin: float) -> LeaseHeartbeat:
        return LeaseHeartbeat(
            self._runtime,
            self._driver,
            self._slots,
            lease=self._lease,
            every=every,
            margin=margin,
            timeouts=self._timeouts,
            kept=None if self._delivery is None else self._delivery.messages.extend_visibility,
        )

    def _make_janitor(self) -> Janitor:
        return Janitor(
            self._runtime,
            self._driver,
            lease=self._lease,
            guard=self._guard,
            relay=None if self._outbox_relay is None else lambda: self._wake("relay"),
            notify=self._notify_hooks,
            scheduler=self._scheduler,
        )

    def _make_intake(
        self, *, margin: float, overdue_after: timedelta, codec: Codec | None
    ) -> PollingSource | MessageSource:
        options: dict[str, Any] = {
            "worker": self.id,
            "lease": self._lease,
            "margin": margin,
            "overdue_after": overdue_after,
            "types": lambda: frozenset(self._handlers),
            "unhandled_after": self._unhandled_after,
            "may_reclaim": self._guard.may_reclaim,
            "start": self._start,
            "codec": codec,
        }
        common, queues, poll = (self._runtime, self._driver, self._slots), list(self._limits), self._poll
        if self._delivery is None:
            return PollingSource(*common, queues=queues, poll=poll, **options)
        return MessageSource(
            self._runtime,
            self._slots,
            self._delivery,
            claimers={queue: Claimer(*common, **options) for queue in queues},
            wake=self._wake,
            poll=poll,
            overdue_after=overdue_after,
        )

    def _unless_over(self, tick: Callable[[], timedelta | None]) -> Callable[[], timedelta | None]:
        return lambda: None if self._is_over else tick()

    def _start(self, executions: list[Execution]) -> None:
        if self._notify_hooks.has_consumers:
            for execution in executions:
                self._notify_hooks(JobClaimed(claim=execution.claim))
        if self._source.is_stopped:  # they were asked for before, and came after
            for execution in executions:
                self._ended(execution, Outcome.release())
            return
        self._executor.start(executions)
        if self._heartbeat.is_due_before(executions):
            self._wake("heartbeat")

    def _ended(self, execution: Execution, outcome: Outcome | None) -> None:
        self._timeouts.ended(execution)
        if self._recorder.put(execution, outcome):
            self._wake("recorder")

    def _settled(
        self, ended: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Settled | TaskHarborError | None]
    ) -> None:
        is_told = self._delivery is not None or self._notify_hooks.has_consumers
        for (execution, outcome), answer in zip(ended, answers, strict=True):
            if is_told or not isinstance(answer, Settled) or answer.status is Status.DEAD:
                self._report_outcome(execution, outcome, answer)

    def _report_outcome(
        self, execution: Execution, outcome: Outcome | None, answer: Settled | TaskHarborError | None
    ) -> None:
        if execution.is_completed and isinstance(answer, JobNotInflight):
            # In the handler's own transaction.
            outcome, answer = Outcome.ack(), Settled(execution.claim.job.id, Status.SUCCEEDED)
        is_settled = isinstance(answer, Settled)
        if self._delivery is not None:
            self._delivery.settled(execution, answer)
        if outcome is None or outcome.event is not Event.ACK:
            self._wake_intake()  # the job may be due again at once
        if isinstance(answer, Settled) and answer.status is Status.DEAD:
            self._wake("relay")
        elif is_settled and not self._notify_hooks.has_consumers:
            return
        advice = "" if is_settled else self._heartbeat.advice(execution)
        self._notify_hooks.of(execution, outcome, answer, ended_at=self._runtime.now(), advice=advice)

    def _freed(self) -> None:
        """Let the intake look where room is what it waits for: elsewhere a look finds nothing, and is in the way."""
        if self._source.wants_slots or self._is_draining:
            self._wake_intake()

    def _wake(self, name: str) -> None:
        if (loop := self._loops.get(name)) is not None:  # None while it is being started, which ends with a call to all
            loop.wake()

    def _wake_intake(self) -> None:
        for name in self._source.ticks:
            self._wake(name)

    def _listen(self) -> timedelta:
        if self._listener is not None and self._listener.wait(self._poll):
            self._wake_intake()
        return timedelta(0)
