"""A worker: takes jobs, runs their handlers, and records what became of them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from taskharbor.core.answers import Settled
from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import JobNotInflight, Problem, StoreUnavailable, UsageError
from taskharbor.core.facts import JobClaimed
from taskharbor.core.ids import new_token
from taskharbor.core.messages import Finding
from taskharbor.core.model import WorkerRecord
from taskharbor.core.outcome import Outcome
from taskharbor.core.request import QUEUE_PATTERN
from taskharbor.core.states import Status
from taskharbor.deadletters import Relay, to_queue
from taskharbor.delivery.transport import DEAD_EVENTS
from taskharbor.janitor import ClockGuard, Janitor
from taskharbor.runtime import ThreadRuntime
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.service import until_signal
from taskharbor.worker.context import Surroundings
from taskharbor.worker.deliveries import Deliveries
from taskharbor.worker.executor import Executor
from taskharbor.worker.hand import Hands, Why
from taskharbor.worker.heartbeat import Heartbeat
from taskharbor.worker.intake import Intake
from taskharbor.worker.lifespan import Span, check_lifespan
from taskharbor.worker.messages import Messages
from taskharbor.worker.middleware import handler
from taskharbor.worker.recorder import Recorder
from taskharbor.worker.reporting import Reporter
from taskharbor.worker.taking import Taking
from taskharbor.worker.telling import Telling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.facts import Hook
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.runtime import Loop, Runtime
    from taskharbor.schedules.spec import ScheduleSpec
    from taskharbor.worker.hand import Hand
    from taskharbor.worker.lifespan import Lifespan
    from taskharbor.worker.middleware import Handler, Middleware

_LOG: Final = logging.getLogger(__name__)
CONCURRENCY: Final = 16
LEASE: Final = timedelta(seconds=30)
GRACE: Final = timedelta(seconds=25)
POLL: Final = timedelta(seconds=1)
PATIENCE: Final = timedelta(seconds=60)
VISIBILITY: Final = timedelta(seconds=60)
WAIT: Final = timedelta(seconds=2)
"""How long one receive waits for messages. A worker that stops waits for it, or what comes last stays hidden."""
ALIVE: Final = timedelta(seconds=10)
LOOK: Final = timedelta(milliseconds=20)
FOREVER: Final = timedelta(days=3650)
JOIN: Final = timedelta(seconds=5)
MOMENT: Final = 1.0  # seconds in which handlers may end by themselves, once they were asked to
REST: Final = timedelta(seconds=1)  # for a job that could not be started
SHORTEST_LEASE: Final = timedelta(milliseconds=100)
MARGIN: Final = 0.05
"""The part of a lease by which a worker takes it to be over early: two clocks never run alike."""


class Worker:
    """Runs the jobs of some queues.

    *queues* are names, or a mapping from a name to how many of its jobs run at once;
    *concurrency* is how many do in all: 16, or what the mapping adds up to. An
    attempt holds its job by a *lease* that is renewed every *heartbeat*. *unknown_types* says
    what becomes of a job without a handler here: a dead letter, or left for other workers. What
    *lifespan* yields is every handler's ``ctx.state``, and *schedules* are stored when it starts.

    With a *transport* jobs are taken by the messages that a `DueTaskEnqueuer` sends, which are
    hidden from others for *visibility*, and those without one only when they are due for longer than
    *patience*. Events of jobs that died go to the queue *dead_letters*.

    >>> from taskharbor import Client, JobRequest, MemoryDriver
    >>> driver = MemoryDriver()
    >>> worker = Worker(driver)
    >>> worker.register("greet", lambda job: print("hello", job.data))
    >>> _ = Client(driver).enqueue(JobRequest(type="greet", payload="Ada"))
    >>> worker.drain()
    hello Ada
    """

    def __init__(
        self,
        driver: Driver,
        *,
        queues: Sequence[str] | Mapping[str, int] = ("default",),
        concurrency: int | None = None,
        lease: timedelta = LEASE,
        heartbeat: timedelta | None = None,
        grace: timedelta = GRACE,
        poll: timedelta = POLL,
        patience: timedelta = PATIENCE,
        unknown_types: Literal["dead-letter", "leave"] = "dead-letter",
        middleware: Sequence[Middleware] = (),
        codec: Codec | None = None,
        hooks: Sequence[Hook] = (),
        transport: Transport | None = None,
        visibility: timedelta = VISIBILITY,
        wait: timedelta = WAIT,
        dead_letters: str | None = DEAD_EVENTS,
        janitor: bool = True,
        scheduler: Scheduler | None = None,
        schedules: Sequence[ScheduleSpec] = (),
        lifespan: Lifespan | None = None,
        name: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        limits = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, concurrency or CONCURRENCY)
        concurrency = concurrency if concurrency is not None else _in_all(queues)
        beat = lease / 3 if heartbeat is None else heartbeat
        _check(limits, concurrency, lease, beat)
        self.id = name or f"{socket.gethostname()}:{os.getpid()}:{new_token().hex[:8]}"
        self.grace = grace
        self._driver = driver
        self._runtime = runtime or ThreadRuntime(plain=concurrency)
        self._limits, self._concurrency, self._poll = limits, concurrency, poll
        self._middleware = tuple(middleware)
        self._leaves_unknown = unknown_types == "leave"
        self._handlers: dict[str, Handler] = {}
        self._policies: dict[str, RetryPolicy] = {}
        self._started_at = self._runtime.now()
        margin = lease.total_seconds() * MARGIN
        self._last_moment = MOMENT + lease.total_seconds()  # late by that, what cannot be given back is over
        self._hands = Hands(self._runtime, concurrency=concurrency, queues=limits)
        self._tell = Telling(hooks)
        self._guard = ClockGuard(self._runtime, driver, lease=lease)
        self._recorder = Recorder(self._runtime, driver, self._hands, settled=self._settled, freed=self._wake_intake)
        self._reporter = Reporter(self._runtime, driver, wake=lambda: self._wake("reporter"))
        self._around = Surroundings(driver, codec or JsonCodec(), note=self._reporter.note)
        self._executor = Executor(
            self._runtime, self._handlers, self._policies, around=self._around, report=self._ended
        )
        if lifespan is not None:
            check_lifespan(lifespan)
        self._lifespan = lifespan
        self._span: Span | None = None
        self._transport, self._visibility, self._wait = transport, visibility, wait
        self._messages: Messages | None = None
        self._relay: Relay | None = None
        if transport is not None:
            self._messages = Messages(
                self._runtime, driver, transport, visibility=visibility, wake=lambda: self._wake("messages")
            )
            self._relay = None if dead_letters is None else Relay(driver, to_queue(transport, dead_letters))
        self._heartbeat = Heartbeat(
            self._runtime, driver, self._hands, lease=lease, every=beat, margin=margin, kept=self._keep
        )
        self._intake = self._make_intake(lease=lease, margin=margin, patience=patience, codec=codec)
        relay = None if self._relay is None else lambda: self._wake("relay")
        self._scheduler = scheduler or Scheduler(driver, codec=codec or JsonCodec())
        self._schedules = tuple(schedules)
        self._janitor = (
            Janitor(self._runtime, driver, lease=lease, guard=self._guard, relay=relay, scheduler=self._scheduler)
            if janitor
            else None
        )
        self._loops: dict[str, Loop] = {}
        self._supervisor: Loop | None = None
        self._listener: Listener | None = None
        self._stopping = self._runtime.lock()
        self._stops_by: float | None = None
        self._is_over = False

    def register(self, type: str, function: Callable[..., Any], *, policy: RetryPolicy | None = None) -> None:
        """Let *function* handle jobs of *type*: ``handler(job)`` or ``handler(job, ctx)``, plain or async."""
        self._handlers[type] = handler(function, self._middleware)
        if policy is not None:
            self._policies[type] = policy

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, or until `stop` is called elsewhere; a second signal ends the process now."""
        until_signal(self.start, self.stop, is_over=lambda: self._is_over)

    def start(self) -> None:
        """Begin to work, in threads of the worker's own."""
        if self._lifespan is not None:
            self._span = Span(self._runtime, self._lifespan)
            self._around.state = self._span.enter()
        serve = self._runtime.serve
        self._loops["reporter"] = serve("reporter", self._unless_over(self._reporter.tick))
        self._loops["recorder"] = serve("recorder", self._unless_over(self._recorder.tick))
        self._loops["heartbeat"] = serve("heartbeat", self._unless_over(self._heartbeat.tick))
        self._loops["alive"] = serve("alive", self._unless_over(self._beat))
        self._loops["clock"] = serve("clock", self._unless_over(self._guard.tick))
        if self._janitor is not None:
            self._loops["janitor"] = serve("janitor", self._unless_over(self._janitor.tick))
        if self._schedules:
            self._loops["schedules"] = serve("schedules", self._put_schedules)
        if self._relay is not None:
            self._loops["relay"] = serve("relay", self._unless_over(self._relay.tick))
        if self._messages is not None:
            self._loops["messages"] = serve("messages", self._unless_over(self._messages.tick))
        for name, tick in self._intake.ticks.items():
            self._loops[name] = serve(name, self._unless_over(tick))
        if self._runtime.may_block and self._messages is None:  # messages ring by themselves
            self._listener = self._driver.listen(list(self._limits))
            self._loops["listener"] = serve("listener", self._unless_over(self._listen))

    def drain(self, timeout: timedelta = FOREVER) -> None:
        """Work until nothing is due and nothing in hand, or *timeout* has passed, and stop."""
        self.start()
        is_dry = self._runtime.serve("drain", lambda: LOOK if self._is_busy() else None)
        is_dry.join(timeout)
        self.stop()

    def _is_busy(self) -> bool:
        return not self._intake.is_dry or len(self._hands) > 0

    def stop(self, grace: timedelta | None = None) -> None:
        """Take no more jobs, let those in hand end within *grace*, give back the rest, and return when that is done."""
        self.begin_stop(grace)
        if self._supervisor is not None:
            self._supervisor.join(FOREVER)

    def begin_stop(self, grace: timedelta | None = None) -> None:
        """Begin to stop, and return at once."""
        self._intake.is_stopped = True
        seconds = (self.grace if grace is None else grace).total_seconds()
        self._stops_by = self._runtime.monotonic() + seconds
        self._wake_intake()
        with self._stopping:
            if self._supervisor is None:
                self._supervisor = self._runtime.serve("supervisor", self._supervise)

    @property
    def types(self) -> tuple[str, ...]:
        """The types that it has a handler for."""
        return tuple(sorted(self._handlers))

    @property
    def is_over(self) -> bool:
        """Whether it has stopped, and given back what it held."""
        return self._is_over

    def _supervise(self) -> timedelta | None:
        """Wait for what is in hand; when the grace is over, ask it to stop, and a moment later give it back."""
        late = self._runtime.monotonic() - (self._stops_by or 0.0)
        for hand in self._hands.all() if late >= 0 else ():
            hand.stop(Why.SHUTDOWN)
            if late >= MOMENT:
                # A thread that does not look whether it shall stop: the process ends before it does.
                self._ended(hand, Outcome.release())
        if (len(self._hands) or self._may_take() or self._has_messages()) and late < self._last_moment:
            return LOOK
        self._end()
        return None

    def _may_take(self) -> bool:
        """Whether jobs may still come in: a call for some is under way, or its reply was lost."""
        return any(name in self._loops for name in self._intake.ticks) and not self._intake.is_quiet

    def _has_messages(self) -> bool:
        """Whether messages are still to be deleted, or to be shown to others."""
        return self._messages is not None and not self._messages.is_done

    def _end(self) -> None:
        self._is_over = True
        if self._listener is not None:
            self._listener.wake()
        if left := len(self._hands):
            _LOG.error("ending with %d jobs in hand that could not be given back: their leases will end", left)
        for loop in self._loops.values():
            loop.wake()
        for loop in self._loops.values():
            loop.join(JOIN)
        if self._listener is not None:
            self._listener.close()
        self._leave_span()
        self._runtime.close()

    def _leave_span(self) -> None:
        if self._span is None:
            return
        try:
            self._span.leave()
        except Exception:  # noqa: BLE001  a user's code, and all jobs are given back by now
            _LOG.exception("the lifespan did not end well")

    def _make_intake(
        self, *, lease: timedelta, margin: float, patience: timedelta, codec: Codec | None
    ) -> Intake | Deliveries:
        options: dict[str, Any] = {
            "worker": self.id,
            "lease": lease,
            "margin": margin,
            "patience": patience,
            "types": self._types,
            "may_reclaim": self._guard.may_reclaim,
            "start": self._start,
            "codec": codec,
        }
        if self._transport is None or self._messages is None:
            return Intake(
                self._runtime, self._driver, self._hands, queues=list(self._limits), poll=self._poll, **options
            )
        return Deliveries(
            self._runtime,
            self._transport,
            self._hands,
            self._messages,
            takings={queue: Taking(self._runtime, self._driver, self._hands, **options) for queue in self._limits},
            wake=self._wake,
            wait=self._wait,
            visibility=self._visibility,
            poll=self._poll,
            patience=patience,
        )

    def _unless_over(self, tick: Callable[[], timedelta]) -> Callable[[], timedelta | None]:
        return lambda: None if self._is_over else tick()

    def _types(self) -> frozenset[str] | None:
        return frozenset(self._handlers) if self._leaves_unknown else None

    def _start(self, hand: Hand) -> None:
        if self._tell.is_heard:
            self._tell(JobClaimed(claim=hand.claim))
        if self._intake.is_stopped:  # it was asked for before, and came after
            self._ended(hand, Outcome.release())
            return
        try:
            self._executor.start(hand)
        except Exception:  # noqa: BLE001  there may be no thread left; kept in hand, it would be kept from everybody
            _LOG.exception("cannot start job %s", hand.claim.job.id)
            self._ended(hand, Outcome.snooze(after=REST))
        if self._heartbeat.is_late_for(hand):
            self._wake("heartbeat")

    def _ended(self, hand: Hand, outcome: Outcome | None) -> None:
        if self._recorder.put(hand, outcome):
            self._wake("recorder")

    def _settled(self, hand: Hand, outcome: Outcome | None, answer: Settled | TaskHarborError | None) -> None:
        if hand.is_completed and isinstance(answer, JobNotInflight):
            outcome, answer = (
                Outcome.ack(),
                Settled(hand.claim.job.id, Status.SUCCEEDED),
            )  # in the handler's transaction
        is_settled = isinstance(answer, Settled)
        if self._messages is not None:
            self._messages.found(hand.received, Finding.SETTLED if is_settled else Finding.UNSETTLED)
        if isinstance(answer, Settled) and answer.status is Status.DEAD:
            self._wake("relay")
        if is_settled and not self._tell.is_heard:
            return
        advice = "" if is_settled else self._heartbeat.advice(hand)
        self._tell.of(hand, outcome, answer, ended_at=self._runtime.now(), advice=advice)

    def _wake(self, name: str) -> None:
        if (loop := self._loops.get(name)) is not None:  # None while it is being started: it has not looked yet
            loop.wake()

    def _wake_intake(self) -> None:
        for name in self._intake.ticks:
            self._wake(name)

    def _keep(self, hands: list[Hand]) -> None:
        if self._messages is not None:
            self._messages.keep(hands)

    def _listen(self) -> timedelta:
        if self._listener is not None and self._listener.wait(self._poll):
            self._wake_intake()
        return timedelta(0)

    def _put_schedules(self) -> timedelta | None:
        """Store the schedules that came with the handlers; tried again until the store can be reached."""
        if self._is_over:
            return None
        try:
            self._scheduler.put(self._schedules)
        except StoreUnavailable as error:
            _LOG.warning("cannot store the schedules: %s", error)
            return REST
        return None

    def _beat(self) -> timedelta:
        record = WorkerRecord(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(self._limits),
            types=self.types,
            concurrency=self._concurrency,
            started_at=self._started_at,
        )
        try:
            self._driver.upkeep.beat_worker(record)
        except StoreUnavailable as error:
            _LOG.warning("cannot say that this worker is alive: %s", error)
        return ALIVE


def _in_all(queues: Sequence[str] | Mapping[str, int]) -> int:
    return sum(queues.values()) if isinstance(queues, Mapping) and queues else CONCURRENCY


def _check(queues: Mapping[str, int], concurrency: int, lease: timedelta, heartbeat: timedelta) -> None:
    for name, limit in {**queues, "concurrency": concurrency}.items():
        if limit < 1:
            raise UsageError(Problem(field=name, value=str(limit), rule="at least 1 job must run at once"))
    if not queues:
        raise UsageError(Problem(field="queues", value="none", rule="name at least one"))
    for name in queues:
        if QUEUE_PATTERN.fullmatch(name) is None:
            raise UsageError(Problem(field="queue", value=repr(name), rule=f"must match {QUEUE_PATTERN.pattern}"))
    if lease < SHORTEST_LEASE:
        raise UsageError(Problem(field="lease", value=str(lease), rule=f"at least {SHORTEST_LEASE}"))
    if not timedelta(0) < heartbeat <= lease / 3:
        rule = f"at most a third of the lease, {lease / 3}: two beats may fail before it runs out"
        raise UsageError(Problem(field="heartbeat", value=str(heartbeat), rule=rule))
