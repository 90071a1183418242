"""Runs handlers, and turns their results and errors into outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from contextvars import Context as ContextVars
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskharbor.core.codec import encode_with
from taskharbor.core.errors import JobTimedOut, PayloadNotEncodable
from taskharbor.core.failure import user_frames
from taskharbor.core.hooks import JobsStarted
from taskharbor.core.model import result_context
from taskharbor.core.outcome import Outcome, decide_outcome
from taskharbor.core.states import Event
from taskharbor.core.text import duration_text
from taskharbor.observability.hook_caller import NO_HOOKS
from taskharbor.observability.job_log import CurrentAttempt, current_attempt, job_fields
from taskharbor.runtime import MAX_START_SECONDS
from taskharbor.worker.attempt_spans import AttemptSpans, TracedOutcomes
from taskharbor.worker.context import Context, NotCommitted
from taskharbor.worker.execution import StopReason
from taskharbor.worker.isolated_runs import IsolatedRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from taskharbor.core.model import Job
    from taskharbor.observability.hook_caller import HookCaller
    from taskharbor.runtime import Runtime
    from taskharbor.worker.context import HandlerServices
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.handlers import Handler, HandlerRegistry
    from taskharbor.worker.isolation.pool import ChildPool
    from taskharbor.worker.log_writer import LogWriter
    from taskharbor.worker.prefetch import Prefetch

_LOG: Final = logging.getLogger("taskharbor.worker")
START_RETRY_DELAY: Final = timedelta(seconds=1)  # of a job that could not be started
MAX_CYCLE_STARTS: Final = 256
"""How many waiting jobs are started in one cycle of the event loop. A cycle for each 16 takes a tenth of their time."""
_ACK: Final = Outcome.ack()
_NOT_BEGUN: Final = Outcome.release(bound=None)
"""The release of a job whose handler did not begin. It counts as nothing: the job did not cause it."""


class HandlerExited(Exception):
    """A handler tried to end the process. Only its own attempt fails."""


class HandlerCancelled(Exception):
    """A handler raised `asyncio.CancelledError` although the worker did not cancel it."""

    def __str__(self) -> str:
        return "the handler raised CancelledError, but this worker did not cancel it"


class UnprintableError(Exception):
    """A handler raised an exception that cannot be formatted."""

    def __init__(self, name: str, raised: str) -> None:
        super().__init__(name, raised)
        self.name, self.raised = name, raised

    def __str__(self) -> str:
        return f"{self.name} cannot be formatted: it raised {self.raised}"


class OutcomeSink(Protocol):
    """The stage after the executor: a recorder."""

    def put(self, execution: Execution, outcome: Outcome | None) -> None:
        """Record the outcome of an attempt; with None, only free its slot."""


class Executor:
    """Runs handlers, and passes the outcome of each attempt to the recorder: None if there is nothing to record."""

    def __init__(
        self,
        runtime: Runtime,
        handlers: HandlerRegistry,
        recorder: OutcomeSink,
        services: HandlerServices,
        *,
        prefetch: Prefetch,
        call_hooks: HookCaller = NO_HOOKS,
        logs: LogWriter | None = None,
        spans: AttemptSpans | None = None,
        children: ChildPool | None = None,
    ) -> None:
        self._spans = spans
        self._runtime = runtime
        self._prefetch = prefetch
        self._call_hooks = call_hooks
        self._reports_starts = call_hooks.wants(JobsStarted)
        self._logs = logs
        self._is_start_scheduled = False
        self._ended = 0  # async handlers whose places the scheduled start passes on
        self._free_places: deque[None] = deque()  # of sync handlers that have ended; not passed on yet
        self._handlers = handlers
        self._recorder = recorder if spans is None else TracedOutcomes(recorder)
        self._services = services
        self._isolated: IsolatedRuns | None = None
        if children is not None:
            new_runs = partial(IsolatedRuns, runtime=runtime, handlers=handlers, services=services)
            self._isolated = new_runs(self, children, recorder=self._recorder, prefetch=prefetch, spans=spans)

    def start(self, executions: Sequence[Execution]) -> None:
        """Start the handlers as soon as there are places. An attempt that cannot be started gets its outcome then."""
        self._start(self._prefetch.admit(executions))
        self._start_waiting()

    def put_back(self, executions: Sequence[Execution]) -> None:
        """Let taken jobs wait again, before all others. None of their handlers has begun."""
        self._prefetch.put_back(executions)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while executions := self._prefetch.take():  # again, if none of them could be started
            self._start(executions)

    def _start(self, executions: Sequence[Execution]) -> None:
        self.report_start(executions)
        async_handlers: list[tuple[Execution, Handler]] = []
        for execution in executions:
            handler = self._handlers.get(execution.claim.job.type)
            if handler is None:
                self._recorder.put(
                    execution, Outcome.fail(f"no handler for type {execution.claim.job.type!r} is registered here")
                )
                self._prefetch.end()
            elif handler.is_async and not (handler.is_isolated and self._isolated is not None):
                async_handlers.append((execution, handler))
            else:
                self._start_sync(execution, handler)
        if async_handlers:
            self._start_async(async_handlers)

    def report_start(self, executions: Sequence[Execution]) -> None:
        """Call the hooks before the handlers: a handler may end before this thread continues."""
        if not self._reports_starts:
            return
        types = self._handlers.types
        jobs = [execution.claim.job for execution in executions if execution.claim.job.type in types]
        if jobs:
            self._call_hooks(JobsStarted(jobs=jobs))

    def _start_sync(self, execution: Execution, handler: Handler) -> None:
        try:
            self._runtime.run_sync(partial(self._run_sync, execution, handler), self._pass_on_places)
        except Exception:  # noqa: BLE001  no new thread can be started
            self._snooze([execution])

    def _start_async(self, async_handlers: Sequence[tuple[Execution, Handler]]) -> None:
        """Pass all handlers to the event loop in one call: each call wakes the loop's thread."""
        works = [(self._run_async(execution, handler), execution) for execution, handler in async_handlers]
        try:
            self._runtime.run_async(works, self)
        except Exception:  # noqa: BLE001  as above
            for coroutine, _ in works:
                coroutine.close()
            self._snooze([execution for _, execution in works])

    def suspended(self, execution: Execution, cancel: Callable[[], None]) -> None:
        """Let a handler that did not end at once be stopped by its cancellation."""
        if not execution.is_settling:  # it may have been abandoned
            execution.set_stop(cancel)

    def unstarted(self, execution: Execution) -> None:
        """Record the outcome of an attempt whose coroutine did not run: otherwise its place would never be free."""
        if execution.began_at is None:
            self._report_cancelled(execution)
            self._end_async()

    def release(self, execution: Execution) -> None:
        """Return a claimed job to its queue; its handler was not called."""
        self._recorder.put(execution, _NOT_BEGUN if execution.stop_reason is None else self.stopped(execution))

    def release_waiting(self) -> None:
        """Return all jobs that wait for a place to their queues."""
        for execution in self._prefetch.remove_waiting():
            self.release(execution)

    def release_overdue(self) -> None:
        """Return all jobs that wait for a place to their queues if they have waited for too long."""
        if overdue := self._prefetch.remove_overdue():
            _LOG.info("releasing %d jobs that were claimed ahead: handlers have become slower", len(overdue))
        for execution in overdue:
            self.release(execution)

    def abandon(self, execution: Execution) -> None:
        """Record the outcome of an attempt that was asked to stop, without waiting for its handler."""
        self._recorder.put(execution, self.stopped(execution))

    def _snooze(self, executions: Sequence[Execution]) -> None:
        """Return jobs whose handlers could not be started, so that another worker can claim them."""
        for execution in executions:
            job, delay = execution.claim.job, duration_text(START_RETRY_DELAY.total_seconds())
            text = "job %s (%s): no thread can be started; retrying in %s"
            _LOG.exception(text, job.id, job.type, delay, extra=job_fields(job))
            self._recorder.put(execution, Outcome.snooze(after=START_RETRY_DELAY))
            self._prefetch.end()

    def may_begin(self, execution: Execution) -> bool:
        """Return whether the handler may begin; if not, record the outcome. Its thread or loop may have been busy."""
        now = self._runtime.monotonic()
        if execution.stop_reason is not None:
            self._recorder.put(execution, self.stopped(execution))
        elif now >= execution.ends_at:
            # The lease may have expired, and another worker may hold the job. If so, the store refuses the release.
            self._recorder.put(execution, _NOT_BEGUN)
        else:
            execution.begin(now)
            return True
        return False

    def _run_sync(self, execution: Execution, handler: Handler) -> None:
        try:
            if handler.is_isolated and self._isolated is not None:
                self._isolated.run(execution, handler)
            elif self.may_begin(execution):
                # In a copy: context variables that a handler sets must not leak into the next handler of this thread.
                context = copy_context()
                if self._spans is not None:
                    context.run(self._spans.begin, execution)
                context.run(self._call_sync, execution, handler)
        except BaseException as error:  # noqa: BLE001  of user code around the handler: the attempt needs an outcome
            self._recorder.put(execution, self.failed(execution, error))
        finally:
            self._free_places.append(None)

    def _pass_on_places(self) -> None:
        """Start waiting jobs in the places of sync handlers that have ended: of many together, if they are brief."""
        count = 0
        with suppress(IndexError):  # not checked before: another thread may pop the last one in between
            while True:
                self._free_places.pop()
                count += 1
        if count and self._prefetch.end(count):
            self._start_waiting()

    def enter_attempt(self, execution: Execution, handler: Handler) -> CurrentAttempt:
        """Make an attempt the current one of this context, for the log."""
        attempt = CurrentAttempt(execution.claim.job)
        if handler.capture_level is not None and self._logs is not None:
            attempt.capture = self._logs.capture(execution, handler.capture_level)
        current_attempt.set(attempt)
        return attempt

    def _call_sync(self, execution: Execution, handler: Handler) -> None:
        attempt = self.enter_attempt(execution, handler)
        execution.thread = self._runtime.thread_id()
        try:
            result = handler.call(execution.claim.job, Context(execution, self._services))
        except BaseException as error:  # noqa: BLE001  whatever a handler raises fails only its attempt
            execution.returned(self._runtime.monotonic())
            self._recorder.put(execution, self.failed(execution, error))
        else:
            is_late = execution.returned(self._runtime.monotonic())
            self._recorder.put(execution, self._succeeded(execution, result, is_late=is_late))
        finally:
            attempt.has_ended = True

    async def _run_async(self, execution: Execution, handler: Handler) -> None:
        """Run the handler in one coroutine: to await another one would take a tenth of the time of an empty handler."""
        attempt: CurrentAttempt | None = None
        try:
            if self.may_begin(execution):
                if self._spans is not None:
                    self._spans.begin(execution)  # each asyncio task has its own context
                attempt = self.enter_attempt(execution, handler)
                result = await handler.call(execution.claim.job, Context(execution, self._services))
                # It may have swallowed its cancellation, or blocked the event loop past its timeout.
                is_late = execution.times_out_at is not None and execution.returned(self._runtime.monotonic())
                self._recorder.put(execution, self._succeeded(execution, result, is_late=is_late))
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio would let these end its loop
            self._recorder.put(execution, self.failed(execution, HandlerExited(repr(error))))
        except asyncio.CancelledError as error:
            self._report_cancelled(execution, error)
        except BaseException as error:  # noqa: BLE001  whatever a handler, or user code around it, raises
            self._recorder.put(execution, self.failed(execution, error))
        finally:
            if attempt is not None:
                attempt.has_ended = True
        self._end_async()

    def _end_async(self) -> None:
        """Start waiting jobs in the next cycle of the event loop, for all places that are freed in this one."""
        if self._is_start_scheduled:
            self._ended += 1
        elif self._prefetch.end():
            self._is_start_scheduled = True
            # In an empty context, as that of the source's thread: the next handlers must not see this one's variables.
            asyncio.get_running_loop().call_soon(self._start_scheduled, context=ContextVars())

    def _start_scheduled(self) -> None:
        """Start waiting jobs until all places are taken. Handlers that do not wait free theirs at once."""
        started, is_scheduled = 0, False
        ends_at = self._runtime.monotonic() + MAX_START_SECONDS
        try:
            while executions := self._take_next():
                self._start(executions)
                started += len(executions)
                if started >= MAX_CYCLE_STARTS or self._runtime.monotonic() >= ends_at:  # let other handlers continue
                    asyncio.get_running_loop().call_soon(self._start_scheduled, context=ContextVars())
                    is_scheduled = True
                    return
        finally:  # also after an error: otherwise no waiting job would be started again
            self._is_start_scheduled = is_scheduled

    def _take_next(self) -> Sequence[Execution]:
        ended, self._ended = self._ended, 0
        if ended:
            self._prefetch.end(ended)
        return self._prefetch.take()

    def _report_cancelled(self, execution: Execution, raised: BaseException | None = None) -> None:
        is_stopped = execution.stop_reason is not None
        outcome = self.stopped(execution, raised) if is_stopped else self._decided(execution, HandlerCancelled())
        self._recorder.put(execution, outcome)

    def _succeeded(self, execution: Execution, result: object, *, is_late: bool = False) -> Outcome | None:
        if result is None and execution.stop_reason is None and not (execution.is_completed or is_late):
            return _ACK  # the usual case
        if execution.stop_reason is StopReason.LOST:
            return None
        if execution.is_completed:
            # The store refuses this if the handler's transaction has committed; otherwise the attempt failed.
            return self._decided(execution, NotCommitted())
        if is_late:
            return self.stopped(execution)
        return self._acked(execution.claim.job, result)

    def _acked(self, job: Job, result: object) -> Outcome:
        try:
            data = None if result is None else encode_with(self._services.codec, result, context=result_context(job.id))
        except PayloadNotEncodable as error:
            return Outcome.fail(f"its result cannot be stored: {error}")
        except BaseException as error:  # noqa: BLE001  user code in the codec or the result: the attempt needs an outcome
            return Outcome.fail(f"its result cannot be stored: {type(error).__name__}")
        return Outcome.ack(data)

    def failed(self, execution: Execution, error: BaseException) -> Outcome | None:
        """Return the outcome of an attempt that has raised *error*; None if its lease is lost."""
        return self._decided(execution, error) if execution.stop_reason is None else self.stopped(execution, error)

    def stopped(self, execution: Execution, raised: BaseException | None = None) -> Outcome | None:
        """Return the outcome of an attempt that was asked to stop; None if its lease is lost.

        The traceback of a timeout includes *raised*, which the handler raised when it was stopped: it shows where.
        """
        match execution.stop_reason:
            case StopReason.CANCEL:
                return Outcome.cancel(StopReason.CANCEL.value)
            case StopReason.SHUTDOWN:
                return _NOT_BEGUN if execution.began_at is None else Outcome.release()
            case StopReason.TIMEOUT:
                error = JobTimedOut(execution.claim.job.id, _timeout(execution))
                error.__cause__ = None if raised is None else raised.with_traceback(user_frames(raised))
                return self._decided(execution, error)
            case _:
                return None

    def _decided(self, execution: Execution, error: BaseException) -> Outcome:
        job = execution.claim.job
        policy, now = self._handlers.policy(job.type), self._store_time(execution)
        try:
            outcome = decide_outcome(job, error, now, policy=policy)
        except BaseException as raised:  # noqa: BLE001  by methods of the error: the attempt needs an outcome
            error = UnprintableError(type(error).__name__, type(raised).__name__)
            outcome = decide_outcome(job, error, now)
        if self._services.redact is not None:
            return outcome.redacted(self._services.redact)
        if outcome.event in {Event.RETRY, Event.FAIL}:
            execution.error = error
        return outcome

    def _store_time(self, execution: Execution) -> datetime:
        """Estimate the store's time from that of the claim: the clock of this machine may be wrong."""
        started_at, claimed_at = execution.claim.job.processing_started_at, execution.claimed_at
        if started_at is None or claimed_at is None:
            return self._runtime.now()
        return started_at + timedelta(seconds=self._runtime.monotonic() - claimed_at)


def _timeout(execution: Execution) -> Any:
    return execution.claim.job.timeout
