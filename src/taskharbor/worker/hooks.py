"""Reports attempts to the log and to the user's hooks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from taskharbor.core import hooks
from taskharbor.core.errors import JobNotInflight
from taskharbor.core.failure import Failure
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, Outcome
from taskharbor.core.results import Settled
from taskharbor.core.states import Event, Status
from taskharbor.core.text import one_line
from taskharbor.outbox import log_death

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.hooks import Hook, HookEvent
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.heartbeats import LeaseHeartbeat
    from taskharbor.worker.message_acks import MessageAcks

_LOG: Final = logging.getLogger("taskharbor.worker")
MAX_REASON_CHARS: Final = 200  # of a reason in a log line; the attempt has all of it


class HookCaller:
    """Calls the user's hooks. An error that a hook raises is logged and has no other effect."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def __call__(self, event: HookEvent) -> None:
        for hook in self._hooks:
            try:
                hook(event)
            except BaseException:  # noqa: BLE001  user code in a thread of the worker
                _LOG.exception("hook failed on %r", event)


class AttemptHooks:
    """The last stage: resolves the message of a recorded attempt, logs the attempt and calls the hooks."""

    def __init__(
        self,
        runtime: Runtime,
        call_hooks: HookCaller,
        loops: ServiceLoops,
        leases: LeaseHeartbeat,
        acks: MessageAcks | None,
    ) -> None:
        self._runtime = runtime
        self._call_hooks = call_hooks
        self._loops = loops
        self._leases = leases
        self._acks = acks

    @property
    def has_consumers(self) -> bool:
        """Whether successes are reported: to hooks, or in the log."""
        return bool(self._call_hooks) or _LOG.isEnabledFor(logging.INFO)

    def claimed(self, executions: Sequence[Execution]) -> None:
        if self._call_hooks:
            for execution in executions:
                self._call_hooks(hooks.JobClaimed(claim=execution.claim))

    def started(self, executions: Sequence[Execution]) -> None:
        if self._leases.is_due_before(executions):
            self._loops.wake("lease-heartbeat")

    def ended(self, execution: Execution) -> None:
        self._leases.ended(execution)

    def recorded(
        self, ended: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Settled | TaskHarborError | None]
    ) -> None:
        """Report attempts whose outcomes were committed or refused."""
        is_reported = self._acks is not None or self.has_consumers
        for (execution, outcome), answer in zip(ended, answers, strict=True):
            if is_reported or not isinstance(answer, Settled) or answer.status is Status.DEAD:
                self._recorded(execution, outcome, answer)

    def _recorded(
        self, execution: Execution, outcome: Outcome | None, answer: Settled | TaskHarborError | None
    ) -> None:
        if execution.is_completed and isinstance(answer, JobNotInflight):
            # The handler committed it in its own transaction.
            outcome, answer = Outcome.ack(), Settled(execution.claim.job.id, Status.SUCCEEDED)
        is_settled = isinstance(answer, Settled)
        if self._acks is not None:
            self._acks.settled(execution, answer)
        if outcome is None or outcome.event is not Event.ACK:
            self._loops.wake("source")  # the job may be due again immediately
        if isinstance(answer, Settled) and answer.status is Status.DEAD:
            self._loops.wake("outbox-relay")
        elif is_settled and not self.has_consumers:
            return
        advice = "" if is_settled else self._leases.advice(execution)
        self._report(execution, outcome, answer, advice=advice)

    def _report(
        self,
        execution: Execution,
        outcome: Outcome | None,
        answer: Settled | TaskHarborError | None,
        *,
        advice: str,
    ) -> None:
        """Write one line to the log, and pass one event to the hooks."""
        job = execution.claim.job
        if not isinstance(answer, Settled) or outcome is None:
            _LOG.warning(
                "job %s (%s) attempt %d: not recorded; %s%s",
                job.id,
                job.type,
                job.attempt_count,
                answer or "lease lost",
                advice,
            )
            self._call_hooks(hooks.AttemptLost(lease=execution.claim.lease))
            return
        event = _hook_event(execution, outcome, answer.status, self._runtime.now())
        if isinstance(event, hooks.JobDead):
            log_death(
                _LOG,
                event,
                error=outcome.failure.type if outcome.failure and event.reason == ATTEMPTS_EXHAUSTED else "",
            )
        else:
            _LOG.info(
                "job %s (%s) attempt %d: %s → %s%s",
                job.id,
                job.type,
                job.attempt_count,
                outcome.event,
                answer.status,
                _cause(outcome),
            )
        self._call_hooks(event)


def _cause(outcome: Outcome) -> str:
    """Return why the attempt did not succeed. Of an error only the type is logged: its text may contain secrets."""
    text = outcome.failure.type if outcome.failure else outcome.reason or ""
    return f": {one_line(' '.join(text.split()), limit=MAX_REASON_CHARS)}" if text else ""


def _hook_event(execution: Execution, outcome: Outcome, status: Status, ended_at: datetime) -> HookEvent:
    job = execution.claim.job
    if status is Status.SUCCEEDED:
        return hooks.JobSucceeded(job=job, ended_at=ended_at)
    if status is Status.DEAD:
        return hooks.JobDead(
            job_id=job.id,
            type=job.type,
            queue=job.queue,
            life=job.life,
            attempt_count=job.attempt_count,
            reason=outcome.reason or ATTEMPTS_EXHAUSTED,
            job=job,
        )
    if status is Status.CANCELED:
        return hooks.JobCanceled(job_id=job.id)
    if outcome.event is Event.RETRY:
        return hooks.AttemptFailed(job=job, status=status, failure=outcome.failure or Failure(), ended_at=ended_at)
    return hooks.AttemptReturned(job=job, status=status)
