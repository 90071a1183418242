"""What becomes of an attempt that ended in an error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.failure import Failure
from taskharbor.core.outcome import SPENT, Outcome
from taskharbor.core.retry import RetryPolicy

if TYPE_CHECKING:
    from taskharbor.core.model import Job


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again, *after* a while if given."""

    def __init__(self, reason: str = "", *, after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.reason, self.after = reason, after


class Snooze(Exception):
    """Raised by a handler: too early; come back *after* a while or not before *until*. No attempt is counted."""

    def __init__(self, *, after: timedelta | None = None, until: datetime | None = None) -> None:
        super().__init__(after, until)
        if (after is None) == (until is None):
            raise UsageError(Problem(field="Snooze", value=f"after={after}, until={until}", rule="give exactly one"))
        if until is not None and until.tzinfo is None:
            raise UsageError(Problem(field="until", value=repr(until), rule="needs a time zone"))
        self.after, self.until = after, until

    def delay(self, now: datetime) -> timedelta:
        """Return how long that is, seen from *now*."""
        if self.until is not None:
            return self.until.astimezone(UTC) - now
        return self.after or timedelta(0)


class Cancel(Exception):
    """Raised by a handler: the job is called off."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class DeadLetter(Exception):
    """Raised by a handler: the job cannot succeed; keep it for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


DEFAULT_POLICY: Final = RetryPolicy()


def decide(job: Job, error: BaseException, now: datetime, *, policy: RetryPolicy = DEFAULT_POLICY) -> Outcome:
    """Return how an attempt ends that raised *error*. Never raises: an outcome must be recorded.

    *now* is the store's time as the worker knows it; only a `Snooze(until=…)` needs it.
    """
    match error:
        case Snooze():
            return Outcome.snooze(after=error.delay(now))
        case Cancel():
            return Outcome.cancel(error.reason)
        case DeadLetter():
            return Outcome.fail(error.reason, failure=Failure.of(error))
        case Retry(after=timedelta() as delay):
            return _fail_or_retry(job, Failure.of(error), delay)
        case _:
            return _fail_or_retry(job, Failure.of(error), _policy_delay(job, error, policy))


def _fail_or_retry(job: Job, failure: Failure, delay: timedelta | None) -> Outcome:
    if job.is_spent:
        return Outcome.fail(SPENT, failure=failure)
    if delay is None:
        return Outcome.fail(f"not worth a retry: {failure.type}", failure=failure)
    return Outcome.retry(after=delay, failure=failure)


def _policy_delay(job: Job, error: BaseException, policy: RetryPolicy) -> timedelta | None:
    """Ask the policy, or the default one where the user's breaks: a job must not hang on it."""
    try:
        delay = policy.delay(job.id, job.attempt_count, error)
        if delay is None or delay > timedelta(0):
            return delay
    except Exception:  # noqa: BLE001, S110  the policy is a user's function, and may return anything
        pass
    return DEFAULT_POLICY.delay(job.id, job.attempt_count, error)
