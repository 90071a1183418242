from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core.errors import JobTimedOut
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_job_id
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.outcome import MAX_RELEASES, Outcome
from taskharbor.core.request import MAX_DELAY
from taskharbor.core.states import SETTLE_EVENTS, Event
from taskharbor.core.text import MAX_TEXT_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable

BOOM: Final = Failure(type="ValueError", message="boom")
SOON: Final = timedelta(seconds=5)
ONE_OF_EACH: Final = {
    Event.ACK: Outcome.ack(),
    Event.RETRY: Outcome.retry(after=SOON),
    Event.FAIL: Outcome.fail("hopeless"),
    Event.SNOOZE: Outcome.snooze(after=SOON),
    Event.RELEASE: Outcome.release(),
    Event.CANCEL: Outcome.cancel(),
}


def test_an_outcome_can_be_made_only_by_its_named_constructors() -> None:
    with pytest.raises(TypeError) as caught:
        Outcome()

    assert [event for event in SETTLE_EVENTS if f".{event}()" not in str(caught.value)] == []


def test_every_event_that_settles_has_its_constructor() -> None:
    assert set(ONE_OF_EACH) == SETTLE_EVENTS
    assert {event: outcome.event for event, outcome in ONE_OF_EACH.items()} == {event: event for event in SETTLE_EVENTS}


def test_an_outcome_cannot_be_changed() -> None:
    outcome = Outcome.ack()

    with pytest.raises(FrozenInstanceError):
        outcome.event = Event.FAIL  # type: ignore[misc]


def test_outcomes_with_equal_fields_are_equal() -> None:
    assert Outcome.retry(after=SOON, failure=BOOM) == Outcome.retry(after=SOON, failure=BOOM)
    assert Outcome.retry(after=SOON) != Outcome.snooze(after=SOON)


def test_a_success_carries_its_result() -> None:
    assert Outcome.ack(b"42").result == b"42"


def test_a_success_without_a_result_is_not_one_with_an_empty_result() -> None:
    assert Outcome.ack().result is None
    assert Outcome.ack(b"").result == b""


def test_an_outcome_does_not_show_its_result_which_may_be_a_secret() -> None:
    assert "hunter2" not in repr(Outcome.ack(b"hunter2"))


@settings(deadline=None)
@given(st.timedeltas())
def test_a_delay_is_clamped_to_the_storable_range(delay: timedelta) -> None:
    delays = {Outcome.retry(after=delay).delay, Outcome.snooze(after=delay).delay}

    [bent] = delays
    assert timedelta(0) <= bent <= MAX_DELAY
    assert bent == delay or not timedelta(0) <= delay <= MAX_DELAY


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (timedelta.min, timedelta(0)),
        (-timedelta.resolution, timedelta(0)),
        (timedelta(0), timedelta(0)),
        (MAX_DELAY, MAX_DELAY),
        (MAX_DELAY + timedelta.resolution, MAX_DELAY),
        (timedelta.max, MAX_DELAY),
    ],
)
def test_a_delay_at_its_bounds_is_kept(asked: timedelta, kept: timedelta) -> None:
    assert Outcome.retry(after=asked).delay == kept


@pytest.mark.parametrize("make", [Outcome.fail, Outcome.cancel])
def test_a_reason_is_made_storable(make: Callable[[str], Outcome]) -> None:
    outcome = make("a\x00b\ud800c")

    assert outcome.reason == "a\\x00b\\ud800c"


def test_a_huge_reason_is_cut() -> None:
    outcome = Outcome.fail("x" * 10 * MAX_TEXT_CHARS)

    assert outcome.reason is not None
    assert len(outcome.reason) == MAX_TEXT_CHARS


def test_a_release_is_free_a_bounded_number_of_times() -> None:
    assert Outcome.release().bound == MAX_RELEASES
    assert Outcome.release(bound=2).bound == 2
    assert Outcome.release(bound=None).bound is None


def test_a_failure_is_recorded_as_it_is() -> None:
    assert Outcome.retry(after=SOON, failure=BOOM).recorded_failure == BOOM
    assert Outcome.fail("hopeless", failure=BOOM).recorded_failure == BOOM


def test_a_reason_alone_is_recorded_as_a_failure_without_a_type() -> None:
    assert Outcome.fail("hopeless").recorded_failure == Failure(message="hopeless")
    assert Outcome.cancel("not needed").recorded_failure == Failure(message="not needed")


@pytest.mark.parametrize("event", [Event.ACK, Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.CANCEL])
def test_an_outcome_without_reason_and_failure_records_no_failure(event: Event) -> None:
    assert ONE_OF_EACH[event].recorded_failure is None


@pytest.mark.parametrize(
    ("event", "recorded"),
    [
        (Event.RETRY, AttemptOutcome.FAILED),
        (Event.FAIL, AttemptOutcome.FAILED),
        (Event.SNOOZE, AttemptOutcome.SNOOZED),
        (Event.RELEASE, AttemptOutcome.RELEASED),
        (Event.CANCEL, AttemptOutcome.CANCELED),
    ],
)
def test_every_outcome_but_a_success_has_an_attempt_outcome(event: Event, recorded: AttemptOutcome) -> None:
    assert ONE_OF_EACH[event].attempt_outcome is recorded


def test_a_failure_by_timeout_is_recorded_as_timed_out() -> None:
    late = Failure.of(JobTimedOut(new_job_id(), SOON))

    assert Outcome.retry(after=SOON, failure=late).attempt_outcome is AttemptOutcome.TIMED_OUT
    assert Outcome.fail("exhausted", failure=late).attempt_outcome is AttemptOutcome.TIMED_OUT


def test_a_builtin_timeout_error_of_the_handler_is_a_failure() -> None:
    outcome = Outcome.retry(after=SOON, failure=Failure.of(TimeoutError()))

    assert outcome.attempt_outcome is AttemptOutcome.FAILED
