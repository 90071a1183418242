"""What becomes of an attempt that ended in an error."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.failure import Failure
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, Outcome
from taskharbor.core.retry import RetryPolicy

if TYPE_CHECKING:
    from taskharbor.core.model import Job


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again, *after* a while if given."""

    after: timedelta | None = None

    def __init__(self, reason: object = "", *, after: timedelta | None = None) -> None:
        super().__init__(reason)
        if not isinstance(after, timedelta | None):
            raise UsageError(Problem(field="after", value=repr(after), rule="must be a timedelta"))
        self.after = after


class Snooze(Exception):
    """Raised by a handler: too early; come back *after* a while or not before *until*. No attempt is counted."""

    after: timedelta | None = None
    until: datetime | None = None

    def __init__(self, after: timedelta | None = None, until: datetime | None = None) -> None:
        super().__init__(after, until)
        if (after is None) == (until is None):
            raise UsageError(Problem(field="Snooze", value=f"after={after}, until={until}", rule="give exactly one"))
        if not isinstance(after, timedelta | None):
            raise UsageError(Problem(field="after", value=repr(after), rule="must be a timedelta"))
        if until is not None and not _has_zone(until):
            raise UsageError(Problem(field="until", value=repr(until), rule="needs a time zone, as a datetime"))
        self.after, self.until = after, until

    def delay(self, now: datetime) -> timedelta | None:
        """Return how long that is, seen from *now*."""
        return self.after if self.until is None else self.until - now


def _has_zone(moment: object) -> bool:
    return isinstance(moment, datetime) and moment.utcoffset() is not None


class Cancel(Exception):
    """Raised by a handler: the job is called off."""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)


class DeadLetter(Exception):
    """Raised by a handler: the job cannot succeed; keep it for a person."""

    def __init__(self, reason: object) -> None:
        super().__init__(reason)


DEFAULT_POLICY: Final = RetryPolicy()


def decide_outcome(job: Job, error: BaseException, now: datetime, *, policy: RetryPolicy = DEFAULT_POLICY) -> Outcome:
    """Return how an attempt ends that raised *error*. Never raises: an outcome must be recorded.

    *now* is the store's time as the worker knows it; only a `Snooze(until=…)` needs it.
    """
    failure = Failure.of(error)
    match error:
        case Snooze() if (delay := _snooze_delay(error, now)) is not None:
            return Outcome.snooze(after=delay)
        case Cancel():
            return Outcome.cancel(failure.message or None)
        case DeadLetter():
            return Outcome.fail(failure.message or failure.type, failure=failure)
        case Retry(after=timedelta() as delay):
            return _fail_or_retry(job, failure, max(delay, timedelta.resolution))
        case _:
            return _fail_or_retry(job, failure, _policy_delay(job, error, policy))


def _snooze_delay(error: Snooze, now: datetime) -> timedelta | None:
    """Return what the snooze asks for; None, where a user's subclass asks for nothing sensible."""
    with suppress(Exception):  # its attributes are a user's
        delay: object = error.delay(now)
        return delay if isinstance(delay, timedelta) else None
    return None


def _fail_or_retry(job: Job, failure: Failure, delay: timedelta | None) -> Outcome:
    if job.is_exhausted:
        return Outcome.fail(ATTEMPTS_EXHAUSTED, failure=failure)
    if delay is None:
        return Outcome.fail(f"not worth a retry: {failure.type}", failure=failure)
    return Outcome.retry(after=delay, failure=failure)


def _policy_delay(job: Job, error: BaseException, policy: RetryPolicy) -> timedelta | None:
    """Ask the policy, or the default one where the user's breaks: a job must not hang on it."""
    with suppress(Exception):  # the policy is a user's function, and may return anything
        delay: object = policy.delay(job.id, job.attempt_count, error)
        if delay is None or (isinstance(delay, timedelta) and delay > timedelta(0)):
            return delay
    return DEFAULT_POLICY.delay(job.id, job.attempt_count, error)
