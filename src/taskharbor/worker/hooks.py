"""Telling hooks and the log what became of attempts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from taskharbor.core import hooks
from taskharbor.core.failure import Failure
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED
from taskharbor.core.results import Settled
from taskharbor.core.states import Event, Status
from taskharbor.core.text import one_line
from taskharbor.outbox import log_death

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.hooks import Hook, HookEvent
    from taskharbor.core.outcome import Outcome
    from taskharbor.worker.execution import Execution

_LOG: Final = logging.getLogger("taskharbor.worker")
SHOWN: Final = 200  # characters of an error; all of it is kept with the attempt


class AttemptHooks:
    """Tells facts, after they are committed; what a hook raises is logged, and changes nothing."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = tuple(hooks)

    @property
    def has_consumers(self) -> bool:
        """Whether anybody wants to know of attempts that went well."""
        return bool(self._hooks) or _LOG.isEnabledFor(logging.INFO)

    def __call__(self, fact: HookEvent) -> None:
        for hook in self._hooks:
            try:
                hook(fact)
            except BaseException:  # noqa: BLE001  a hook is a user's function, and runs in threads of ours
                _LOG.exception("a hook failed on %r", fact)

    def of(
        self,
        execution: Execution,
        outcome: Outcome | None,
        answer: Settled | TaskHarborError | None,
        *,
        ended_at: datetime,
        advice: str = "",
    ) -> None:
        """Tell how an attempt ended: one line in the log, one fact for the hooks."""
        job = execution.claim.job
        if not isinstance(answer, Settled) or outcome is None:
            _LOG.warning(
                "job %s (%s) attempt %d: not recorded; %s%s",
                job.id,
                job.type,
                job.attempt_count,
                answer or "its lease is lost",
                advice,
            )
            self(hooks.AttemptLost(lease=execution.claim.lease))
            return
        fact = _hook_event(execution, outcome, answer.status, ended_at)
        if isinstance(fact, hooks.JobDead):
            log_death(
                _LOG, fact, error=outcome.failure.type if outcome.failure and fact.reason == ATTEMPTS_EXHAUSTED else ""
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
        self(fact)


def _cause(outcome: Outcome) -> str:
    """Return why it did not succeed, in part of a line: of an error its type alone, for its text may tell secrets."""
    words = outcome.failure.type if outcome.failure else outcome.reason or ""
    return f": {one_line(' '.join(words.split()), limit=SHOWN)}" if words else ""


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
