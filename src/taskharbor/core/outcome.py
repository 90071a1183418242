"""The outcome of an attempt: its constructors, the exceptions that request one, and how an error becomes one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.durations import Duration, as_timedelta
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.failure import Failure, Redact, redacted_text
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.request import MAX_DELAY
from taskharbor.core.retry import RetryPolicy
from taskharbor.core.states import Event
from taskharbor.core.text import make_storable

if TYPE_CHECKING:
    from taskharbor.core.model import Job

MAX_RELEASES: Final = 10
"""How many releases count no attempt. A job released more often is itself the likely cause of the shutdowns."""

ATTEMPTS_EXHAUSTED: Final = "attempts exhausted"
"""The dead reason of a job whose last attempt ended in a retry, a release or an expired lease."""

LEASE_LOST: Final = "lease lost"
"""The error of an attempt whose lease expired."""


@dataclass(frozen=True, slots=True, init=False)
class Outcome:
    """How an attempt ended. Use the named constructors; they make only valid outcomes.

    >>> Outcome.retry(after=timedelta(seconds=5)).event
    <Event.RETRY: 'retry'>
    """

    event: Event
    delay: timedelta
    failure: Failure | None
    reason: str | None
    result: bytes | None = field(repr=False)
    bound: int | None
    traceparent: str | None

    def __init__(self) -> None:
        message = "use Outcome.ack(), .retry(), .fail(), .snooze(), .release() or .cancel()"
        raise TypeError(message)

    @classmethod
    def ack(cls, result: bytes | None = None) -> Outcome:
        """Return the outcome of a success. *result* is already encoded."""
        return _ACK_WITHOUT_RESULT if result is None else _make(Event.ACK, result=result)

    @classmethod
    def retry(cls, *, after: timedelta, failure: Failure | None = None) -> Outcome:
        """Return the outcome of a failure to retry *after* a delay. If no attempts are left, the job becomes DEAD."""
        return _make(Event.RETRY, delay=after, failure=failure)

    @classmethod
    def fail(cls, reason: str, *, failure: Failure | None = None) -> Outcome:
        """Return the outcome of a permanent failure. The job becomes a dead letter with this *reason*."""
        return _make(Event.FAIL, reason=reason, failure=failure)

    @classmethod
    def snooze(cls, *, after: timedelta) -> Outcome:
        """Return the outcome that runs the job again *after* a delay and counts no attempt."""
        return _make(Event.SNOOZE, delay=after)

    @classmethod
    def release(cls, *, bound: int | None = MAX_RELEASES) -> Outcome:
        """Return the outcome of a shutdown: the job is due at once. More than *bound* releases count as attempts.

        *bound* is None if the handler did not begin. Such a release counts neither as an attempt nor as a release.
        """
        return _make(Event.RELEASE, bound=bound)

    @classmethod
    def cancel(cls, reason: str | None = None) -> Outcome:
        """Return the outcome of a job that was canceled while it ran."""
        return _make(Event.CANCEL, reason=reason)

    def redacted(self, redact: Redact) -> Outcome:
        """Return the same outcome with the texts of the handler's error as *redact* returns them."""
        failure = None if self.failure is None else self.failure.redacted(redact)
        reason = None if self.reason is None else redacted_text(redact, self.reason)
        return self._changed(failure=failure, reason=reason)

    def traced(self, traceparent: str) -> Outcome:
        """Return the same outcome with the trace context of the attempt, which is stored in the job's metadata.

        A success stores none: no attempt follows it.
        """
        return self._changed(traceparent=traceparent)

    def _changed(self, **fields: Any) -> Outcome:
        return _make(**{name: getattr(self, name) for name in Outcome.__slots__} | fields)

    @property
    def recorded_failure(self) -> Failure | None:
        """The failure to store with the attempt. A reason without a failure becomes one without a type."""
        if self.failure is None and self.reason is not None:
            return Failure(message=self.reason)
        return self.failure

    @property
    def attempt_outcome(self) -> AttemptOutcome:
        """The outcome to store with the attempt. An ack stores no attempt."""
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
    bound: int | None = 0,
    traceparent: str | None = None,
) -> Outcome:
    outcome = object.__new__(Outcome)
    # Clamp an out-of-range delay instead of raising: recording an outcome must not fail.
    fields = {
        "event": event,
        "delay": min(max(delay, timedelta(0)), MAX_DELAY),
        "failure": failure,
        "reason": None if reason is None else make_storable(reason),
        "result": result,
        "bound": bound,
        "traceparent": traceparent,
    }
    for name, value in fields.items():
        object.__setattr__(outcome, name, value)
    return outcome


_ACK_WITHOUT_RESULT: Final = _make(Event.ACK)  # shared: most outcomes are this one


class Retry(Exception):
    """Raised by a handler to fail this attempt and retry the job, *after* a delay if given: seconds or a timedelta.

    A negative delay, such as the time until a moment that has passed, is no delay.
    """

    after: timedelta | None = None

    def __init__(self, reason: object = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after = _delay(after)


class Snooze(Exception):
    """Raised by a handler to run the job again *after* a delay or not before *until*. Counts no attempt.

    *after* is in seconds or a timedelta; a negative one is no delay.
    """

    after: timedelta | None = None
    until: datetime | None = None

    def __init__(self, after: Duration | None = None, until: datetime | None = None) -> None:
        super().__init__(after, until)
        if (after is None) == (until is None):
            raise UsageError(Problem(field="Snooze", value=f"after={after}, until={until}", rule="give exactly one"))
        if until is not None and not _has_zone(until):
            raise UsageError(Problem(field="until", value=repr(until), rule="needs a time zone, as a datetime"))
        self.after, self.until = _delay(after), until

    def delay(self, now: datetime) -> timedelta | None:
        """Return the delay, counted from *now*."""
        return self.after if self.until is None else self.until - now


def _delay(after: Duration | None) -> timedelta | None:
    return None if after is None else as_timedelta(after, "after", least=timedelta.min)


def _has_zone(value: object) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


class Cancel(Exception):
    """Raised by a handler to cancel the job."""

    def __init__(self, reason: object = "") -> None:
        super().__init__(reason)


class DeadLetter(Exception):
    """Raised by a handler to make the job a dead letter without further attempts."""

    def __init__(self, reason: object) -> None:
        super().__init__(reason)


DEFAULT_POLICY: Final = RetryPolicy()


def decide_outcome(job: Job, error: BaseException, now: datetime, *, policy: RetryPolicy = DEFAULT_POLICY) -> Outcome:
    """Return the outcome of an attempt that raised *error*. Never raises: an outcome must be recorded.

    *now* is the worker's estimate of the store's time; only `Snooze(until=…)` needs it.
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
    """Return the delay of a snooze, or None if a user's subclass returns no valid one."""
    with suppress(Exception):  # a subclass may override anything
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
    """Return the delay of the user's policy, or of the default policy if the user's fails: the job must be settled."""
    with suppress(Exception):  # user code: it may raise or return anything
        delay: object = policy.delay(job.id, job.attempt_count, error)
        if delay is None or (isinstance(delay, timedelta) and delay > timedelta(0)):
            return delay
    return DEFAULT_POLICY.delay(job.id, job.attempt_count, error)
