"""From a queue of ours to the name it has in SQS: no two queues share one."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from taskharbor.core.errors import InvalidRequest, Problem
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE

PREFIX: Final = "taskharbor-"
MAX_NAME: Final = 80
"""What SQS allows."""

_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{0,40}")
_OURS: Final = {name: name.removeprefix(".") for name in (DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE)}


def sqs_name(queue: str, *, prefix: str = PREFIX) -> str:
    """Return what *queue* is called in SQS.

    Nearly all names are kept as they are. SQS knows no point, and two names belong to queues of
    our own: such a name is spelt out behind a hyphen, with which no queue of a user begins. One
    that is then too long becomes a digest, behind two.

    >>> [sqs_name(name) for name in ("mail", "billing.eu", "dead-events", DEAD_EVENTS_QUEUE)]
    ['taskharbor-mail', 'taskharbor--billing-dot-eu', 'taskharbor--dead--events', 'taskharbor-dead-events']
    """
    if queue in _OURS:
        return f"{prefix}{_OURS[queue]}"
    is_plain = "." not in queue and queue not in _OURS.values()
    name = f"{prefix}{queue}" if is_plain else f"{prefix}-{_spelt_out(queue)}"
    return name if len(name) <= MAX_NAME else f"{prefix}--{sha256(queue.encode()).hexdigest()[:32]}"


def checked_prefix(prefix: str) -> str:
    """Return *prefix*, or raise `InvalidRequest` where SQS could not take it."""
    if not _PREFIX_PATTERN.fullmatch(prefix):
        rule = f"must match {_PREFIX_PATTERN.pattern}; SQS allows no more in the name of a queue"
        raise InvalidRequest([Problem(field="prefix", value=repr(prefix[:60]), rule=rule)])
    return prefix


def _spelt_out(queue: str) -> str:
    """Spell points out. Hyphens are doubled, so that what is read back is never in doubt."""
    return queue.replace("-", "--").replace(".", "-dot-")
