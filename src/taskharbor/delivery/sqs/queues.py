"""Provision queues: create missing ones, update those that differ."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import InvalidRequest, Problem
from taskharbor.delivery.sqs.error_codes import EXISTS, MISSING
from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE, QueueSpec, TransportRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

PREFIX: Final = "taskharbor-"
MAX_NAME: Final = 80
"""What SQS allows."""

_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{0,40}")
_OURS: Final = {name: name.removeprefix(".") for name in (DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE)}
MAX_RETENTION: Final = timedelta(days=14)
MAX_RECEIVES: Final = 100
"""A message may be left many times for good reasons; after so many nobody can do anything with it."""

_LONGEST_POLL: Final = "20"


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


@dataclass(frozen=True, slots=True)
class QueueProvisioner:
    """Makes and mends queues. *call* reaches SQS, *name* tells what a queue of ours is called there."""

    call: Callable[..., Mapping[str, Any]]
    name: Callable[[str], str]

    def ensure_queues(self, shapes: Sequence[QueueSpec]) -> dict[str, str]:
        """Bring every queue into its shape, and return their URLs."""
        return {shape.name: self._ensure_one(shape) for shape in _in_order(shapes)}

    def _ensure_one(self, shape: QueueSpec) -> str:
        wanted = self._wanted(shape)
        try:
            url = self._url(shape.name)
        except TransportRefused as error:
            if error.code not in MISSING:
                raise
            try:
                return self._created(shape.name, wanted)
            except TransportRefused as raced:
                if raced.code not in EXISTS:  # else somebody was faster, and made it differently
                    raise
            url = self._url(shape.name)
        self._update(shape.name, url, wanted)
        return url

    def _wanted(self, shape: QueueSpec) -> dict[str, str]:
        return {
            "VisibilityTimeout": _seconds(shape.visibility),
            "MessageRetentionPeriod": _seconds(shape.retention),
            "ReceiveMessageWaitTimeSeconds": _LONGEST_POLL,
            "SqsManagedSseEnabled": "true",
            "RedrivePolicy": self._redrive(shape),
        }

    def _redrive(self, shape: QueueSpec) -> str:
        if shape.dead_letters is None:
            return ""
        url = self._url(shape.dead_letters)
        arn = self._attributes(shape.dead_letters, url, "QueueArn")["QueueArn"]
        return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": shape.max_receives or MAX_RECEIVES})

    def _created(self, queue: str, wanted: Mapping[str, str]) -> str:
        name = self.name(queue)
        given = {attribute: value for attribute, value in wanted.items() if value}
        return str(self.call("CreateQueue", name, QueueName=name, Attributes=given)["QueueUrl"])

    def _update(self, queue: str, url: str, wanted: Mapping[str, str]) -> None:
        found = self._attributes(queue, url, "All")
        differing = {name: value for name, value in wanted.items() if not _is_same(name, found.get(name, ""), value)}
        if found.get("KmsMasterKeyId"):
            differing.pop("SqsManagedSseEnabled", None)  # encrypted already, with a key of the user's own
        if differing:
            self.call("SetQueueAttributes", self.name(queue), QueueUrl=url, Attributes=differing)

    def _url(self, queue: str) -> str:
        name = self.name(queue)
        return str(self.call("GetQueueUrl", name, QueueName=name)["QueueUrl"])

    def _attributes(self, queue: str, url: str, *names: str) -> Mapping[str, str]:
        answer = self.call("GetQueueAttributes", self.name(queue), QueueUrl=url, AttributeNames=names)
        found: Mapping[str, str] = answer.get("Attributes", {})
        return found


def _in_order(shapes: Iterable[QueueSpec]) -> Iterator[QueueSpec]:
    """Yield queues for dead letters first, also those which nobody described: the others refer to them."""
    given = {shape.name: shape for shape in shapes}
    for shape in given.values():
        if shape.dead_letters is not None and shape.dead_letters not in given:
            yield QueueSpec(name=shape.dead_letters, visibility=shape.visibility, retention=MAX_RETENTION)
    yield from sorted(given.values(), key=lambda shape: shape.dead_letters is not None)


def _is_same(attribute: str, found: str, wanted: str) -> bool:
    if attribute != "RedrivePolicy" or not (found and wanted):
        return found.lower() == wanted.lower()
    one, other = json.loads(found), json.loads(wanted)
    return {name: str(value) for name, value in one.items()} == {name: str(value) for name, value in other.items()}


def _seconds(duration: timedelta) -> str:
    return str(-(-duration // timedelta(seconds=1)))
