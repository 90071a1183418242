"""Runs handlers, and turns their results and errors into outcomes."""

from __future__ import annotations

import asyncio
import logging
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from taskharbor.core.errors import JobTimedOut, PayloadNotEncodable
from taskharbor.core.model import result_context
from taskharbor.core.outcome import Outcome, decide_outcome
from taskharbor.worker.context import Context, CurrentAttempt, NotCommitted, current_attempt
from taskharbor.worker.execution import StopReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.runtime import Runtime
    from taskharbor.worker.context import HandlerServices
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.handlers import Handler, HandlerRegistry

_LOG: Final = logging.getLogger("taskharbor.worker")
START_RETRY_DELAY: Final = timedelta(seconds=1)  # of a job that could not be started


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
        self, runtime: Runtime, handlers: HandlerRegistry, recorder: OutcomeSink, services: HandlerServices
    ) -> None:
        self._runtime = runtime
        self._handlers = handlers
        self._recorder = recorder
        self._services = services

    def start(self, executions: Sequence[Execution]) -> None:
        """Start the handlers. An attempt that cannot be started gets its outcome immediately."""
        async_handlers: list[tuple[Execution, Handler]] = []
        for execution in executions:
            handler = self._handlers.get(execution.claim.job.type)
            if handler is None:
                self._recorder.put(
                    execution, Outcome.fail(f"no handler for type {execution.claim.job.type!r} is registered here")
                )
            elif handler.is_async:
                async_handlers.append((execution, handler))
            else:
                self._start_sync(execution, handler)
        if async_handlers:
            self._start_async(async_handlers)

    def _start_sync(self, execution: Execution, handler: Handler) -> None:
        try:
            self._runtime.run_sync(partial(self._run_sync, execution, handler))
        except Exception:  # noqa: BLE001  no new thread can be started
            self._snooze([execution])

    def _start_async(self, async_handlers: Sequence[tuple[Execution, Handler]]) -> None:
        """Pass all handlers to the event loop in one call: each call wakes the loop's thread."""
        executions = [execution for execution, _ in async_handlers]
        coroutines = [
            (self._call_async(execution, handler), partial(self._report_cancelled, execution))
            for execution, handler in async_handlers
        ]
        try:
            runs = self._runtime.run_async(coroutines)
        except Exception:  # noqa: BLE001  as above
            for coroutine, _ in coroutines:
                coroutine.close()
            self._snooze(executions)
            return
        for execution, run in zip(executions, runs, strict=True):
            execution.set_stop(run.cancel)

    def release(self, execution: Execution) -> None:
        """Return a claimed job to its queue; its handler was not called."""
        self._recorder.put(execution, Outcome.release())

    def abandon(self, execution: Execution) -> None:
        """Record the outcome of an attempt that was asked to stop, without waiting for its handler."""
        self._recorder.put(execution, self.stopped(execution))

    def _snooze(self, executions: Sequence[Execution]) -> None:
        """Return jobs whose handlers could not be started, so that another worker can claim them."""
        for execution in executions:
            _LOG.exception("job %s not started; returned to its queue", execution.claim.job.id)
            self._recorder.put(execution, Outcome.snooze(after=START_RETRY_DELAY))

    def _may_begin(self, execution: Execution) -> bool:
        """Return whether the handler may begin; if not, record the outcome. Its thread or loop may have been busy."""
        if execution.stop_reason is not None:
            self._recorder.put(execution, self.stopped(execution))
        elif self._runtime.monotonic() >= execution.ends_at:
            # The lease may have expired, and another worker may hold the job. If so, the store refuses the release.
            self._recorder.put(execution, Outcome.release())
        else:
            return True
        return False

    def _run_sync(self, execution: Execution, handler: Handler) -> None:
        if not self._may_begin(execution):
            return
        # In a copy: context variables that a handler sets must not leak into the next handler of this thread.
        copy_context().run(self._call_sync, execution, handler)

    def _call_sync(self, execution: Execution, handler: Handler) -> None:
        current_attempt.set(_running(execution))
        execution.thread = self._runtime.thread_id()
        try:
            result = handler.call(execution.claim.job, Context(execution, self._services))
        except BaseException as error:  # noqa: BLE001  whatever a handler raises fails only its attempt
            execution.returned(self._runtime.monotonic())
            self._recorder.put(execution, self._failed(execution, error))
        else:
            is_late = execution.returned(self._runtime.monotonic())
            self._recorder.put(execution, self._succeeded(execution, result, is_late=is_late))

    async def _call_async(self, execution: Execution, handler: Handler) -> None:
        if not self._may_begin(execution):
            return
        current_attempt.set(_running(execution))  # each asyncio task has its own context
        try:
            result = await handler.call(execution.claim.job, Context(execution, self._services))
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio would let these end its loop
            self._recorder.put(execution, self._failed(execution, HandlerExited(repr(error))))
        except asyncio.CancelledError:
            self._report_cancelled(execution)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises fails only its attempt
            self._recorder.put(execution, self._failed(execution, error))
        else:
            self._recorder.put(execution, self._succeeded(execution, result))

    def _report_cancelled(self, execution: Execution) -> None:
        self._recorder.put(execution, self._failed(execution, HandlerCancelled()))

    def _succeeded(self, execution: Execution, result: object, *, is_late: bool = False) -> Outcome | None:
        if execution.stop_reason is StopReason.LOST:
            return None
        if execution.is_completed:
            # The store refuses this if the handler's transaction has committed; otherwise the attempt failed.
            return self._decided(execution, NotCommitted())
        if is_late:
            return self.stopped(execution)
        job = execution.claim.job
        try:
            data = None if result is None else self._services.codec.encode(result, context=result_context(job.id))
        except PayloadNotEncodable as error:
            return Outcome.fail(f"its result cannot be stored: {error}")
        except BaseException as error:  # noqa: BLE001  user code in the codec or the result: the attempt needs an outcome
            return Outcome.fail(f"its result cannot be stored: {type(error).__name__}")
        return Outcome.ack(data)

    def _failed(self, execution: Execution, error: BaseException) -> Outcome | None:
        return self._decided(execution, error) if execution.stop_reason is None else self.stopped(execution)

    def stopped(self, execution: Execution) -> Outcome | None:
        """Return the outcome of an attempt that was asked to stop; None if its lease is lost."""
        match execution.stop_reason:
            case StopReason.CANCEL:
                return Outcome.cancel(StopReason.CANCEL.value)
            case StopReason.SHUTDOWN:
                return Outcome.release()
            case StopReason.TIMEOUT:
                return self._decided(execution, JobTimedOut(execution.claim.job.id, _timeout(execution)))
            case _:
                return None

    def _decided(self, execution: Execution, error: BaseException) -> Outcome:
        job = execution.claim.job
        policy = self._handlers.policy(job.type)
        try:
            return decide_outcome(job, error, self._runtime.now(), policy=policy)
        except BaseException as raised:  # noqa: BLE001  by methods of the error: the attempt needs an outcome
            return decide_outcome(
                job, UnprintableError(type(error).__name__, type(raised).__name__), self._runtime.now()
            )


def _running(execution: Execution) -> CurrentAttempt:
    job = execution.claim.job
    return CurrentAttempt(job.id, job.attempt_count, execution.claim.lease.token)


def _timeout(execution: Execution) -> Any:
    return execution.claim.job.timeout
