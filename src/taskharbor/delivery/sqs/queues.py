"""SQS queue names, and provisioning: create missing queues, update those that differ."""

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
MAX_NAME_CHARS: Final = 80
"""The limit of SQS."""

_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{0,40}")
_RESERVED: Final = {name: name.removeprefix(".") for name in (DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE)}
MAX_RETENTION: Final = timedelta(days=14)
MAX_RECEIVES: Final = 100
"""A message may be received many times for valid reasons. After this many, no worker can process it."""

_RECEIVE_WAIT: Final = "20"  # seconds


def sqs_name(queue: str, *, prefix: str = PREFIX) -> str:
    """Return the SQS name of *queue*.

    Most names are kept. SQS does not allow dots, and two names are reserved for TaskHarbor's own
    queues. Such a name is escaped and prefixed with a hyphen, with which no queue name begins. If the
    result is too long, it becomes a digest prefixed with two hyphens.

    >>> [sqs_name(name) for name in ("mail", "billing.eu", "dead-events", DEAD_EVENTS_QUEUE)]
    ['taskharbor-mail', 'taskharbor--billing-dot-eu', 'taskharbor--dead--events', 'taskharbor-dead-events']
    """
    if queue in _RESERVED:
        return f"{prefix}{_RESERVED[queue]}"
    is_kept = "." not in queue and queue not in _RESERVED.values()
    name = f"{prefix}{queue}" if is_kept else f"{prefix}-{_escaped(queue)}"
    return name if len(name) <= MAX_NAME_CHARS else f"{prefix}--{sha256(queue.encode()).hexdigest()[:32]}"


def checked_prefix(prefix: str) -> str:
    """Return *prefix*, or raise `InvalidRequest` if SQS does not allow it."""
    if not _PREFIX_PATTERN.fullmatch(prefix):
        rule = f"must match {_PREFIX_PATTERN.pattern}; SQS allows no other characters in a queue name"
        raise InvalidRequest([Problem(field="prefix", value=repr(prefix[:60]), rule=rule)])
    return prefix


def _escaped(queue: str) -> str:
    """Replace dots by words. Hyphens are doubled, so that different names stay different."""
    return queue.replace("-", "--").replace(".", "-dot-")


@dataclass(frozen=True, slots=True)
class QueueProvisioner:
    """Creates and updates queues. *call* calls SQS; *name* maps a queue to its SQS name."""

    call: Callable[..., Mapping[str, Any]]
    name: Callable[[str], str]

    def ensure_queues(self, specs: Sequence[QueueSpec]) -> dict[str, str]:
        """Create or update every queue, and return their URLs."""
        return {spec.name: self._ensure_one(spec) for spec in _in_order(specs)}

    def _ensure_one(self, spec: QueueSpec) -> str:
        wanted = self._wanted(spec)
        try:
            url = self._url(spec.name)
        except TransportRefused as error:
            if error.code not in MISSING:
                raise
            try:
                return self._create(spec.name, wanted)
            except TransportRefused as raced:
                if raced.code not in EXISTS:  # otherwise another process created it with other attributes
                    raise
            url = self._url(spec.name)
        self._update(spec.name, url, wanted)
        return url

    def _wanted(self, spec: QueueSpec) -> dict[str, str]:
        return {
            "VisibilityTimeout": _seconds(spec.visibility),
            "MessageRetentionPeriod": _seconds(spec.retention),
            "ReceiveMessageWaitTimeSeconds": _RECEIVE_WAIT,
            "SqsManagedSseEnabled": "true",
            "RedrivePolicy": self._redrive(spec),
        }

    def _redrive(self, spec: QueueSpec) -> str:
        if spec.dead_letters is None:
            return ""
        url = self._url(spec.dead_letters)
        arn = self._attributes(spec.dead_letters, url, "QueueArn")["QueueArn"]
        return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": spec.max_receives or MAX_RECEIVES})

    def _create(self, queue: str, wanted: Mapping[str, str]) -> str:
        name = self.name(queue)
        given = {attribute: value for attribute, value in wanted.items() if value}
        return str(self.call("CreateQueue", name, QueueName=name, Attributes=given)["QueueUrl"])

    def differing(self, spec: QueueSpec) -> dict[str, tuple[str, str]]:
        """Return the attributes of an existing queue that differ from *spec*, each as found and as wanted."""
        return self._differing(spec.name, self._url(spec.name), self._wanted(spec))

    def _update(self, queue: str, url: str, wanted: Mapping[str, str]) -> None:
        differing = self._differing(queue, url, wanted)
        if differing:
            attributes = {name: value for name, (_, value) in differing.items()}
            self.call("SetQueueAttributes", self.name(queue), QueueUrl=url, Attributes=attributes)

    def _differing(self, queue: str, url: str, wanted: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        found = self._attributes(queue, url, "All")
        pairs = {name: (found.get(name, ""), value) for name, value in wanted.items()}
        if found.get("KmsMasterKeyId"):
            del pairs["SqsManagedSseEnabled"]  # already encrypted with the user's own key
        return {name: pair for name, pair in pairs.items() if not _is_same(name, *pair)}

    def _url(self, queue: str) -> str:
        name = self.name(queue)
        return str(self.call("GetQueueUrl", name, QueueName=name)["QueueUrl"])

    def _attributes(self, queue: str, url: str, *names: str) -> Mapping[str, str]:
        answer = self.call("GetQueueAttributes", self.name(queue), QueueUrl=url, AttributeNames=names)
        found: Mapping[str, str] = answer.get("Attributes", {})
        return found


def _in_order(specs: Iterable[QueueSpec]) -> Iterator[QueueSpec]:
    """Yield dead-letter queues first, including those not in *specs*, because the others refer to them."""
    given = {spec.name: spec for spec in specs}
    for spec in given.values():
        if spec.dead_letters is not None and spec.dead_letters not in given:
            yield QueueSpec(name=spec.dead_letters, visibility=spec.visibility, retention=MAX_RETENTION)
    yield from sorted(given.values(), key=lambda spec: spec.dead_letters is not None)


def _is_same(attribute: str, found: str, wanted: str) -> bool:
    if attribute != "RedrivePolicy" or not (found and wanted):
        return found.lower() == wanted.lower()
    one, other = json.loads(found), json.loads(wanted)
    return {name: str(value) for name, value in one.items()} == {name: str(value) for name, value in other.items()}


def _seconds(duration: timedelta) -> str:
    return str(-(-duration // timedelta(seconds=1)))
