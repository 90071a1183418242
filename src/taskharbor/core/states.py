"""The life of a job, as data.

The memory driver calls these functions, the SQL drivers render `status_after` as SQL
(`taskharbor.drivers.records.landing_case`), the docs render the table, and tests state laws about it:
success is for ever; only a person leaves a final state; every waiting job can be
canceled; nothing that is spent waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(StrEnum):
    """Where a job stands."""

    PENDING = "PENDING"
    """Stored; waits for ``scheduled_for`` or a free worker; nobody has been told."""
    ENQUEUED = "ENQUEUED"
    """Belongs to the delivery queue: its id was sent, is being sent, or will be sent when it is due."""
    PROCESSING = "PROCESSING"
    """Leased to exactly one worker."""
    FAILED = "FAILED"
    """Its last attempt failed; waits for ``scheduled_for`` to be tried again. Never an end."""
    SUCCEEDED = "SUCCEEDED"
    """Done. Final."""
    DEAD = "DEAD"
    """A dead letter: it failed for good and is kept for a person. Final."""
    CANCELED = "CANCELED"
    """Somebody called it off. Final."""

    @property
    def is_final(self) -> bool:
        """Nothing but a requeue by a person leads out of it."""
        return self in FINAL

    @property
    def is_waiting(self) -> bool:
        """It will be claimed when it is due."""
        return self in WAITING


WAITING: Final = frozenset({Status.PENDING, Status.ENQUEUED, Status.FAILED})
FINAL: Final = frozenset({Status.SUCCEEDED, Status.DEAD, Status.CANCELED})


class Event(StrEnum):
    """What can happen to a job."""

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
    """One row of the table: which states an event may leave, where it leads, when, and what it does.

    No sources means the job comes into being; no targets means it is gone.
    """

    sources: frozenset[Status]
    targets: tuple[Status, ...]
    guard: str
    effects: str


def next_statuses(status: Status, event: Event) -> tuple[Status, ...]:
    """Return where *event* may take a job in *status*: nowhere, if it may not happen.

    >>> next_statuses(Status.SUCCEEDED, Event.REQUEUE)
    ()
    """
    transition = TRANSITIONS[event]
    return transition.targets if status in transition.sources else ()


def status_after(event: Event, *, sent: bool, spent: bool, cancel_requested: bool) -> Status:
    """Return the one state in which *event* leaves a job that is being processed.

    *sent* tells whether its id went to the delivery queue in this life. A requested
    cancel survives everything but success, and a spent job never waits again.
    """
    if event is Event.ACK:
        return Status.SUCCEEDED
    if event is Event.FAIL:
        return Status.DEAD
    if event is Event.CANCEL or cancel_requested:
        return Status.CANCELED
    if spent and event is not Event.SNOOZE:  # a snooze gives its attempt back, so it can always wait
        return Status.DEAD
    if sent:
        return Status.ENQUEUED
    return Status.FAILED if event in {Event.RETRY, Event.EXPIRE} else Status.PENDING


_P, _E, _R, _F = Status.PENDING, Status.ENQUEUED, Status.PROCESSING, Status.FAILED
_S, _D, _C = Status.SUCCEEDED, Status.DEAD, Status.CANCELED
_NONE: Final[frozenset[Status]] = frozenset()
_HELD: Final = frozenset({_R})
_FENCE: Final = "token; lease not over"

# fmt: off
TRANSITIONS: Final[Mapping[Event, Transition]] = MappingProxyType({
    Event.INSERT: Transition(_NONE, (_P,),
        "no job holds this (queue, idempotency key)",
        "attempt_count 0; scheduled_for = the given time, or store now + delay"),
    Event.DISPATCH: Transition(WAITING, (_E,),
        "due; not spent; dispatch_at null or past; queue not paused; fewer than W unclaimed, unless this is a re-send",
        "sends+1, resends+1, dispatch_at = now + lock"),
    Event.SENT: Transition(frozenset({_E}), (_E,),
        "sends and dispatch_at as the dispatch left them",
        "sent_at, dispatch_at = now + the growing re-send interval"),
    Event.UNSENT: Transition(frozenset({_E}), (_E,),
        "sends and dispatch_at as the dispatch left them",
        "dispatch_at = now, resends-1; sends never goes back"),
    Event.DECLINE: Transition(frozenset({_E}), (_E,),
        "sends as in the message that is given back",
        "dispatch_at = now: the store will ring again"),
    Event.RESERVE: Transition(WAITING, (_R,),
        "due (ENQUEUED: for longer than D); not spent; queue not paused; type among those asked for, "
        "or due for longer than other workers are waited for",
        "lease, worker_id, processing_started_at, attempt_count+1, dispatch_at null, resends 0"),
    Event.CLAIM: Transition(frozenset({_E}), (_R,),
        "of the queue asked for; due; not spent; queue not paused; type as for reserve",
        "as reserve; sent_at where null; a refusal says why, and until when"),
    Event.RECLAIM: Transition(_HELD, (_R,),
        "lease over; of the queue asked for; not spent; no cancel requested; queue not paused; no clock hold; "
        "type among those asked for",
        "as reserve, by a message as claim; the lost attempt is recorded under its old token"),
    Event.EXTEND: Transition(_HELD, (_R,),
        _FENCE,
        "lease_expires_at = now + lease; tells of a requested cancel"),
    Event.ACK: Transition(_HELD, (_S,),
        _FENCE,
        "lease cleared, settled_token, completed_at, result; wins over a requested cancel"),
    Event.RETRY: Transition(_HELD, (_F, _E, _D, _C),
        _FENCE,
        "scheduled_for = now + delay, last_error, failed_at, settled_token; DEAD if spent; CANCELED if requested"),
    Event.FAIL: Transition(_HELD, (_D,),
        _FENCE,
        "last_error, failed_at, dead_reason, dead_at, completed_at, settled_token, outbox row"),
    Event.SNOOZE: Transition(_HELD, (_P, _E, _C),
        _FENCE,
        "scheduled_for = now + delay; the attempt is given back; CANCELED if requested"),
    Event.RELEASE: Transition(_HELD, (_P, _E, _D, _C),
        _FENCE,
        "releases+1; the attempt is given back up to a bound; DEAD if spent; CANCELED if requested"),
    Event.CANCEL: Transition(WAITING | _HELD, (_C,),
        "waiting: none; PROCESSING: by its own worker, token and lease not over",
        "completed_at; by its worker also settled_token, and the attempt is recorded"),
    Event.REQUEST_CANCEL: Transition(_HELD, (_R,),
        "none",
        "cancel_requested_at"),
    Event.EXPIRE: Transition(_HELD, (_F, _E, _D, _C),
        "lease over; no clock hold",
        "lost attempt recorded; scheduled_for = now; last_error; DEAD if spent; CANCELED if requested"),
    Event.BURY: Transition(WAITING, (_D,),
        "spent",
        "as fail; a net that must never fire, and is counted"),
    Event.RESCHEDULE: Transition(WAITING, (_P, _E, _F),
        "none",
        "the state stays; scheduled_for, priority; dispatch_at null"),
    Event.REQUEUE: Transition(frozenset({_D, _C}), (_P,),
        "an operator asked",
        "life+1; max_attempts = attempt_count + budget; payload where given; a new start; sends and key are kept; "
        "who and why are recorded"),
    Event.PRUNE: Transition(FINAL, (),
        "older than retention; every event published or given up",
        "its keys, attempts and events go with it"),
})
# fmt: on

SETTLE_EVENTS: Final = frozenset({Event.ACK, Event.RETRY, Event.FAIL, Event.SNOOZE, Event.RELEASE, Event.CANCEL})
"""The events by which a worker records how its attempt ended."""
