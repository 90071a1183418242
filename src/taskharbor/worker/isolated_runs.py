"""Runs isolated attempts in child processes, and turns their reports into outcomes."""

from __future__ import annotations

import logging
from collections import deque
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Event
from taskharbor.core.text import duration_text
from taskharbor.observability.job_log import job_fields
from taskharbor.worker.execution import StopReason
from taskharbor.worker.isolation.child import IsolatedCall
from taskharbor.worker.isolation.errors import ChildNotStarted, FailedInChild
from taskharbor.worker.isolation.job_queue import MAX_PACKET_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context as ContextVars

    from taskharbor.observability.job_log import CurrentAttempt
    from taskharbor.runtime import Runtime
    from taskharbor.worker.attempt_spans import AttemptSpans
    from taskharbor.worker.context import HandlerServices
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.executor import OutcomeSink
    from taskharbor.worker.handlers import Handler, HandlerRegistry
    from taskharbor.worker.isolation.child import Child, ChildReport
    from taskharbor.worker.isolation.pool import ChildPool
    from taskharbor.worker.prefetch import Prefetch

_LOG: Final = logging.getLogger("taskharbor.worker")
START_RETRY_DELAY: Final = timedelta(seconds=1)  # of a job for which no child could be started


class AttemptSteps(Protocol):
    """What all attempts have in common: the executor."""

    def may_begin(self, execution: Execution) -> bool: ...
    def enter_attempt(self, execution: Execution, handler: Handler) -> CurrentAttempt: ...
    def report_start(self, executions: Sequence[Execution]) -> None: ...
    def put_back(self, executions: Sequence[Execution]) -> None: ...
    def failed(self, execution: Execution, error: BaseException) -> Outcome | None: ...
    def stopped(self, execution: Execution, raised: BaseException | None = None) -> Outcome | None: ...


@dataclass(frozen=True, slots=True)
class IsolatedAttempt:
    """An attempt that is about to run in a child, and the context in which the worker logs for it."""

    call: IsolatedCall
    handler: Handler
    context: ContextVars

    @property
    def execution(self) -> Execution:
        return self.call.execution


class IsolatedRuns:
    """Runs isolated attempts in the calling thread, each in a child process.

    While attempts are brief, those that wait for a place are sent to the child ahead: it continues with the next one
    without waiting for this process. An attempt counts as begun when the one before it has ended.
    """

    def __init__(
        self,
        attempts: AttemptSteps,
        children: ChildPool,
        *,
        runtime: Runtime,
        handlers: HandlerRegistry,
        recorder: OutcomeSink,
        services: HandlerServices,
        prefetch: Prefetch,
        spans: AttemptSpans | None,
    ) -> None:
        self._attempts = attempts
        self._children = children
        self._runtime = runtime
        self._handlers = handlers
        self._recorder = recorder
        self._services = services
        self._prefetch = prefetch
        self._spans = spans

    def run(self, execution: Execution, handler: Handler) -> None:
        """Run an attempt, and as many others as wait meanwhile and are brief.

        Its timeout counts from now on, not from before the start of the child.
        """
        try:
            child = self._children.acquire()
        except ChildNotStarted as error:
            job, delay = execution.claim.job, duration_text(START_RETRY_DELAY.total_seconds())
            _LOG.error("job %s (%s): %s; retrying in %s", job.id, job.type, error, delay, extra=job_fields(job))
            self._recorder.put(execution, Outcome.snooze(after=START_RETRY_DELAY))
            return
        try:
            if self._attempts.may_begin(execution):
                self._run_all(child, self._new_attempt(execution, handler))
        finally:
            self._children.release(child)

    def _new_attempt(self, execution: Execution, handler: Handler) -> IsolatedAttempt:
        context = copy_context()
        trace = None if self._spans is None else context.run(self._spans.begin_elsewhere, execution)
        return IsolatedAttempt(
            IsolatedCall(execution, handler.memory_bytes, trace, self._services.save), handler, context
        )

    def _run_all(self, child: Child, first: IsolatedAttempt) -> None:
        queued: deque[IsolatedAttempt] = deque()
        on_returned = partial(self._put_back, queued)
        first.context.run(self._run_one, first, child, on_returned)
        self._fill(child, queued)
        while queued:
            attempt = queued.popleft()
            attempt.execution.begin(self._runtime.monotonic())
            if (span := attempt.execution.span) is not None:
                attempt.execution.span = span.begun_now()
            self._attempts.report_start([attempt.execution])
            attempt.context.run(self._run_one, attempt, child, on_returned)
            self._fill(child, queued)

    def _fill(self, child: Child, queued: deque[IsolatedAttempt]) -> None:
        """Send waiting jobs to the child."""
        if not (count := child.free_places):
            return
        taken = self._prefetch.take_ahead(count, partial(self._may_wait_in, child))
        for at, execution in enumerate(taken):
            handler = self._handlers.get(execution.claim.job.type)
            attempt = None if handler is None else self._new_attempt(execution, handler)
            if attempt is None or not child.queue(attempt.call):
                execution.span = None
                self._attempts.put_back(taken[at:])
                return
            queued.append(attempt)

    def _may_wait_in(self, child: Child, execution: Execution) -> bool:
        handler = self._handlers.get(execution.claim.job.type)
        return (
            handler is not None
            and handler.is_isolated
            and handler.memory_bytes == child.limit_bytes
            and execution.stop_reason is None
            and len(execution.claim.job.payload) < MAX_PACKET_BYTES / 2
        )

    def _put_back(self, queued: deque[IsolatedAttempt], executions: Sequence[Execution]) -> None:
        """Let the last jobs that were sent wait again: another child may be free."""
        for execution in executions:
            execution.span = None
        for _ in executions:
            queued.pop()
        self._attempts.put_back(executions)

    def _run_one(self, attempt: IsolatedAttempt, child: Child, on_returned: partial[None]) -> None:
        execution = attempt.execution
        current = self._attempts.enter_attempt(execution, attempt.handler)
        try:
            report = child.run(attempt.call, on_returned)
        except ChildNotStarted:  # it was killed while it was idle: the next one has no part in that
            execution.span = None
            self._attempts.put_back([execution])
        except BaseException as error:  # noqa: BLE001  the death of a child fails only its attempt
            execution.returned(self._runtime.monotonic())
            # Without a traceback: it would lead through this process, which has no part in it.
            self._recorder.put(execution, self._attempts.failed(execution, error.with_traceback(None)))
        else:
            is_late = execution.returned(self._runtime.monotonic())
            self._recorder.put(execution, self._reported(execution, report, is_late=is_late))
        finally:
            current.has_ended = True

    def _reported(self, execution: Execution, report: ChildReport, *, is_late: bool) -> Outcome | None:
        """Return the outcome of an attempt that its child has decided on, if the worker has not decided otherwise."""
        outcome, reason = report.outcome, execution.stop_reason
        if reason is StopReason.LOST or outcome is None:
            return None
        if outcome.event is Event.ACK:
            return self._attempts.stopped(execution) if is_late else outcome
        error = None if outcome.failure is None else FailedInChild(outcome.failure)
        if reason is not None and not report.is_stopped:  # it failed before it knew
            return self._attempts.stopped(execution, error)
        if self._services.redact is not None:
            return outcome.redacted(self._services.redact)
        execution.error = error
        return outcome
