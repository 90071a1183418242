"""How an attempt ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.failure import Failure
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.request import MAX_DELAY
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.states import Event
from taskharbor.core.text import make_storable

if TYPE_CHECKING:
    from taskharbor.core.model import Job

MAX_RELEASES: Final = 10
"""How often a shutdown may hand a job back for free: then something is wrong with the job, not with its workers."""

ATTEMPTS_EXHAUSTED: Final = "attempts exhausted"
"""The reason of a death by retry, release or expiry on the last attempt."""

LEASE_LOST: Final = "lease lost"
"""The error of an attempt whose worker went silent."""


@dataclass(frozen=True, slots=True, init=False)
class Outcome:
    """How an attempt ended. Made by its named constructors only, so that no impossible one exists.

    >>> Outcome.retry(after=timedelta(seconds=5)).event
    <Event.RETRY: 'retry'>
    """

    event: Event
    delay: timedelta
    failure: Failure | None
    reason: str | None
    result: bytes | None = field(repr=False)
    bound: int

    def __init__(self) -> None:
        message = "use Outcome.ack(), .retry(), .fail(), .snooze(), .release() or .cancel()"
        raise TypeError(message)

    @classmethod
    def ack(cls, result: bytes | None = None) -> Outcome:
        """It succeeded; *result* is encoded already."""
        return _PLAIN_ACK if result is None else _make(Event.ACK, result=result)

    @classmethod
    def retry(cls, *, after: timedelta, failure: Failure | None = None) -> Outcome:
        """It failed, and shall be tried again *after* a while; a spent job dies instead."""
        return _make(Event.RETRY, delay=after, failure=failure)

    @classmethod
    def fail(cls, reason: str, *, failure: Failure | None = None) -> Outcome:
        """It failed for good: a dead letter, with the *reason* for a person to read."""
        return _make(Event.FAIL, reason=reason, failure=failure)

    @classmethod
    def snooze(cls, *, after: timedelta) -> Outcome:
        """It was too early: come back *after* a while, and count no attempt."""
        return _make(Event.SNOOZE, delay=after)

    @classmethod
    def release(cls, *, bound: int = MAX_RELEASES) -> Outcome:
        """The worker had to stop: let another one run it at once. Past *bound* times it counts as an attempt."""
        return _make(Event.RELEASE, bound=bound)

    @classmethod
    def cancel(cls, reason: str | None = None) -> Outcome:
        """It was called off while it ran."""
        return _make(Event.CANCEL, reason=reason)

    @property
    def recorded_failure(self) -> Failure | None:
        """What the attempt's row says of the error; a reason alone is one without a type."""
        if self.failure is None and self.reason is not None:
            return Failure(message=self.reason)
        return self.failure

    @property
    def attempt_outcome(self) -> AttemptOutcome:
        """What the attempt's row says; an ack leaves none."""
        if self.failure is not None and self.failure.is_timeout:
            return AttemptOutcome.TIMED_OUT
        return _ATTEMPT_OUTCOMES[self.event]


_ATTEMPT_OUTCOMES: Final = {
    Event.RETRY: AttemptOutcome.FAILED,
    Event.FAIL: AttemptOutcome.FAILED,
    Event.SNOOZE: AttemptOutcome.SNOOZED,
    Event.RELEASE: AttemptOutcome.RELEASED,
    Event.CANCEL: AttemptOutcome.CANCELED,
}


def _make(
    event: Event,
    *,
    delay: timedelta = timedelta(0),
    failure: Failure | None = None,
    reason: str | None = None,
    result: bytes | None = None,
    bound: int = 0,
) -> Outcome:
    outcome = object.__new__(Outcome)
    # A delay out of range is bent into it, not refused: recording an outcome must not fail.
    fields = {
        "event": event,
        "delay": min(max(delay, timedelta(0)), MAX_DELAY),
        "failure": failure,
        "reason": None if reason is None else make_storable(reason),
        "result": result,
        "bound": bound,
    }
    for name, value in fields.items():
        object.__setattr__(outcome, name, value)
    return outcome


_PLAIN_ACK: Final = _make(Event.ACK)  # most outcomes are this one


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
