"""The job state machine as a table.

The memory driver calls these functions, SQL drivers render `status_after` as SQL (`drivers.records.landing_case`),
`docs/states.md` is rendered from the table, and tests check its invariants: SUCCEEDED is never left, only a
requeue leaves DEAD or CANCELED, every waiting job can be canceled, and no exhausted job waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(StrEnum):
    """The status of a job."""

    PENDING = "PENDING"
    """Stored. Waits for ``scheduled_for`` or a free worker; no message was sent."""
    ENQUEUED = "ENQUEUED"
    """Delivered by message: its id was sent, is being sent, or will be sent when it is due."""
    PROCESSING = "PROCESSING"
    """Leased to exactly one worker."""
    FAILED = "FAILED"
    """The last attempt failed. Waits for ``scheduled_for`` to be retried; not final."""
    SUCCEEDED = "SUCCEEDED"
    """Done. Final."""
    DEAD = "DEAD"
    """A dead letter: failed for good, kept for an operator. Final."""
    CANCELED = "CANCELED"
    """Canceled. Final."""

    @property
    def is_final(self) -> bool:
        """Whether only an operator's requeue can leave this status."""
        return self in FINAL

    @property
    def is_waiting(self) -> bool:
        """Whether the job can be claimed when it is due."""
        return self in WAITING


WAITING: Final = frozenset({Status.PENDING, Status.ENQUEUED, Status.FAILED})
FINAL: Final = frozenset({Status.SUCCEEDED, Status.DEAD, Status.CANCELED})


class Event(StrEnum):
    """An event that can change a job."""

    INSERT = "insert"
    DISPATCH = "dispatch"
    SENT = "sent"
    UNSENT = "unsent"
    DECLINE = "decline"
    RESERVE = "reserve"
    CLAIM = "claim"
    RECLAIM = "reclaim"
    EXTEND = "extend"
    ACK = "ack"
    RETRY = "retry"
    FAIL = "fail"
    SNOOZE = "snooze"
    RELEASE = "release"
    CANCEL = "cancel"
    REQUEST_CANCEL = "request cancel"
    EXPIRE = "expire"
    BURY = "bury"
    RESCHEDULE = "reschedule"
    REQUEUE = "requeue"
    PRUNE = "prune"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: the source and target statuses of an event, its condition and its effects.

    No sources means that the event creates the job; no targets, that it removes the job.
    """

    sources: frozenset[Status]
    targets: tuple[Status, ...]
    guard: str
    effects: str


def next_statuses(status: Status, event: Event) -> tuple[Status, ...]:
    """Return the statuses that *event* can lead to from *status*; empty if it is not allowed.

    >>> next_statuses(Status.SUCCEEDED, Event.REQUEUE)
    ()
    """
    transition = TRANSITIONS[event]
    return transition.targets if status in transition.sources else ()


def status_after(event: Event, *, sent: bool, exhausted: bool, cancel_requested: bool) -> Status:
    """Return the status of a PROCESSING job after *event*.

    *sent*: a message for the job was sent in this life. A requested cancel wins over every event
    except success and failure, and an exhausted job never waits again.
    """
    if event is Event.ACK:
        return Status.SUCCEEDED
    if event is Event.FAIL:
        return Status.DEAD
    if event is Event.CANCEL or cancel_requested:
        return Status.CANCELED
    if exhausted and event is not Event.SNOOZE:  # a snooze counts no attempt, so the job can wait
        return Status.DEAD
    if sent:
        return Status.ENQUEUED
    return Status.FAILED if event in {Event.RETRY, Event.EXPIRE} else Status.PENDING


_P, _E, _R, _F = Status.PENDING, Status.ENQUEUED, Status.PROCESSING, Status.FAILED
_S, _D, _C = Status.SUCCEEDED, Status.DEAD, Status.CANCELED
_NONE: Final[frozenset[Status]] = frozenset()
_HELD: Final = frozenset({_R})
_FENCE: Final = "token matches; lease not expired"

# fmt: off
TRANSITIONS: Final[Mapping[Event, Transition]] = MappingProxyType({
    Event.INSERT: Transition(_NONE, (_P,),
        "no job holds this (queue, idempotency key)",
        "attempt_count 0; scheduled_for = the given time, or the store's now + delay"),
    Event.DISPATCH: Transition(WAITING, (_E,),
        "due; not exhausted; dispatch_at null or past; queue not paused; fewer than W unclaimed, unless a resend",
        "sends+1, resends+1, dispatch_at = now + lock"),
    Event.SENT: Transition(frozenset({_E}), (_E,),
        "sends and dispatch_at unchanged since the dispatch",
        "sent_at; dispatch_at = now + the growing resend interval"),
    Event.UNSENT: Transition(frozenset({_E}), (_E,),
        "sends and dispatch_at unchanged since the dispatch",
        "dispatch_at = now, resends-1; sends never decreases"),
    Event.DECLINE: Transition(frozenset({_E}), (_E,),
        "sends equal to the seq of the declined message",
        "dispatch_at = now: the message will be resent"),
    Event.RESERVE: Transition(WAITING, (_R,),
        "due (ENQUEUED: for longer than D); not exhausted; queue not paused; type among the worker's types, "
        "or due for longer than unhandled_after",
        "lease, worker_id, processing_started_at, attempt_count+1, dispatch_at null, resends 0"),
    Event.CLAIM: Transition(frozenset({_E}), (_R,),
        "in the requested queue; due; not exhausted; queue not paused; type as for reserve",
        "as reserve; sent_at if null; a refusal has a reason and an end time"),
    Event.RECLAIM: Transition(_HELD, (_R,),
        "lease expired; in the requested queue; not exhausted; no cancel requested; queue not paused; no clock hold; "
        "type among the worker's types",
        "as reserve, or as claim if by a message; the lost attempt is recorded under its old token"),
    Event.EXTEND: Transition(_HELD, (_R,),
        _FENCE,
        "lease_expires_at = now + lease; reports a requested cancel"),
    Event.ACK: Transition(_HELD, (_S,),
        _FENCE,
        "lease cleared, settled_token, completed_at, result; wins over a requested cancel"),
    Event.RETRY: Transition(_HELD, (_F, _E, _D, _C),
        _FENCE,
        "scheduled_for = now + delay, last_error, failed_at, settled_token; DEAD if exhausted; CANCELED if requested"),
    Event.FAIL: Transition(_HELD, (_D,),
        _FENCE,
        "last_error, failed_at, dead_reason, dead_at, completed_at, settled_token, outbox row"),
    Event.SNOOZE: Transition(_HELD, (_P, _E, _C),
        _FENCE,
        "scheduled_for = now + delay; the attempt is not counted; CANCELED if requested"),
    Event.RELEASE: Transition(_HELD, (_P, _E, _D, _C),
        _FENCE,
        "releases+1; the attempt is not counted, up to a bound; if the handler did not begin, neither is counted; "
        "DEAD if exhausted; CANCELED if requested"),
    Event.CANCEL: Transition(WAITING | _HELD, (_C,),
        "waiting: none; PROCESSING: by its own worker, token matches and lease not expired",
        "completed_at; by its worker also settled_token, and the attempt is recorded"),
    Event.REQUEST_CANCEL: Transition(_HELD, (_R,),
        "none",
        "cancel_requested_at"),
    Event.EXPIRE: Transition(_HELD, (_F, _E, _D, _C),
        "lease expired; no clock hold",
        "lost attempt recorded; scheduled_for = now; last_error; DEAD if exhausted; CANCELED if requested"),
    Event.BURY: Transition(WAITING, (_D,),
        "exhausted",
        "as fail; a safety net that should never fire, and is counted"),
    Event.RESCHEDULE: Transition(WAITING, (_P, _E, _F),
        "none",
        "status unchanged; scheduled_for, priority; dispatch_at null"),
    Event.REQUEUE: Transition(frozenset({_D, _C}), (_P,),
        "requested by an operator",
        "life+1; max_attempts = attempt_count + budget (as before if not given); payload if given; "
        "scheduled anew; sends and key are kept; actor and reason are recorded"),
    Event.PRUNE: Transition(FINAL, (),
        "older than the retention; every event published or given up",
        "removes its keys, attempts and events"),
})
# fmt: on

SETTLE_EVENTS: Final = frozenset({Event.ACK, Event.RETRY, Event.FAIL, Event.SNOOZE, Event.RELEASE, Event.CANCEL})
"""The events that settle an attempt."""
