"""The wire format of messages, and the rules that decide what a worker does with one.

A message is only a hint that jobs of its queue are due; it carries no payload, and the store decides
whether they can be claimed. So messages may be lost, duplicated, delayed or forged without harm.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from taskharbor.core.ids import JobId
from taskharbor.core.results import RefusalReason, Refused
from taskharbor.core.text import make_storable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

OVERDUE_AFTER: Final = timedelta(seconds=60)
"""How long a sent job waits for its message before a polling worker may claim it."""
VERSION: Final = 1
BUNDLE_VERSION: Final = 2
"""The version of a message that names several jobs. Workers that do not know it delete it as unreadable, and the jobs
are sent again, one by one."""
MAX_BUNDLE: Final = 50
"""The maximum number of jobs in one message: a batch of 500 jobs then fills one call with ten messages."""
MAX_MESSAGE_CHARS: Final = 4_000
"""The size limit of a message. Longer texts are unreadable; TaskHarbor's own messages are shorter."""

SEQ_RANGE: Final = range(1, 2**31)
"""The valid sequence numbers: the range of the stores' ``sends`` column."""

FIRST_UNHANDLED_PAUSE: Final = timedelta(seconds=1)
"""How long the message of a job without a handler here is hidden at first. Then other workers may receive it."""
MAX_UNKNOWN_RECEIVES: Final = 3
"""How often a message for an unknown job is left in the queue: the insert may not be committed yet."""


NOTE_INTERVAL: Final = timedelta(seconds=10)
"""How often a process that sends or receives messages records a `DeliveryNote`."""
MAX_PROBLEM_CHARS: Final = 1_000


class DeliveryRole(StrEnum):
    """What a process does with the messages of a queue: an enqueuer sends them, a worker receives them."""

    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryNote:
    """That a process sends or receives the messages of *queue*, and why it cannot, if so.

    Processes of the same role share one note: the last one to record it sets *problem*. The store sets ``seen_at``.
    """

    queue: str
    role: DeliveryRole
    problem: str = ""
    seen_at: datetime | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", make_storable(self.problem, limit=MAX_PROBLEM_CHARS))


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A due job that a message names. *seq* is the job's ``sends`` when the message was sent."""

    job_id: JobId
    seq: int


def encode_message(jobs: Sequence[NamedJob]) -> str:
    """Return the wire format of a message that names *jobs*, at most `MAX_BUNDLE`.

    >>> encode_message([NamedJob(JobId(UUID(int=7)), 1)])
    '{"v":1,"id":"00000000-0000-0000-0000-000000000007","seq":1}'
    >>> len(encode_message([NamedJob(JobId(UUID(int=7)), 1), NamedJob(JobId(UUID(int=8)), 1)]))
    102
    """
    if len(jobs) == 1:
        return f'{{"v":{VERSION},"id":"{jobs[0].job_id}","seq":{jobs[0].seq}}}'
    pairs = ",".join([f'["{each.job_id}",{each.seq}]' for each in jobs])
    return f'{{"v":{BUNDLE_VERSION},"jobs":[{pairs}]}}'


def parse_message(text: str) -> tuple[NamedJob, ...] | None:
    """Return the jobs that a message names, in its order, or None if it is unreadable.

    >>> parse_message("hello") is None
    True
    """
    if len(text) > MAX_MESSAGE_CHARS:
        return None
    try:
        match json.loads(text):
            case {"v": int(v), "id": job_id, "seq": seq} if v == VERSION and not isinstance(v, bool):
                return (_named_job(job_id, seq),)
            case {"v": int(v), "jobs": [_, _, *_] as pairs} if v == BUNDLE_VERSION and len(pairs) <= MAX_BUNDLE:
                jobs = tuple([_named_job(job_id, seq) for job_id, seq in pairs])
                is_unique = len({job.job_id.int for job in jobs}) == len(jobs)
                return jobs if is_unique else None
    except (ValueError, TypeError, RecursionError):
        return None
    return None


def _named_job(job_id: object, seq: object) -> NamedJob:
    """Return the job, or raise `ValueError`."""
    match job_id, seq:
        case str(), int() if seq in SEQ_RANGE and not isinstance(seq, bool):  # True == 1 in Python
            return NamedJob(JobId(UUID(job_id)), seq)
    raise ValueError


class MessageFinding(StrEnum):
    """The result of processing a message, other than a refusal."""

    UNREADABLE = "unreadable"
    SETTLED = "settled"
    """Claimed, and the settlement is committed."""
    UNSETTLED = "unsettled"
    """Claimed, but the settlement is not known to be committed."""
    NO_SLOT = "no slot"
    """Not claimed, because no slot was free soon after the message arrived."""
    CLAIM_UNKNOWN = "claim unknown"
    """The claim's reply was lost, and reading back failed."""
    STORE_AWAY = "store away"


class MessageAction(StrEnum):
    """What to do with a message, because of one job that it names. It is deleted if no job of it says otherwise."""

    DELETE = "delete"
    DECLINE = "decline"
    """Record in the store that the job must be sent again, then delete the message."""
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class MessageDecision:
    """What to do with a message. *hidden_for* is the new visibility of one that is left (None: unchanged)."""

    action: MessageAction
    hidden_for: timedelta | None = None


def decide_message(
    found: MessageFinding | Refused,
    *,
    seq: int,
    receives: int,
    visibility: timedelta,
    now: datetime,
) -> MessageDecision:
    """Return what to do with a message, given the result of processing one job that it names.

    A message is deleted only if the outcome is committed, if the store will resend the job, or if the
    job belongs to another queue, which has its own messages. *receives* is how often this message
    was delivered so far: one of a job without a handler here is hidden for twice as long each time.
    """
    if found is MessageFinding.NO_SLOT:
        return MessageDecision(MessageAction.DECLINE)
    if isinstance(found, MessageFinding):
        return MessageDecision(
            MessageAction.DELETE
            if found in {MessageFinding.UNREADABLE, MessageFinding.SETTLED}
            else MessageAction.LEAVE
        )
    if found.reason is RefusalReason.OTHER_QUEUE:  # a decline would affect that queue
        return MessageDecision(MessageAction.DELETE)
    if found.reason is RefusalReason.NOT_FOUND:
        return MessageDecision(MessageAction.DELETE if receives > MAX_UNKNOWN_RECEIVES else MessageAction.LEAVE)
    hidden_for = _remaining(found.until, visibility, now)
    if found.reason is RefusalReason.UNHANDLED:  # another worker may have the handler
        hidden_for = min(resend_interval(receives, first=FIRST_UNHANDLED_PAUSE, cap=visibility), hidden_for)
    soon = found.until is None or found.until - now <= visibility
    waits_here = found.reason in {RefusalReason.LEASED, RefusalReason.UNHANDLED} or (
        found.reason is RefusalReason.NOT_DUE and soon
    )
    if seq >= found.sends and waits_here:
        return MessageDecision(MessageAction.LEAVE, hidden_for)
    return MessageDecision(MessageAction.DECLINE)


@lru_cache(maxsize=128)
def resend_interval(resends: int, *, first: timedelta, cap: timedelta) -> timedelta:
    """Return the time from the *resends*-th send of an unclaimed job to the next.

    >>> [resend_interval(n, first=timedelta(minutes=1), cap=timedelta(minutes=10)).seconds for n in (1, 2, 3, 99)]
    [60, 120, 240, 600]
    """
    # Whole microseconds as int cannot overflow; a hundred doublings reach any timedelta.
    doublings = min(max(resends, 1) - 1, 100)
    return timedelta.resolution * min(first // timedelta.resolution << doublings, cap // timedelta.resolution)


def _remaining(until: datetime | None, visibility: timedelta, now: datetime) -> timedelta:
    if until is None:
        return visibility
    return min(max(until - now, timedelta(seconds=1)), visibility)
