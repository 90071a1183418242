"""The wire format of messages, and the rules that decide what a worker does with one.

A message is only a hint that a job is due; it carries no payload, and the store decides whether the
job can be claimed. So messages may be lost, duplicated, delayed or forged without harm.
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

if TYPE_CHECKING:
    from datetime import datetime

OVERDUE_AFTER: Final = timedelta(seconds=60)
"""How long a sent job waits for its message before a polling worker may claim it."""
VERSION: Final = 1
MAX_MESSAGE_CHARS: Final = 1_000
"""The size limit of a message. Longer texts are unreadable; TaskHarbor's own messages are shorter."""

SEQ_RANGE: Final = range(1, 2**31)
"""The valid sequence numbers: the range of the stores' ``sends`` column."""

MAX_UNKNOWN_RECEIVES: Final = 3
"""How often a message for an unknown job is left in the queue: the insert may not be committed yet."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that job *job_id* is due. *seq* is the job's ``sends`` when it was sent."""

    job_id: JobId
    seq: int


def encode_message(message: Message) -> str:
    """Return the wire format of the message.

    >>> encode_message(Message(JobId(UUID(int=7)), 1))
    '{"v":1,"id":"00000000-0000-0000-0000-000000000007","seq":1}'
    """
    return f'{{"v":{VERSION},"id":"{message.job_id}","seq":{message.seq}}}'


def parse_message(text: str) -> Message | None:
    """Return the message in *text*, or None if it is unreadable.

    >>> parse_message("hello") is None
    True
    """
    if len(text) > MAX_MESSAGE_CHARS:
        return None
    try:
        match json.loads(text):
            case {"v": int(v), "id": str(job_id), "seq": int(seq)} if v == VERSION and seq in SEQ_RANGE:
                is_number = not isinstance(v, bool) and not isinstance(seq, bool)  # True == 1 in Python
                return Message(JobId(UUID(job_id)), seq) if is_number else None
    except (ValueError, RecursionError):
        return None
    return None


class MessageFinding(StrEnum):
    """The result of processing a message, other than a refusal."""

    UNREADABLE = "unreadable"
    SETTLED = "settled"
    """Claimed, and the settlement is committed."""
    UNSETTLED = "unsettled"
    """Claimed, but the settlement is not known to be committed."""
    CLAIM_UNKNOWN = "claim unknown"
    """The claim's reply was lost, and reading back failed."""
    STORE_AWAY = "store away"


class MessageAction(StrEnum):
    """What to do with a message."""

    DELETE = "delete"
    DECLINE = "decline"
    """Record in the store that the message must be resent, then delete it."""
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
    """Return what to do with a message, given the result of processing it.

    A message is deleted only if its outcome is committed, if the store will resend it, or if it
    names a job of another queue, which has its own messages. *receives* is how often this message
    was delivered so far.
    """
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
