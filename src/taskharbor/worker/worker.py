"""A worker: takes jobs, runs their handlers, and records what became of them."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from taskharbor.core.answers import Settled
from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import JobNotInflight
from taskharbor.core.facts import JobClaimed
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Event, Status
from taskharbor.deadletters import relay_for
from taskharbor.delivery.transport import DEAD_EVENTS
from taskharbor.janitor import ClockGuard, Janitor
from taskharbor.runtime import ThreadRuntime
from taskharbor.schedules.scheduler import Scheduler
from taskharbor.service import LOST_SLOTS_EXIT, until_signal
from taskharbor.worker.agreeing import CodecCheck
from taskharbor.worker.context import Surroundings
from taskharbor.worker.declaring import put_schedules
from taskharbor.worker.deliveries import Deliveries
from taskharbor.worker.executor import Executor
from taskharbor.worker.hand import Hands, Why
from taskharbor.worker.heartbeat import Heartbeat
from taskharbor.worker.intake import Intake
from taskharbor.worker.lifespan import Span, check_lifespan
from taskharbor.worker.mail import Mail
from taskharbor.worker.middleware import handler
from taskharbor.worker.options import UNHANDLED_AFTER, check_options, checked_visibility, limits_of
from taskharbor.worker.presence import Presence, new_worker_id
from taskharbor.worker.recorder import Recorder
from taskharbor.worker.reporting import Reporter
from taskharbor.worker.taking import Taking
from taskharbor.worker.telling import Telling
from taskharbor.worker.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.codec import Codec
    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.facts import Hook
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.deadletters import Publisher
    from taskharbor.delivery.transport import Transport
    from taskharbor.drivers.base import Driver, Listener
    from taskharbor.runtime import Loop, Runtime
    from taskharbor.schedules.spec import ScheduleSpec
    from taskharbor.worker.hand import Hand
    from taskharbor.worker.lifespan import Lifespan
    from taskharbor.worker.middleware import Handler, Middleware
    from taskharbor.worker.options import Queues

_LOG: Final = logging.getLogger(__name__)
LEASE: Final = timedelta(seconds=30)
GRACE: Final = timedelta(seconds=25)
POLL: Final = timedelta(seconds=1)
PATIENCE: Final = timedelta(seconds=60)
WAIT: Final = timedelta(seconds=2)
"""How long one receive waits for messages. A worker that stops waits for it, or what comes last stays hidden."""
LOOK: Final = timedelta(milliseconds=20)
FOREVER: Final = timedelta(days=3650)
JOIN: Final = timedelta(seconds=5)
MOMENT: Final = 1.0  # seconds in which handlers may end by themselves, once they were asked to
MARGIN: Final = 0.05
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
    only when they are due for longer than *patience*. Events of jobs that died go to *publisher*
    (`taskharbor.deadletters`), or to its queue *dead_letters*.

    >>> from taskharbor import Client, JobRequest, MemoryDriver
    >>> driver = MemoryDriver()
    >>> worker = Worker(driver)
    >>> worker.register("greet", lambda job: print("hello", job.data))
    >>> _ = Client(driver).enqueue(JobRequest(type="greet", payload="Ada"))
    >>> worker.drain()
    hello Ada
    """

    _span: Span | None = None
    _listener: Listener | None = None
    _supervisor: Loop | None = None
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
        patience: timedelta = PATIENCE,
        unknown_types: Literal["dead-letter", "leave"] = "dead-letter",
        unhandled_after: timedelta = UNHANDLED_AFTER,
        middleware: Sequence[Middleware] = (),
        codec: Codec | None = None,
        hooks: Sequence[Hook] = (),
        transport: Transport | None = None,
        visibility: timedelta | None = None,
        wait: timedelta = WAIT,
        dead_letters: str | None = DEAD_EVENTS,
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
        self._runtime = runtime or ThreadRuntime(plain=in_all)
        self._limits, self._poll, self._lease = limits, poll, lease
        self._last_moment = MOMENT + lease.total_seconds()  # late by that, what cannot be given back is over
        self._middleware = tuple(middleware)
        self._unhandled_after = None if unknown_types == "leave" else unhandled_after
        self._handlers: dict[str, Handler] = {}
        self._policies: dict[str, RetryPolicy] = {}
        self._lifespan, self._schedules = lifespan, tuple(schedules)
        self._scheduler = scheduler or Scheduler(driver, codec=codec or JsonCodec())
        self._hands = Hands(self._runtime, concurrency=in_all, queues=limits)
        self._tell = Telling(hooks)
        self._guard = ClockGuard(self._runtime, driver, lease=lease)
        self._recorder = Recorder(self._runtime, driver, self._hands, settled=self._settled, freed=self._freed)
        self._reporter = Reporter(self._runtime, driver, wake=lambda: self._wake("reporter"))
        self._around = Surroundings(driver, codec or JsonCodec(), note=self._reporter.note)
        self._executor = Executor(
            self._runtime, self._handlers, self._policies, around=self._around, report=self._ended
        )
        self._mail = self._make_mail(transport, visibility, beat, wait=wait)
        self._relay = relay_for(driver, publisher=publisher, transport=transport, queue=dead_letters)
        margin = lease.total_seconds() * MARGIN
        self._timeouts = Timeouts(self._runtime, self._hands, lease=lease, wake=self._wake, end=self.begin_stop)
        self._heartbeat = self._make_heartbeat(every=beat, margin=margin)
        self._intake = self._make_intake(margin=margin, patience=patience, codec=codec)
        self.codec_check = CodecCheck(driver, self._around.codec, lambda: self._intake.is_stopped, self.begin_stop)
        self._janitor = self._make_janitor() if janitor else None
        self._presence = Presence(
            self._runtime, driver, self._hands, worker=self.id, queues=list(limits), types=lambda: self.types
        )
        self._loops: dict[str, Loop] = {}
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
        until_signal(self.start, self.stop, is_over=lambda: self._is_over)
        self.codec_check.raise_refusal()
        if self.is_exhausted:
            raise SystemExit(LOST_SLOTS_EXIT)

    def start(self) -> None:
        """Begin to work, in threads of the worker's own. Raises `CodecMismatch` if it could not read any payload."""
        self.codec_check.begin()
        if self._lifespan is not None:
            self._span = Span(self._runtime, self._lifespan)
            self._around.state = self._span.enter()
        serve = self._runtime.serve
        for name, tick in self._ticks().items():
            self._loops[name] = serve(name, self._unless_over(tick))
        if self._schedules:
            put = self._unless_over(partial(put_schedules, self._scheduler, self._schedules))
            self._loops["schedules"] = serve("schedules", put)
        if self._runtime.may_block and self._mail is None:  # messages ring by themselves
            self._listener = self._driver.listen(list(self._limits))
            self._loops["listener"] = serve("listener", self._unless_over(self._listen))
        if self._runtime.may_block:
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
            **({} if self._mail is None else self._mail.ticks),
            **({} if self._relay is None else {"relay": self._relay.tick}),
            **self.codec_check.guarded(self._intake.ticks),
        }

    def drain(self, timeout: timedelta = FOREVER) -> None:
        """Work until nothing is due and nothing in hand, or *timeout* has passed, and stop."""
        self._is_draining = True
        self.start()
        is_dry = self._runtime.serve("drain", lambda: LOOK if self._is_busy() else None)
        is_dry.join(timeout)
        self.stop()
        self.codec_check.raise_refusal()

    def _is_busy(self) -> bool:
        if self._is_over or self.codec_check.refusal is not None:
            return False
        return not self._intake.is_dry or len(self._hands) > self.lost_slots

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
    def lost_slots(self) -> int:
        """How many slots are kept by sync handlers that did not return within a lease of their timeout."""
        return self._hands.lost_slots

    @property
    def is_exhausted(self) -> bool:
        """Whether it ends, or has ended, by itself because half of its slots were lost."""
        return self._timeouts.is_exhausted

    @property
    def is_over(self) -> bool:
        """Whether it has stopped, and given back what it held."""
        return self._is_over

    def _supervise(self) -> timedelta | None:
        """Wait for what is in hand; when the grace is over, ask it to stop, and a moment later give it back."""
        late = self._runtime.monotonic() - (self._stops_by or 0.0)
        for hand in self._hands.all():
            if late >= 0:
                hand.stop(Why.SHUTDOWN)
            if late >= MOMENT or hand.is_slot_lost:
                # A thread that does not look whether it shall stop: the process ends before it does.
                self._ended(hand, self._executor.stopped(hand))
        if (len(self._hands) or self._may_take() or self._has_messages()) and late < self._last_moment:
            return LOOK
        self._end()
        return None

    def _may_take(self) -> bool:
        """Whether jobs may still come in: a call for some is under way, or its reply was lost."""
        return any(name in self._loops for name in self._intake.ticks) and not self._intake.is_quiet

    def _has_messages(self) -> bool:
        """Whether messages are still to be deleted, or to be shown to others."""
        return self._mail is not None and not self._mail.messages.is_done

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
        if self._span is not None:
            self._span.leave()
        self._runtime.close()

    def _make_mail(
        self, transport: Transport | None, visibility: timedelta | None, beat: timedelta, **options: Any
    ) -> Mail | None:
        if transport is None:
            return None
        options["visibility"] = checked_visibility(visibility, self._lease, beat)
        return Mail(self._runtime, self._driver, transport, wake=self._wake, tell=self._tell, **options)

    def _make_heartbeat(self, *, every: timedelta, margin: float) -> Heartbeat:
        return Heartbeat(
            self._runtime,
            self._driver,
            self._hands,
            lease=self._lease,
            every=every,
            margin=margin,
            timeouts=self._timeouts,
            kept=None if self._mail is None else self._mail.messages.keep,
        )

    def _make_janitor(self) -> Janitor:
        return Janitor(
            self._runtime,
            self._driver,
            lease=self._lease,
            guard=self._guard,
            relay=None if self._relay is None else lambda: self._wake("relay"),
            tell=self._tell,
            scheduler=self._scheduler,
        )

    def _make_intake(self, *, margin: float, patience: timedelta, codec: Codec | None) -> Intake | Deliveries:
        options: dict[str, Any] = {
            "worker": self.id,
            "lease": self._lease,
            "margin": margin,
            "patience": patience,
            "types": lambda: frozenset(self._handlers),
            "unhandled_after": self._unhandled_after,
            "may_reclaim": self._guard.may_reclaim,
            "start": self._start,
            "codec": codec,
        }
        common, queues, poll = (self._runtime, self._driver, self._hands), list(self._limits), self._poll
        if self._mail is None:
            return Intake(*common, queues=queues, poll=poll, **options)
        return Deliveries(
            self._runtime,
            self._hands,
            self._mail,
            takings={queue: Taking(*common, **options) for queue in queues},
            wake=self._wake,
            poll=poll,
            patience=patience,
        )

    def _unless_over(self, tick: Callable[[], timedelta | None]) -> Callable[[], timedelta | None]:
        return lambda: None if self._is_over else tick()

    def _start(self, hands: list[Hand]) -> None:
        if self._tell.is_heard:
            for hand in hands:
                self._tell(JobClaimed(claim=hand.claim))
        if self._intake.is_stopped:  # they were asked for before, and came after
            for hand in hands:
                self._ended(hand, Outcome.release())
            return
        self._executor.start(hands)
        if self._heartbeat.is_late_for(hands):
            self._wake("heartbeat")

    def _ended(self, hand: Hand, outcome: Outcome | None) -> None:
        self._timeouts.ended(hand)
        if self._recorder.put(hand, outcome):
            self._wake("recorder")

    def _settled(
        self, ended: Sequence[tuple[Hand, Outcome | None]], answers: Sequence[Settled | TaskHarborError | None]
    ) -> None:
        is_told = self._mail is not None or self._tell.is_heard
        for (hand, outcome), answer in zip(ended, answers, strict=True):
            if is_told or not isinstance(answer, Settled) or answer.status is Status.DEAD:
                self._tell_of(hand, outcome, answer)

    def _tell_of(self, hand: Hand, outcome: Outcome | None, answer: Settled | TaskHarborError | None) -> None:
        if hand.is_completed and isinstance(answer, JobNotInflight):
            # In the handler's own transaction.
            outcome, answer = Outcome.ack(), Settled(hand.claim.job.id, Status.SUCCEEDED)
        is_settled = isinstance(answer, Settled)
        if self._mail is not None:
            self._mail.settled(hand, answer)
        if outcome is None or outcome.event is not Event.ACK:
            self._wake_intake()  # the job may be due again at once
        if isinstance(answer, Settled) and answer.status is Status.DEAD:
            self._wake("relay")
        elif is_settled and not self._tell.is_heard:
            return
        advice = "" if is_settled else self._heartbeat.advice(hand)
        self._tell.of(hand, outcome, answer, ended_at=self._runtime.now(), advice=advice)

    def _freed(self) -> None:
        """Let the intake look where room is what it waits for: elsewhere a look finds nothing, and is in the way."""
        if self._intake.wants_room or self._is_draining:
            self._wake_intake()

    def _wake(self, name: str) -> None:
        if (loop := self._loops.get(name)) is not None:  # None while it is being started, which ends with a call to all
            loop.wake()

    def _wake_intake(self) -> None:
        for name in self._intake.ticks:
            self._wake(name)

    def _listen(self) -> timedelta:
        if self._listener is not None and self._listener.wait(self._poll):
            self._wake_intake()
        return timedelta(0)
