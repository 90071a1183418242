"""Invariants of the transition table."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from taskharbor.core.states import (
    FINAL,
    SETTLE_EVENTS,
    TRANSITIONS,
    WAITING,
    Event,
    Status,
    next_statuses,
    status_after,
)

ENDING: Final = SETTLE_EVENTS | {Event.EXPIRE}
CIRCUMSTANCES: Final = [*product((True, False), repeat=3)]


def reachable(start: Status) -> set[Status]:
    """Return every status that can be reached from *start*."""
    found, ahead = {start}, [start]
    while ahead:
        status = ahead.pop()
        new = {target for event in Event for target in next_statuses(status, event)} - found
        found |= new
        ahead += new
    return found


def leaving(status: Status) -> set[Event]:
    """Return every event that is allowed in *status*."""
    return {event for event in Event if status in TRANSITIONS[event].sources}


def test_every_event_has_a_row() -> None:
    assert set(TRANSITIONS) == set(Event)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[Event.ACK] = TRANSITIONS[Event.FAIL]  # type: ignore[index]


def test_each_status_is_exactly_one_of_waiting_final_and_processing() -> None:
    assert WAITING | FINAL | {Status.PROCESSING} == set(Status)
    assert not WAITING & FINAL
    assert Status.PROCESSING not in WAITING | FINAL


@pytest.mark.parametrize("status", Status)
def test_is_waiting_and_is_final_match_the_sets(status: Status) -> None:
    assert status.is_waiting == (status in {Status.PENDING, Status.ENQUEUED, Status.FAILED})
    assert status.is_final == (status in {Status.SUCCEEDED, Status.DEAD, Status.CANCELED})


def test_no_event_leaves_succeeded() -> None:
    assert reachable(Status.SUCCEEDED) == {Status.SUCCEEDED}


@pytest.mark.parametrize("status", [Status.DEAD, Status.CANCELED])
def test_only_a_requeue_leaves_dead_or_canceled(status: Status) -> None:
    assert leaving(status) == {Event.REQUEUE, Event.PRUNE}
    assert next_statuses(status, Event.REQUEUE) == (Status.PENDING,)


def test_only_final_jobs_are_pruned() -> None:
    assert TRANSITIONS[Event.PRUNE].sources == FINAL


@pytest.mark.parametrize("status", sorted(WAITING))
@pytest.mark.parametrize("event", [Event.CANCEL, Event.RESCHEDULE, Event.RESERVE, Event.DISPATCH, Event.BURY])
def test_every_waiting_job_can_be_canceled_rescheduled_reserved_dispatched_and_buried(
    status: Status, event: Event
) -> None:
    assert next_statuses(status, event)


@pytest.mark.parametrize("status", sorted(WAITING))
def test_a_reschedule_keeps_the_status(status: Status) -> None:
    assert status in next_statuses(status, Event.RESCHEDULE)


@pytest.mark.parametrize("status", sorted(set(Status) - FINAL))
def test_dead_can_be_reached_from_every_status_that_is_not_final(status: Status) -> None:
    assert Status.DEAD in reachable(status)


@pytest.mark.parametrize("status", sorted(set(Status) - FINAL))
def test_succeeded_can_be_reached_from_every_status_that_is_not_final(status: Status) -> None:
    assert Status.SUCCEEDED in reachable(status)


def test_every_status_can_be_reached_by_a_new_job() -> None:
    [first] = TRANSITIONS[Event.INSERT].targets

    assert first is Status.PENDING
    assert reachable(first) == set(Status)


def test_only_an_insert_creates_a_job() -> None:
    assert [event for event in Event if not TRANSITIONS[event].sources] == [Event.INSERT]


def test_only_a_prune_removes_a_job() -> None:
    assert [event for event in Event if not TRANSITIONS[event].targets] == [Event.PRUNE]


def test_no_row_lists_a_target_twice() -> None:
    assert not [event for event, row in TRANSITIONS.items() if len(set(row.targets)) < len(row.targets)]


def test_every_row_has_a_guard_and_effects() -> None:
    assert not [event for event, row in TRANSITIONS.items() if not row.guard or not row.effects]


@pytest.mark.parametrize("event", Event)
def test_an_event_has_no_targets_from_a_status_outside_its_sources(event: Event) -> None:
    row = TRANSITIONS[event]

    answers = {status: next_statuses(status, event) for status in Status}

    assert {status for status, answer in answers.items() if answer} == (row.sources if row.targets else set())
    assert {answer for answer in answers.values() if answer} <= {row.targets}


def test_six_events_settle_an_attempt() -> None:
    assert sorted(SETTLE_EVENTS) == ["ack", "cancel", "fail", "release", "retry", "snooze"]


@pytest.mark.parametrize("event", sorted(SETTLE_EVENTS))
def test_settle_events_apply_only_to_processing_jobs(event: Event) -> None:
    others = {Status.PROCESSING} | (WAITING if event is Event.CANCEL else set())

    assert TRANSITIONS[event].sources == others


def test_only_claims_create_a_lease() -> None:
    made = {event for event, row in TRANSITIONS.items() if Status.PROCESSING in row.targets}

    kept = {Event.EXTEND, Event.REQUEST_CANCEL}
    assert made - kept == {Event.RESERVE, Event.CLAIM, Event.RECLAIM}


def test_only_an_ack_leads_to_succeeded() -> None:
    assert {event for event, row in TRANSITIONS.items() if Status.SUCCEEDED in row.targets} == {Event.ACK}


@pytest.mark.parametrize(("sent", "exhausted", "cancel_requested"), CIRCUMSTANCES)
@pytest.mark.parametrize("event", sorted(ENDING))
def test_the_status_after_an_attempt_is_a_target_of_its_row(
    event: Event, sent: bool, exhausted: bool, cancel_requested: bool
) -> None:
    status = status_after(event, sent=sent, exhausted=exhausted, cancel_requested=cancel_requested)

    assert status in next_statuses(Status.PROCESSING, event)


@pytest.mark.parametrize("event", sorted(ENDING))
def test_every_target_of_a_settle_event_can_be_reached(event: Event) -> None:
    statuses = {
        status_after(event, sent=sent, exhausted=exhausted, cancel_requested=cancel_requested)
        for sent, exhausted, cancel_requested in CIRCUMSTANCES
    }

    assert statuses >= set(TRANSITIONS[event].targets)


@pytest.mark.parametrize(("sent", "exhausted"), [*product((True, False), repeat=2)])
@pytest.mark.parametrize("event", sorted(ENDING))
def test_a_requested_cancel_wins_over_all_but_success_and_failure(event: Event, sent: bool, exhausted: bool) -> None:
    status = status_after(event, sent=sent, exhausted=exhausted, cancel_requested=True)

    ends = {Event.ACK: Status.SUCCEEDED, Event.FAIL: Status.DEAD}
    assert status is ends.get(event, Status.CANCELED)


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("event", [Event.RETRY, Event.RELEASE, Event.EXPIRE])
def test_an_exhausted_job_becomes_dead_instead_of_waiting(event: Event, sent: bool) -> None:
    assert status_after(event, sent=sent, exhausted=True, cancel_requested=False) is Status.DEAD


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (Event.RETRY, Status.FAILED),
        (Event.EXPIRE, Status.FAILED),
        (Event.SNOOZE, Status.PENDING),
        (Event.RELEASE, Status.PENDING),
    ],
)
def test_a_job_that_was_never_sent_returns_to_pending_or_failed(event: Event, status: Status) -> None:
    assert status_after(event, sent=False, exhausted=False, cancel_requested=False) is status


@pytest.mark.parametrize("event", [Event.RETRY, Event.EXPIRE, Event.SNOOZE, Event.RELEASE])
def test_a_job_that_was_sent_returns_to_enqueued(event: Event) -> None:
    assert status_after(event, sent=True, exhausted=False, cancel_requested=False) is Status.ENQUEUED
