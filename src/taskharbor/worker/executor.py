"""Turning one claim into one outcome."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.decide import DEFAULT_POLICY, decide
from taskharbor.core.errors import JobTimedOut, PayloadNotEncodable
from taskharbor.core.model import result_context
from taskharbor.core.outcome import Outcome
from taskharbor.worker.context import Context, NotCommitted, Running, running
from taskharbor.worker.hand import Why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.retry import RetryPolicy
    from taskharbor.runtime import Runtime
    from taskharbor.worker.context import Surroundings
    from taskharbor.worker.hand import Hand
    from taskharbor.worker.middleware import Handler

    Report = Callable[[Hand, Outcome | None], None]

_LOG: Final = logging.getLogger(__name__)
REST: Final = timedelta(seconds=1)  # for a job that could not be started


class HandlerExited(Exception):
    """A handler tried to end the process: that fails its attempt, and nobody else's."""


class HandlerCancelled(Exception):
    """A handler ended as if it were cancelled, but nobody had asked: what it awaited was."""

    def __str__(self) -> str:
        return "the handler was cancelled, or awaited something that was; not by this worker"


class HandlerRaised(Exception):
    """A handler raised something that cannot even be described."""

    def __init__(self, name: str, wild: str) -> None:
        super().__init__(name, wild)
        self.name, self.wild = name, wild

    def __str__(self) -> str:
        return f"a {self.name}, which raised {self.wild} on being looked at"


class Executor:
    """Runs handlers, and reports how each attempt ended; None where it must record nothing."""

    def __init__(
        self,
        runtime: Runtime,
        handlers: Mapping[str, Handler],
        policies: Mapping[str, RetryPolicy],
        *,
        around: Surroundings,
        report: Report,
    ) -> None:
        self._runtime = runtime
        self._handlers = handlers
        self._policies = policies
        self._around = around
        self._report = report

    def start(self, hands: Sequence[Hand]) -> None:
        """Begin the attempts, or report at once why not."""
        for_loop: list[tuple[Hand, Handler]] = []
        for hand in hands:
            handler = self._handlers.get(hand.claim.job.type)
            if handler is None:
                self._report(hand, Outcome.fail(f"no handler for type {hand.claim.job.type!r} is registered here"))
            elif handler.is_async:
                for_loop.append((hand, handler))
            else:
                self._start_plain(hand, handler)
        if for_loop:
            self._start_async(for_loop)

    def _start_plain(self, hand: Hand, handler: Handler) -> None:
        try:
            self._runtime.run_plain(partial(self._run_plain, hand, handler))
        except Exception:  # noqa: BLE001  there may be no thread left
            self._give_back([hand])

    def _start_async(self, for_loop: Sequence[tuple[Hand, Handler]]) -> None:
        """Hand over all of them at once: for each alone the loop's thread would have to be woken."""
        hands = [hand for hand, _ in for_loop]
        works = [(self._call_async(hand, handler), partial(self._report_cancelled, hand)) for hand, handler in for_loop]
        try:
            runs = self._runtime.run_async(works)
        except Exception:  # noqa: BLE001  as above
            for work, _ in works:
                work.close()
            self._give_back(hands)
            return
        for hand, run in zip(hands, runs, strict=True):
            hand.runs(run.cancel)

    def _give_back(self, hands: Sequence[Hand]) -> None:
        """Give back what could not be started: kept in hand, it would be kept from everybody."""
        for hand in hands:
            _LOG.exception("cannot start job %s", hand.claim.job.id)
            self._report(hand, Outcome.snooze(after=REST))

    def _may_begin(self, hand: Hand) -> bool:
        """Tell whether a handler may begin, whose thread or loop may have been busy for long; else report why not."""
        if hand.why is not None:
            self._report(hand, self.stopped(hand))
        elif self._runtime.monotonic() >= hand.ends_at:
            # Its lease may be over: nobody knows, and somebody else may have the job. If so, the store refuses this.
            self._report(hand, Outcome.release())
        else:
            return True
        return False

    def _run_plain(self, hand: Hand, handler: Handler) -> None:
        if not self._may_begin(hand):
            return
        # In a copy: what a handler leaves in a context variable must not meet the next one of this thread.
        copy_context().run(self._call_plain, hand, handler)

    def _call_plain(self, hand: Hand, handler: Handler) -> None:
        running.set(_running(hand))
        hand.thread = self._runtime.thread_id()
        try:
            result = handler.call(hand.claim.job, Context(hand, self._around))
        except BaseException as error:  # noqa: BLE001  whatever a handler raises fails its attempt, and nothing else
            hand.returned(self._runtime.monotonic())
            self._report(hand, self._failed(hand, error))
        else:
            is_late = hand.returned(self._runtime.monotonic())
            self._report(hand, self._succeeded(hand, result, is_late=is_late))

    async def _call_async(self, hand: Hand, handler: Handler) -> None:
        if not self._may_begin(hand):
            return
        running.set(_running(hand))  # in a context of its task's own
        try:
            result = await handler.call(hand.claim.job, Context(hand, self._around))
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio would let these end its loop
            self._report(hand, self._failed(hand, HandlerExited(repr(error))))
        except asyncio.CancelledError:
            self._report_cancelled(hand)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises fails its attempt, and nothing else
            self._report(hand, self._failed(hand, error))
        else:
            self._report(hand, self._succeeded(hand, result))

    def _report_cancelled(self, hand: Hand) -> None:
        self._report(hand, self._failed(hand, HandlerCancelled()))

    def _succeeded(self, hand: Hand, result: object, *, is_late: bool = False) -> Outcome | None:
        if hand.why is Why.LOST:
            return None
        if hand.is_completed:
            # Refused if the handler's transaction has committed, and what became of the attempt if not.
            return self._decided(hand, NotCommitted())
        if is_late:
            return self.stopped(hand)
        job = hand.claim.job
        try:
            data = None if result is None else self._around.codec.encode(result, context=result_context(job.id))
        except PayloadNotEncodable as error:
            return Outcome.fail(f"its result cannot be stored: {error}")
        except BaseException as error:  # noqa: BLE001  the codec and the result are a user's: an attempt must end
            return Outcome.fail(f"its result cannot be stored: {type(error).__name__}")
        return Outcome.ack(data)

    def _failed(self, hand: Hand, error: BaseException) -> Outcome | None:
        return self._decided(hand, error) if hand.why is None else self.stopped(hand)

    def stopped(self, hand: Hand) -> Outcome | None:
        """Return the outcome of an attempt that ended because it was asked to."""
        match hand.why:
            case Why.CANCEL:
                return Outcome.cancel(Why.CANCEL.value)
            case Why.SHUTDOWN:
                return Outcome.release()
            case Why.TIMEOUT:
                return self._decided(hand, JobTimedOut(hand.claim.job.id, _timeout(hand)))
            case _:
                return None

    def _decided(self, hand: Hand, error: BaseException) -> Outcome:
        job = hand.claim.job
        policy = self._policies.get(job.type, DEFAULT_POLICY)
        try:
            return decide(job, error, self._runtime.now(), policy=policy)
        except BaseException as wild:  # noqa: BLE001  raised by the error itself, on being looked at: an attempt must end
            return decide(job, HandlerRaised(type(error).__name__, type(wild).__name__), self._runtime.now())


def _running(hand: Hand) -> Running:
    job = hand.claim.job
    return Running(job.id, job.attempt_count, hand.claim.lease.token)


def _timeout(hand: Hand) -> Any:
    return hand.claim.job.timeout
