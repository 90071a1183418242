"""How an attempt ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from taskharbor.core.failure import Failure
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Event
from taskharbor.core.text import make_storable

MAX_DELAY: Final = timedelta(days=3650)
"""The longest delay: beyond it a moment may not be storable, and a person has made a mistake."""

MAX_RELEASES: Final = 10
"""How often a shutdown may hand a job back for free: then something is wrong with the job, not with its workers."""

ATTEMPTS_EXHAUSTED: Final = "attempts spent"
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
