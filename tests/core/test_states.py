"""Laws of the transition table."""

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
    """Return every state that some sequence of events leads to from *start*."""
    found, ahead = {start}, [start]
    while ahead:
        status = ahead.pop()
        new = {target for event in Event for target in next_statuses(status, event)} - found
        found |= new
        ahead += new
    return found


def leaving(status: Status) -> set[Event]:
    """Return every event that may happen to a job in *status*."""
    return {event for event in Event if status in TRANSITIONS[event].sources}


def test_every_event_has_a_row() -> None:
    assert set(TRANSITIONS) == set(Event)


def test_nobody_can_change_the_table() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[Event.ACK] = TRANSITIONS[Event.FAIL]  # type: ignore[index]


def test_a_state_is_waiting_or_final_or_processing_and_never_two_of_them() -> None:
    assert WAITING | FINAL | {Status.PROCESSING} == set(Status)
    assert not WAITING & FINAL
    assert Status.PROCESSING not in WAITING | FINAL


@pytest.mark.parametrize("status", Status)
def test_a_state_knows_to_which_part_it_belongs(status: Status) -> None:
    assert status.is_waiting == (status in {Status.PENDING, Status.ENQUEUED, Status.FAILED})
    assert status.is_final == (status in {Status.SUCCEEDED, Status.DEAD, Status.CANCELED})


def test_success_is_for_ever() -> None:
    assert reachable(Status.SUCCEEDED) == {Status.SUCCEEDED}


@pytest.mark.parametrize("status", [Status.DEAD, Status.CANCELED])
def test_only_a_person_leads_a_job_out_of_a_final_state(status: Status) -> None:
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
def test_a_waiting_job_may_stay_where_it_is_when_it_is_rescheduled(status: Status) -> None:
    assert status in next_statuses(status, Event.RESCHEDULE)


@pytest.mark.parametrize("status", sorted(set(Status) - FINAL))
def test_death_can_be_reached_from_every_state_that_is_not_final(status: Status) -> None:
    assert Status.DEAD in reachable(status)


@pytest.mark.parametrize("status", sorted(set(Status) - FINAL))
def test_success_can_be_reached_from_every_state_that_is_not_final(status: Status) -> None:
    assert Status.SUCCEEDED in reachable(status)


def test_every_state_can_be_reached_by_a_new_job() -> None:
    [born] = TRANSITIONS[Event.INSERT].targets

    assert born is Status.PENDING
    assert reachable(born) == set(Status)


def test_a_job_comes_from_nowhere_by_an_insert_alone() -> None:
    assert [event for event in Event if not TRANSITIONS[event].sources] == [Event.INSERT]


def test_a_job_is_gone_after_a_prune_alone() -> None:
    assert [event for event in Event if not TRANSITIONS[event].targets] == [Event.PRUNE]


def test_no_row_names_a_target_twice() -> None:
    assert not [event for event, row in TRANSITIONS.items() if len(set(row.targets)) < len(row.targets)]


def test_every_row_says_when_it_may_happen_and_what_it_does() -> None:
    assert not [event for event, row in TRANSITIONS.items() if not row.guard or not row.effects]


@pytest.mark.parametrize("event", Event)
def test_an_event_leads_nowhere_from_a_state_it_may_not_leave(event: Event) -> None:
    row = TRANSITIONS[event]

    answers = {status: next_statuses(status, event) for status in Status}

    assert {status for status, answer in answers.items() if answer} == (row.sources if row.targets else set())
    assert {answer for answer in answers.values() if answer} <= {row.targets}


def test_a_worker_settles_by_six_events() -> None:
    assert sorted(SETTLE_EVENTS) == ["ack", "cancel", "fail", "release", "retry", "snooze"]


@pytest.mark.parametrize("event", sorted(SETTLE_EVENTS))
def test_a_worker_settles_only_what_is_being_processed(event: Event) -> None:
    others = {Status.PROCESSING} | (WAITING if event is Event.CANCEL else set())

    assert TRANSITIONS[event].sources == others


def test_a_lease_is_made_by_a_claim_and_by_nothing_else() -> None:
    made = {event for event, row in TRANSITIONS.items() if Status.PROCESSING in row.targets}

    kept = {Event.EXTEND, Event.REQUEST_CANCEL}
    assert made - kept == {Event.RESERVE, Event.CLAIM, Event.RECLAIM}


def test_success_is_recorded_by_an_ack_and_by_nothing_else() -> None:
    assert {event for event, row in TRANSITIONS.items() if Status.SUCCEEDED in row.targets} == {Event.ACK}


@pytest.mark.parametrize(("sent", "exhausted", "cancel_requested"), CIRCUMSTANCES)
@pytest.mark.parametrize("event", sorted(ENDING))
def test_an_attempt_always_lands_where_its_row_allows(
    event: Event, sent: bool, exhausted: bool, cancel_requested: bool
) -> None:
    status = status_after(event, sent=sent, exhausted=exhausted, cancel_requested=cancel_requested)

    assert status in next_statuses(Status.PROCESSING, event)


@pytest.mark.parametrize("event", sorted(ENDING))
def test_every_target_of_an_ending_is_a_landing(event: Event) -> None:
    landings = {
        status_after(event, sent=sent, exhausted=exhausted, cancel_requested=cancel_requested)
        for sent, exhausted, cancel_requested in CIRCUMSTANCES
    }

    assert landings >= set(TRANSITIONS[event].targets)


@pytest.mark.parametrize(("sent", "exhausted"), [*product((True, False), repeat=2)])
@pytest.mark.parametrize("event", sorted(ENDING))
def test_a_requested_cancel_survives_everything_but_success_and_death(
    event: Event, sent: bool, exhausted: bool
) -> None:
    status = status_after(event, sent=sent, exhausted=exhausted, cancel_requested=True)

    ends = {Event.ACK: Status.SUCCEEDED, Event.FAIL: Status.DEAD}
    assert status is ends.get(event, Status.CANCELED)


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("event", [Event.RETRY, Event.RELEASE, Event.EXPIRE])
def test_a_spent_job_dies_instead_of_waiting_again(event: Event, sent: bool) -> None:
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
def test_a_job_that_was_never_sent_goes_back_to_where_the_store_alone_finds_it(event: Event, status: Status) -> None:
    assert status_after(event, sent=False, exhausted=False, cancel_requested=False) is status


@pytest.mark.parametrize("event", [Event.RETRY, Event.EXPIRE, Event.SNOOZE, Event.RELEASE])
def test_a_job_that_was_sent_goes_back_to_the_delivery_queue(event: Event) -> None:
    assert status_after(event, sent=True, exhausted=False, cancel_requested=False) is Status.ENQUEUED
