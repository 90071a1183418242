"""Reports attempts to the log and to the user's hooks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from taskharbor.core import hooks
from taskharbor.core.errors import JobNotInflight, LeaseLost
from taskharbor.core.failure import Failure
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, Outcome
from taskharbor.core.results import Settled
from taskharbor.core.states import Event, Status
from taskharbor.observability.attempt_log import AttemptLog
from taskharbor.observability.job_log import job_fields
from taskharbor.worker.execution import StopReason

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.model import Claim, Job
    from taskharbor.observability.hook_caller import HookCaller
    from taskharbor.runtime import Runtime
    from taskharbor.service import ServiceLoops
    from taskharbor.worker.attempt_spans import AttemptSpans
    from taskharbor.worker.execution import Execution
    from taskharbor.worker.heartbeats import LeaseHeartbeat
    from taskharbor.worker.log_writer import LogWriter
    from taskharbor.worker.message_acks import MessageAcks

_LOG: Final = logging.getLogger("taskharbor.worker")
_ACKED: Final = Event.ACK  # the lookup of an enum member takes as long as the rest of a loop


class AttemptHooks:
    """The last stage: resolves the message of a recorded attempt, logs the attempt and calls the hooks."""

    def __init__(
        self,
        runtime: Runtime,
        call_hooks: HookCaller,
        loops: ServiceLoops,
        leases: LeaseHeartbeat,
        acks: MessageAcks | None,
        *,
        logs: LogWriter | None = None,
        spans: AttemptSpans | None = None,
    ) -> None:
        self._spans = spans
        self._runtime = runtime
        self._logs = logs
        self._call_hooks = call_hooks
        self._loops = loops
        self._leases = leases
        self._acks = acks

    def claimed(self, queue: str, claims: Sequence[Claim]) -> None:
        if self._call_hooks:
            self._call_hooks(hooks.JobsClaimed(queue=queue, claims=claims))
            if reclaimed := [claim.job.id for claim in claims if claim.is_reclaim]:
                self._call_hooks(hooks.LeasesExpired(job_ids=reclaimed))

    def started(self, executions: Sequence[Execution]) -> None:
        if self._leases.is_due_before(executions):
            self._loops.wake("lease-heartbeat")

    def ended(self, execution: Execution) -> None:
        self._leases.ended(execution)

    def recorded(
        self, ended: Sequence[tuple[Execution, Outcome | None]], answers: Sequence[Settled | TaskHarborError | None]
    ) -> None:
        """Report attempts whose outcomes were committed or refused.

        All lines of the log are written before the hooks are called: they may log something themselves.
        """
        if self._logs is not None and self._logs.is_on:
            self._logs.recorded(ended, answers)
        if self._spans is not None:
            self._spans.recorded(ended, answers)
        log = AttemptLog(_LOG, count=len(ended))
        jobs: list[Job] = []
        run_seconds: list[float | None] = []
        logged = 0
        events: list[HookEvent] = []
        try:
            for (execution, outcome), answer in zip(ended, answers, strict=True):
                if execution.is_completed and isinstance(answer, JobNotInflight):
                    # The handler committed it in its own transaction.
                    outcome, answer = Outcome.ack(), Settled(execution.claim.job.id, Status.SUCCEEDED)  # noqa: PLW2901
                    execution.error = None
                if self._acks is not None:
                    self._acks.settled(execution, answer)
                if outcome is not None and outcome.event is _ACKED and isinstance(answer, Settled):
                    began_at = execution.began_at
                    jobs.append(execution.claim.job)
                    run_seconds.append(None if began_at is None else execution.ended_at - began_at)
                else:
                    log.succeeded(jobs[logged:], run_seconds[logged:])
                    logged = len(jobs)
                    events += self._unsuccessful(log, execution, outcome, answer)
        finally:
            log.succeeded(jobs[logged:], run_seconds[logged:])
            log.flush()
        if self._call_hooks:
            self._report_successes(jobs, run_seconds)
            self._call_hooks.all(events)

    def _report_successes(self, jobs: Sequence[Job], run_seconds: Sequence[float | None]) -> None:
        if jobs:
            seconds = [each or 0.0 for each in run_seconds]
            self._call_hooks(hooks.JobsSucceeded(jobs=jobs, run_seconds=seconds, ended_at=self._runtime.now()))

    def _unsuccessful(
        self, log: AttemptLog, execution: Execution, outcome: Outcome | None, answer: Settled | TaskHarborError | None
    ) -> list[HookEvent]:
        """Log an attempt that did not succeed, and return its events: none if there are no hooks."""
        if outcome is None or outcome.event is not Event.ACK:
            self._loops.wake("source")  # the job may be due again immediately
        # Cleared here: its traceback leads back to the execution.
        error, execution.error = execution.error, None
        if not isinstance(answer, Settled) or outcome is None:
            log.flush()
            if outcome is not None and isinstance(answer, LeaseLost):
                self._leases.refusals.note(execution.claim.lease, outcome.event)
            self._log_lost(execution, outcome, answer)
            lost = hooks.AttemptLost(job=execution.claim.job, lease=execution.claim.lease)
            return [lost] if self._call_hooks else []
        if answer.status is Status.DEAD:
            self._loops.wake("outbox-relay")
        now = self._runtime.now()
        shown = error if answer.status is Status.DEAD else None
        log.ended(execution.claim.job, outcome, answer.status, seconds=execution.seconds, now=now, error=shown)
        return _events(execution, outcome, answer.status, now, error) if self._call_hooks else []

    def _log_lost(
        self, execution: Execution, outcome: Outcome | None, answer: Settled | TaskHarborError | None
    ) -> None:
        if answer is None and outcome is not None:  # the recorder has logged why
            return
        job = execution.claim.job
        text = "job %s (%s) attempt %d of %d: outcome not recorded; %s%s"
        advice = "" if isinstance(answer, Settled) else self._leases.advice(execution)
        reason = answer or StopReason.LOST.value
        _LOG.warning(text, job.id, job.type, job.attempt_count, job.max_attempts, reason, advice, extra=job_fields(job))


def _events(
    execution: Execution, outcome: Outcome, status: Status, ended_at: datetime, error: BaseException | None
) -> list[HookEvent]:
    """Return the event that ends an attempt without success; if its job is dead, also that."""
    job, seconds = execution.claim.job, execution.seconds
    if status is Status.CANCELED:
        return [hooks.JobCanceled(job_id=job.id, type=job.type, queue=job.queue, job=job, run_seconds=seconds)]
    events: list[HookEvent] = []
    if outcome.event in {Event.RETRY, Event.FAIL}:
        failed = hooks.AttemptFailed(
            job=job,
            status=status,
            failure=outcome.failure or Failure(),
            ended_at=ended_at,
            retry_at=None if status is Status.DEAD else ended_at + outcome.delay,
            run_seconds=seconds,
            exception=error,
        )
        events.append(failed)
    else:
        returned = AttemptOutcome.SNOOZED if outcome.event is Event.SNOOZE else AttemptOutcome.RELEASED
        events.append(hooks.AttemptReturned(job=job, status=status, outcome=returned, run_seconds=seconds))
    if status is Status.DEAD:
        dead = hooks.JobDead(
            job_id=job.id,
            type=job.type,
            queue=job.queue,
            life=job.life,
            attempt_count=job.attempt_count,
            reason=outcome.reason or ATTEMPTS_EXHAUSTED,
            job=job,
            exception=error,
        )
        events.append(dead)
    return events
