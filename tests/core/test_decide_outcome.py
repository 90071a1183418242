from __future__ import annotations

import asyncio
import copy
import pickle
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core.errors import JobTimedOut, UsageError
from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId
from taskharbor.core.model import AttemptOutcome, Job
from taskharbor.core.outcome import (
    ATTEMPTS_EXHAUSTED,
    DEFAULT_POLICY,
    Cancel,
    DeadLetter,
    Outcome,
    Retry,
    Snooze,
    decide_outcome,
)
from taskharbor.core.request import MAX_DELAY
from taskharbor.core.retry import Fixed, Never, RetryPolicy
from taskharbor.core.states import Event, Status
from taskharbor.core.text import MAX_TEXT_CHARS, is_storable

few = settings(max_examples=80, deadline=None)

NOW: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1) - timedelta.resolution
EVERY_MINUTE: Final = RetryPolicy(backoff=Fixed(MINUTE))


def job(*, attempt: int = 1, max_attempts: int = 3) -> Job:
    return Job(
        id=JobId(UUID(int=7)),
        type="greet",
        queue="default",
        priority=0,
        payload=b"{}",
        status=Status.PROCESSING,
        scheduled_for=NOW,
        timeout=None,
        created_at=NOW,
        attempt_count=attempt,
        max_attempts=max_attempts,
    )


EXHAUSTED_JOB: Final = job(attempt=3, max_attempts=3)


def test_an_error_is_retried_after_the_delay_of_the_policy() -> None:
    error = ValueError("boom")

    outcome = decide_outcome(job(), error, NOW, policy=EVERY_MINUTE)

    assert outcome == Outcome.retry(after=MINUTE, failure=Failure.of(error))


def test_the_policy_gets_the_number_of_the_attempt() -> None:
    policy = RetryPolicy(backoff=lambda attempt: attempt * HOUR)

    outcome = decide_outcome(job(attempt=2), ValueError(), NOW, policy=policy)

    assert outcome.delay == 2 * HOUR


def test_without_a_policy_the_default_one_decides() -> None:
    error = ValueError("boom")

    outcome = decide_outcome(job(), error, NOW)

    assert outcome.delay == DEFAULT_POLICY.delay(job().id, 1, error)


def test_a_job_without_attempts_left_fails_for_good() -> None:
    error = ValueError("boom")

    outcome = decide_outcome(EXHAUSTED_JOB, error, NOW, policy=EVERY_MINUTE)

    assert outcome == Outcome.fail(ATTEMPTS_EXHAUSTED, failure=Failure.of(error))


def test_an_error_in_give_up_on_fails_for_good_with_a_reason() -> None:
    policy = RetryPolicy(give_up_on=(ValueError,))

    outcome = decide_outcome(job(), ValueError("boom"), NOW, policy=policy)

    assert outcome.event is Event.FAIL
    assert outcome.reason == "not worth a retry: ValueError"
    assert outcome.failure is not None
    assert outcome.failure.message == "boom"


def test_a_policy_that_never_retries_fails_for_good() -> None:
    assert decide_outcome(job(), ValueError(), NOW, policy=RetryPolicy(backoff=Never())).event is Event.FAIL


def test_a_retry_with_a_delay_uses_that_delay() -> None:
    error = Retry("the rate limit", after=HOUR)

    outcome = decide_outcome(job(), error, NOW, policy=EVERY_MINUTE)

    assert outcome == Outcome.retry(after=HOUR, failure=Failure.of(error))
    assert outcome.failure is not None
    assert outcome.failure.message == "the rate limit"


def test_a_retry_without_a_delay_uses_the_delay_of_the_policy() -> None:
    outcome = decide_outcome(job(), Retry("again"), NOW, policy=EVERY_MINUTE)

    assert (outcome.event, outcome.delay) == (Event.RETRY, MINUTE)


def test_a_handler_may_overrule_a_policy_that_gives_up() -> None:
    outcome = decide_outcome(job(), Retry(after=HOUR), NOW, policy=RetryPolicy(backoff=Never()))

    assert (outcome.event, outcome.delay) == (Event.RETRY, HOUR)


def test_a_retry_on_the_last_attempt_fails_for_good() -> None:
    outcome = decide_outcome(EXHAUSTED_JOB, Retry(after=HOUR), NOW)

    assert (outcome.event, outcome.reason) == (Event.FAIL, ATTEMPTS_EXHAUSTED)


def test_a_retry_with_a_negative_delay_is_due_at_once() -> None:
    outcome = decide_outcome(job(), Retry(after=-3600), NOW)

    assert (outcome.event, outcome.delay) == (Event.RETRY, timedelta.resolution)


@pytest.mark.parametrize("after", [60, 60.0, timedelta(minutes=1)])
def test_a_retry_and_a_snooze_take_seconds_or_a_timedelta(after: timedelta | float) -> None:
    outcomes = [decide_outcome(job(), error, NOW) for error in (Retry(after=after), Snooze(after), Snooze(after=after))]

    assert [outcome.delay for outcome in outcomes] == 3 * [timedelta(minutes=1)]


@pytest.mark.parametrize("after", ["60", True, float("nan"), float("inf"), 1e300])
def test_a_delay_that_is_no_duration_is_refused(after: Any) -> None:
    rule = r": must be a timedelta or a number of seconds, such as 30 or 0\.5"
    for error in (Retry, Snooze):
        with pytest.raises(UsageError, match=f"after is {re.escape(repr(after))}{rule}"):
            error(after=after)


def test_a_snooze_with_a_delay_uses_that_delay() -> None:
    assert decide_outcome(job(), Snooze(after=HOUR), NOW) == Outcome.snooze(after=HOUR)


def test_a_snooze_until_a_time_waits_until_then() -> None:
    assert decide_outcome(job(), Snooze(until=NOW + HOUR), NOW) == Outcome.snooze(after=HOUR)


@pytest.mark.parametrize("offset", [-12, -5, 0, 5.75, 14])
def test_a_snooze_until_a_time_in_another_zone_waits_until_then(offset: float) -> None:
    there = (NOW + HOUR).astimezone(timezone(timedelta(hours=offset)))

    assert decide_outcome(job(), Snooze(until=there), NOW) == Outcome.snooze(after=HOUR)


@pytest.mark.parametrize("snooze", [Snooze(until=NOW - HOUR), Snooze(after=-1), Snooze(after=timedelta(0))])
def test_a_snooze_into_the_past_ends_at_once(snooze: Snooze) -> None:
    assert decide_outcome(job(), snooze, NOW) == Outcome.snooze(after=timedelta(0))


@pytest.mark.parametrize(
    ("until", "delay"),
    [
        (datetime.max.replace(tzinfo=UTC), MAX_DELAY),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), MAX_DELAY),
        (datetime.min.replace(tzinfo=UTC), timedelta(0)),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), timedelta(0)),
    ],
)
def test_a_snooze_to_the_end_of_the_calendar_is_clamped(until: datetime, delay: timedelta) -> None:
    assert decide_outcome(job(), Snooze(until=until), NOW) == Outcome.snooze(after=delay)


def test_a_snooze_on_the_last_attempt_is_allowed() -> None:
    assert decide_outcome(EXHAUSTED_JOB, Snooze(after=HOUR), NOW).event is Event.SNOOZE


@pytest.mark.parametrize("arguments", [{}, {"after": HOUR, "until": NOW}])
def test_a_snooze_needs_exactly_one_time(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"Snooze is .*: give exactly one"):
        Snooze(**arguments)


def test_a_snooze_until_a_naive_time_is_refused() -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001  the mistake under test

    with pytest.raises(UsageError, match=r"until is .*2030.*: needs a time zone"):
        Snooze(until=naive)


@pytest.mark.parametrize("arguments", [{"after": "1h"}, {"until": "tomorrow"}])
def test_a_snooze_with_a_value_of_the_wrong_type_is_refused(arguments: dict[str, Any]) -> None:
    [(field, value)] = arguments.items()

    with pytest.raises(UsageError, match=f"{field} is {value!r}: "):
        Snooze(**arguments)


def test_a_cancel_keeps_the_reason() -> None:
    assert decide_outcome(job(), Cancel("not needed"), NOW) == Outcome.cancel("not needed")


def test_a_cancel_on_the_last_attempt_cancels_the_job() -> None:
    assert decide_outcome(EXHAUSTED_JOB, Cancel(), NOW).event is Event.CANCEL


def test_a_dead_letter_keeps_the_reason_and_the_place() -> None:
    error = DeadLetter("no such customer")

    outcome = decide_outcome(job(), error, NOW)

    assert outcome == Outcome.fail("no such customer", failure=Failure.of(error))


@pytest.mark.parametrize("kind", [Cancel, DeadLetter, Retry])
def test_a_reason_that_is_an_exception_is_recorded(kind: type[Exception]) -> None:
    error = kind(ValueError("no such customer"))

    outcome = decide_outcome(job(), error, NOW)

    assert outcome.recorded_failure is not None
    assert "no such customer" in outcome.recorded_failure.message


class TooEarly(Snooze):
    def __init__(self) -> None:
        Exception.__init__(self, "too early")


class InAMinute(Snooze):
    def __init__(self) -> None:
        Exception.__init__(self, "in a minute")
        self.after = 60  # type: ignore[assignment]  # the mistake under test


class NotNeeded(Cancel):
    def __init__(self) -> None:
        Exception.__init__(self, "not needed")


class Hopeless(DeadLetter):
    def __init__(self) -> None:
        Exception.__init__(self, "hopeless")


@pytest.mark.parametrize("kind", [TooEarly, InAMinute, NotNeeded, Hopeless])
def test_a_subclass_that_skips_the_base_constructor_is_recorded(kind: type[Exception]) -> None:
    outcome = decide_outcome(job(), kind(), NOW)

    assert isinstance(outcome, Outcome)


def broken(_attempt: int) -> timedelta:
    raise ZeroDivisionError


class AlwaysGreater:
    def __gt__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return False


NONSENSE: Final[dict[str, Any]] = {
    "zero": timedelta(0),
    "a negative delay": -MINUTE,
    "text": "a minute",
    "not a number": float("nan"),
    "without end": float("inf"),
    "a truth": True,
    "a type": timedelta,
    "something greater than everything": AlwaysGreater(),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_an_invalid_delay_of_a_policy_falls_back_to_the_default(answer: Any) -> None:
    error = ValueError("boom")
    policy = RetryPolicy(backoff=lambda _: answer)

    outcome = decide_outcome(job(), error, NOW, policy=policy)

    assert outcome == decide_outcome(job(), error, NOW)


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(backoff=broken),
        RetryPolicy(rules={ValueError: broken}),
    ],
)
def test_a_policy_that_raises_falls_back_to_the_default(policy: RetryPolicy) -> None:
    error = ValueError("boom")

    outcome = decide_outcome(job(), error, NOW, policy=policy)

    assert outcome == decide_outcome(job(), error, NOW)


def test_a_delay_beyond_the_maximum_is_clamped() -> None:
    policy = RetryPolicy(backoff=Fixed(timedelta.max))

    assert decide_outcome(job(), ValueError(), NOW, policy=policy).delay == MAX_DELAY


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "SystemExit"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
    ],
)
def test_an_error_outside_of_exception_is_recorded_like_any_other(error: BaseException, name: str) -> None:
    outcome = decide_outcome(job(), error, NOW)

    assert outcome.event is Event.RETRY
    assert outcome.failure is not None
    assert outcome.failure.type == name


def test_a_job_that_ran_too_long_is_retried_and_recorded_as_timed_out() -> None:
    error = JobTimedOut(job().id, MINUTE)

    outcome = decide_outcome(job(), error, NOW)

    assert outcome.event is Event.RETRY
    assert outcome.attempt_outcome is AttemptOutcome.TIMED_OUT


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


def test_an_error_that_cannot_be_printed_is_recorded() -> None:
    outcome = decide_outcome(job(), Unprintable(), NOW)

    assert outcome.event is Event.RETRY
    assert outcome.failure is not None
    assert "Unprintable" in outcome.failure.message


SIGNALS: Final = {
    "retry": Retry("again", after=HOUR),
    "snooze after": Snooze(after=HOUR),
    "snooze until": Snooze(until=NOW),
    "cancel": Cancel("not needed"),
    "dead letter": DeadLetter("hopeless"),
}


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
def test_handler_signals_can_be_copied_and_pickled(signal: Exception) -> None:
    # TaskHarbor pickles nothing, but multiprocessing and concurrent.futures pickle what their
    # functions raise, and a handler may use them.
    copies = [copy.copy(signal), pickle.loads(pickle.dumps(signal))]

    assert [decide_outcome(job(), each, NOW) for each in copies] == [decide_outcome(job(), signal, NOW)] * 2


class Odd(Exception):
    """An error with its own constructor and any text."""

    def __init__(self, words: Any, *, breaks: bool) -> None:
        super().__init__(words)
        self.words, self.breaks = words, breaks

    def __str__(self) -> Any:
        if self.breaks:
            raise RuntimeError
        return self.words


texts = st.text(st.characters(exclude_categories=()))
moments = st.datetimes(timezones=st.builds(timezone, st.timedeltas(-DAY, DAY)))
plain = st.sampled_from([ValueError, KeyError, OSError, StopIteration, KeyboardInterrupt, MemoryError, RecursionError])
errors: st.SearchStrategy[BaseException] = st.one_of(
    st.builds(lambda kind, text: kind(text), plain, texts),
    st.builds(Odd, texts | st.integers() | st.none() | st.binary(), breaks=st.booleans()),
    st.builds(UnicodeDecodeError, st.just("utf-8"), st.binary(min_size=1), st.just(0), st.just(1), texts),
    st.builds(Retry, texts, after=st.none() | st.timedeltas()),
    st.builds(lambda after: Snooze(after=after), st.timedeltas()),
    st.builds(lambda until: Snooze(until=until), moments),
    st.builds(Cancel, texts),
    st.builds(DeadLetter, texts),
)
groups = st.recursive(
    errors,
    lambda inner: st.builds(BaseExceptionGroup, texts, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=6,
)


@few
@given(groups, st.integers(1, 10**6), st.integers(1, 10**6), moments)
def test_any_exception_becomes_an_outcome_that_can_be_stored(
    error: BaseException, attempt: int, max_attempts: int, now: datetime
) -> None:
    outcome = decide_outcome(job(attempt=attempt, max_attempts=max_attempts), error, now)

    said = outcome.recorded_failure or Failure()
    assert all(is_storable(text) for text in (said.type, said.message, said.traceback, said.fingerprint))
    assert max(len(said.message), len(said.traceback)) <= MAX_TEXT_CHARS
    assert timedelta(0) <= outcome.delay <= MAX_DELAY


@few
@given(groups, st.integers(1, 10**6), st.integers(1, 10**6))
def test_an_exhausted_job_never_waits_for_another_attempt(
    error: BaseException, attempt: int, max_attempts: int
) -> None:
    held = job(attempt=attempt, max_attempts=max_attempts)

    outcome = decide_outcome(held, error, NOW)

    assert not (held.is_exhausted and outcome.event is Event.RETRY)
