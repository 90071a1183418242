"""What SQS does when it is called: one method for each operation. It decides and keeps; waiting is left to others."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from taskharbor.testing.sqs.faults import EndpointFaults, StaleReceipts
from taskharbor.testing.sqs.queues import MessageState, Queue
from taskharbor.testing.sqs.validation import (
    DEFAULTS,
    HIDDEN,
    MOST,
    NAME,
    WAITS,
    Invalid,
    SqsError,
    attributes_of,
    entries_of,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from taskharbor.testing.sqs.queues import ReceivedCopy, StoredMessage

    Body = Mapping[str, Any]

REGION: Final = "us-east-1"
ACCOUNT: Final = "000000000000"
# Nobody can connect to this host: a client that tries to is found out.
URLS: Final = "http://sqs.invalid"
ARNS: Final = f"arn:aws:sqs:{REGION}:{ACCOUNT}"


class Service:
    """The queues, and what can be asked of them."""

    def __init__(self, random: Random, happened: Counter[str]) -> None:
        self.queues: dict[str, Queue] = {}
        self._faults = EndpointFaults()
        self._makings: Counter[str] = Counter()
        self._random = random
        self._happened = happened
        self._operations: dict[str, Callable[[Body, float], dict[str, Any]]] = {
            "CreateQueue": self._create_queue,
            "DeleteQueue": self._delete_queue,
            "GetQueueUrl": self._get_queue_url,
            "ListQueues": self._list_queues,
            "GetQueueAttributes": self._get_attributes,
            "SetQueueAttributes": self._set_attributes,
            "PurgeQueue": self._purge,
            "SendMessage": self._send,
            "SendMessageBatch": lambda body, now: self._batch(self._send, body, now),
            "ReceiveMessage": self._receive,
            "DeleteMessage": self._delete,
            "DeleteMessageBatch": lambda body, now: self._batch(self._delete, body, now),
            "ChangeMessageVisibility": self._hide,
            "ChangeMessageVisibilityBatch": lambda body, now: self._batch(self._hide, body, now),
        }

    def do(self, operation: str, body: Body, *, now: float, faults: EndpointFaults) -> dict[str, Any]:
        """Return the answer, or raise an `SqsError`."""
        self._faults = faults
        if operation not in self._operations:
            raise SqsError("UnknownOperationException", f"there is no {operation}")
        return self._operations[operation](body, now)

    def queue(self, body: Body) -> Queue:
        """Return the queue that a call names by its URL."""
        url = str(body.get("QueueUrl", ""))
        queue = self._named(url.rpartition("/")[2])
        if queue.url != url:
            raise SqsError("QueueDoesNotExist")
        return queue

    def _named(self, name: str) -> Queue:
        if name not in self.queues:
            raise SqsError("QueueDoesNotExist")
        return self.queues[name]

    def wait_of(self, operation: str, body: Body) -> float:
        """Return how many seconds a call waits where it finds nothing."""
        if operation != "ReceiveMessage":
            return 0
        return float(body.get("WaitTimeSeconds", self.queue(body).attributes.get("ReceiveMessageWaitTimeSeconds", 0)))

    def forget(self) -> None:
        """Lose all messages. The queues stay, and no old receipt is worth anything."""
        for queue in self.queues.values():
            queue.purge()
            queue.renew()

    def strikes(self, name: str, rate: float) -> bool:
        """Tell whether a fault happens now, and count it if so."""
        is_hit = rate > 0 and self._random.random() < rate
        self._happened[name] += is_hit
        return is_hit

    def _create_queue(self, body: Body, _: float) -> dict[str, Any]:
        name, asked = str(body["QueueName"]), attributes_of(body.get("Attributes", {}))
        if not NAME.fullmatch(name):
            raise Invalid(name, "QueueName", "Can only include alphanumeric characters, hyphens, or underscores")
        queue = self.queues.get(name)
        if queue is None:
            # Made again, it has another URL: a client that keeps the old one is found out.
            url = f"{URLS}/{self._makings[name]:0{len(ACCOUNT)}}/{name}"
            self._makings[name] += 1
            queue = self.queues[name] = Queue(name, url, dict(DEFAULTS))
            self._shape(queue, asked)
        elif any(queue.attributes.get(attribute) != value for attribute, value in asked.items()):
            raise SqsError("QueueNameExists", "A queue already exists with the same name and other attributes.")
        return {"QueueUrl": queue.url}

    def _delete_queue(self, body: Body, _: float) -> dict[str, Any]:
        del self.queues[self.queue(body).name]
        return {}

    def _get_queue_url(self, body: Body, _: float) -> dict[str, Any]:
        return {"QueueUrl": self._named(body["QueueName"]).url}

    def _list_queues(self, body: Body, _: float) -> dict[str, Any]:
        prefix = body.get("QueueNamePrefix", "")
        return {"QueueUrls": [queue.url for name, queue in sorted(self.queues.items()) if name.startswith(prefix)]}

    def _get_attributes(self, body: Body, now: float) -> dict[str, Any]:
        queue = self.queue(body)
        ready, in_flight, delayed = queue.counts(now)
        found = {
            **queue.attributes,
            "QueueArn": f"{ARNS}:{queue.name}",
            "ApproximateNumberOfMessages": str(ready),
            "ApproximateNumberOfMessagesNotVisible": str(in_flight),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }
        asked = body.get("AttributeNames", [])
        return {"Attributes": {name: value for name, value in found.items() if name in asked or "All" in asked}}

    def _set_attributes(self, body: Body, _: float) -> dict[str, Any]:
        self._shape(self.queue(body), attributes_of(body["Attributes"]))
        return {}

    def _shape(self, queue: Queue, asked: Mapping[str, str]) -> None:
        if "RedrivePolicy" in asked:
            queue.dead_letters = queue.max_receives = None
        if policy := json.loads(asked.get("RedrivePolicy") or "{}"):
            target = policy["deadLetterTargetArn"].rpartition(":")[2]
            if target not in self.queues:
                raise SqsError("InvalidParameterValue", "The dead letter target of the redrive policy does not exist.")
            queue.dead_letters, queue.max_receives = self.queues[target], int(policy["maxReceiveCount"])
        merged = {**queue.attributes, **asked}
        queue.attributes = {name: value for name, value in merged.items() if value}

    def _purge(self, body: Body, _: float) -> dict[str, Any]:
        self.queue(body).purge()
        return {}

    def _batch(self, do: Callable[[Body, float], dict[str, Any]], body: Body, now: float) -> dict[str, Any]:
        self.queue(body)
        successful, failed = [], []
        for entry in entries_of(body.get("Entries", [])):
            try:
                if self.strikes("reject", self._faults.reject):
                    raise SqsError("InternalError", "rejected, as was asked for")  # noqa: TRY301  as any entry may
                answer = do({**entry, "QueueUrl": body["QueueUrl"]}, now)
            except SqsError as error:
                is_theirs = error.status >= 500  # noqa: PLR2004  as HTTP has it
                words = {"Code": error.code, "Message": error.message, "SenderFault": not is_theirs}
                failed.append({"Id": entry["Id"], **words})
            else:
                if not self.strikes("omit", self._faults.omit):
                    successful.append({"Id": entry["Id"], **answer})
        return {"Successful": successful, "Failed": failed}

    def _send(self, body: Body, now: float) -> dict[str, Any]:
        queue, text = self.queue(body), body["MessageBody"]
        message_id = str(UUID(int=self._random.getrandbits(128), version=4))
        delay = float(body.get("DelaySeconds", queue.attributes.get("DelaySeconds", 0)))
        faults = self._faults
        copies = 0 if self.strikes("lose", faults.lose) else 2 if self.strikes("duplicate", faults.duplicate) else 1
        for _ in range(copies):
            late = faults.delay_for.total_seconds() if self.strikes("delay", faults.delay) else delay
            sent = queue.put(message_id, text, body.get("MessageAttributes") or {}, now=now, delay=late)
            if self.strikes("reorder", faults.reorder):
                queue.move(sent, self._random.random())
        return {"MessageId": message_id, "MD5OfMessageBody": _md5(text)}

    def _receive(self, body: Body, now: float) -> dict[str, Any]:
        queue = self.queue(body)
        within(body.get("WaitTimeSeconds", 0), "WaitTimeSeconds", WAITS)
        most = within(body.get("MaxNumberOfMessages", 1), "MaxNumberOfMessages", MOST)
        visibility = int(body.get("VisibilityTimeout", queue.attributes["VisibilityTimeout"]))
        taken = queue.take(most, visibility=within(visibility, "VisibilityTimeout", HIDDEN), now=now)
        return {"Messages": [_shown(each) for each in taken]} if taken else {}

    def _delete(self, body: Body, now: float) -> dict[str, Any]:
        queue = self.queue(body)
        standing, message = queue.find(body["ReceiptHandle"], now)
        if standing is MessageState.UNKNOWN:
            raise SqsError("ReceiptHandleIsInvalid")
        if standing in {MessageState.SUPERSEDED, MessageState.GONE} and self._refuses_stale(on_delete=True):
            return {}
        if message is not None:
            queue.delete(message)
        return {}

    def _hide(self, body: Body, now: float) -> dict[str, Any]:
        queue, duration = self.queue(body), within(body["VisibilityTimeout"], "VisibilityTimeout", HIDDEN)
        standing, message = queue.find(body["ReceiptHandle"], now)
        if standing is MessageState.UNKNOWN:
            raise SqsError("ReceiptHandleIsInvalid")
        if standing is not MessageState.HELD:
            self._refuses_stale(on_delete=False)
        if message is None:
            raise SqsError("ReceiptHandleIsInvalid")
        _hide_within_bounds(queue, message, duration, now)
        return {}

    def _refuses_stale(self, *, on_delete: bool) -> bool:
        """Answer a stale receipt as was chosen: with an error, or by telling whether to do nothing."""
        self._happened["stale"] += 1
        match self._faults.stale:
            case StaleReceipts.INVALID:
                raise SqsError("ReceiptHandleIsInvalid")
            case StaleReceipts.EXPIRED:
                raise Invalid("…", "ReceiptHandle", "The receipt handle has expired")
            case StaleReceipts.KEPT if not on_delete:
                raise SqsError("MessageNotInflight")
            case StaleReceipts.UNMOVED if not on_delete:
                raise SqsError("InvalidParameterValueException", "Value … for parameter ReceiptHandle is invalid.")
            case chosen:
                return chosen is StaleReceipts.KEPT


def _hide_within_bounds(queue: Queue, message: StoredMessage, duration: int, now: float) -> None:
    if now + duration - message.first_received_at > HIDDEN[-1]:
        reason = f"Total VisibilityTimeout for the message is beyond the limit [{HIDDEN[-1]} seconds]"
        raise Invalid(duration, "VisibilityTimeout", reason)
    queue.hide(message, until=now + duration, now=now)


def _shown(taken: ReceivedCopy) -> dict[str, Any]:
    message = taken.message
    return {
        "MessageId": message.message_id,
        "ReceiptHandle": taken.receipt_handle,
        "Body": message.body,
        "MD5OfBody": _md5(message.body),
        "Attributes": {"ApproximateReceiveCount": str(taken.receive_count)},
        **({"MessageAttributes": message.attributes} if message.attributes else {}),
    }


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
