"""The operations of SQS on queues in memory, one method for each. Long polling is left to the endpoint."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from taskharbor.testing.sqs.faults import EndpointFaults, StaleReceipts
from taskharbor.testing.sqs.queues import MessageState, Queue
from taskharbor.testing.sqs.validation import (
    BATCH_SIZES,
    DEFAULTS,
    QUEUE_NAME,
    VISIBILITY_SECONDS,
    WAIT_SECONDS,
    Invalid,
    SqsError,
    check_attributes,
    check_entries,
    check_range,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from taskharbor.testing.sqs.queues import ReceivedCopy, StoredMessage

    Body = Mapping[str, Any]

REGION: Final = "us-east-1"
ACCOUNT: Final = "000000000000"
# The host does not exist: a client that connects to a queue's URL instead of the endpoint fails.
URLS: Final = "http://sqs.invalid"
ARNS: Final = f"arn:aws:sqs:{REGION}:{ACCOUNT}"


class Service:
    """The queues and the operations on them."""

    def __init__(self, random: Random, happened: Counter[str]) -> None:
        self.queues: dict[str, Queue] = {}
        self._faults = EndpointFaults()
        self._times_created: Counter[str] = Counter()
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
        """Execute a call and return its response, or raise an `SqsError`."""
        self._faults = faults
        if operation not in self._operations:
            raise SqsError("UnknownOperationException", f"unknown operation {operation}")
        return self._operations[operation](body, now)

    def queue(self, body: Body) -> Queue:
        """Return the queue with the URL given in a call."""
        url = str(body.get("QueueUrl", ""))
        queue = self._find_queue(url.rpartition("/")[2])
        if queue.url != url:
            raise SqsError("QueueDoesNotExist")
        return queue

    def _find_queue(self, name: str) -> Queue:
        if name not in self.queues:
            raise SqsError("QueueDoesNotExist")
        return self.queues[name]

    def wait_of(self, operation: str, body: Body) -> float:
        """Return how many seconds a call waits for a message if there is none."""
        if operation != "ReceiveMessage":
            return 0
        return float(body.get("WaitTimeSeconds", self.queue(body).attributes.get("ReceiveMessageWaitTimeSeconds", 0)))

    def forget(self) -> None:
        """Delete all messages and invalidate their receipt handles. The queues remain."""
        for queue in self.queues.values():
            queue.purge()
            queue.renew()

    def draw_fault(self, name: str, rate: float) -> bool:
        """Decide at random whether a fault happens now, and count it if so."""
        is_hit = rate > 0 and self._random.random() < rate
        self._happened[name] += is_hit
        return is_hit

    def _create_queue(self, body: Body, _: float) -> dict[str, Any]:
        name, attributes = str(body["QueueName"]), check_attributes(body.get("Attributes", {}))
        if not QUEUE_NAME.fullmatch(name):
            raise Invalid(name, "QueueName", "Can only include alphanumeric characters, hyphens, or underscores")
        queue = self.queues.get(name)
        if queue is None:
            # A queue that is deleted and created again has another URL, so a client that caches the old one fails.
            url = f"{URLS}/{self._times_created[name]:0{len(ACCOUNT)}}/{name}"
            self._times_created[name] += 1
            queue = self.queues[name] = Queue(name, url, dict(DEFAULTS))
            self._apply_attributes(queue, attributes)
        elif any(queue.attributes.get(attribute) != value for attribute, value in attributes.items()):
            raise SqsError("QueueNameExists", "A queue already exists with the same name and other attributes.")
        return {"QueueUrl": queue.url}

    def _delete_queue(self, body: Body, _: float) -> dict[str, Any]:
        del self.queues[self.queue(body).name]
        return {}

    def _get_queue_url(self, body: Body, _: float) -> dict[str, Any]:
        return {"QueueUrl": self._find_queue(body["QueueName"]).url}

    def _list_queues(self, body: Body, _: float) -> dict[str, Any]:
        prefix = body.get("QueueNamePrefix", "")
        return {"QueueUrls": [queue.url for name, queue in sorted(self.queues.items()) if name.startswith(prefix)]}

    def _get_attributes(self, body: Body, now: float) -> dict[str, Any]:
        queue = self.queue(body)
        ready, in_flight, delayed = queue.counts(now)
        attributes = {
            **queue.attributes,
            "QueueArn": f"{ARNS}:{queue.name}",
            "ApproximateNumberOfMessages": str(ready),
            "ApproximateNumberOfMessagesNotVisible": str(in_flight),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
        }
        names = body.get("AttributeNames", [])
        return {"Attributes": {name: value for name, value in attributes.items() if name in names or "All" in names}}

    def _set_attributes(self, body: Body, _: float) -> dict[str, Any]:
        self._apply_attributes(self.queue(body), check_attributes(body["Attributes"]))
        return {}

    def _apply_attributes(self, queue: Queue, attributes: Mapping[str, str]) -> None:
        if "RedrivePolicy" in attributes:
            queue.dead_letters = queue.max_receives = None
        if policy := json.loads(attributes.get("RedrivePolicy") or "{}"):
            target = policy["deadLetterTargetArn"].rpartition(":")[2]
            if target not in self.queues:
                raise SqsError("InvalidParameterValue", "The dead letter target of the redrive policy does not exist.")
            queue.dead_letters, queue.max_receives = self.queues[target], int(policy["maxReceiveCount"])
        merged = {**queue.attributes, **attributes}
        queue.attributes = {name: value for name, value in merged.items() if value}

    def _purge(self, body: Body, _: float) -> dict[str, Any]:
        self.queue(body).purge()
        return {}

    def _batch(self, do: Callable[[Body, float], dict[str, Any]], body: Body, now: float) -> dict[str, Any]:
        self.queue(body)
        successful, failed = [], []
        for entry in check_entries(body.get("Entries", [])):
            try:
                if self.draw_fault("reject", self._faults.reject):
                    raise SqsError("InternalError", "injected fault")  # noqa: TRY301  handled as any failed entry
                answer = do({**entry, "QueueUrl": body["QueueUrl"]}, now)
            except SqsError as error:
                is_server_fault = error.status >= 500  # noqa: PLR2004  an HTTP status
                detail = {"Code": error.code, "Message": error.message, "SenderFault": not is_server_fault}
                failed.append({"Id": entry["Id"], **detail})
            else:
                if not self.draw_fault("omit", self._faults.omit):
                    successful.append({"Id": entry["Id"], **answer})
        return {"Successful": successful, "Failed": failed}

    def _send(self, body: Body, now: float) -> dict[str, Any]:
        queue, text = self.queue(body), body["MessageBody"]
        message_id = str(UUID(int=self._random.getrandbits(128), version=4))
        delay = float(body.get("DelaySeconds", queue.attributes.get("DelaySeconds", 0)))
        faults = self._faults
        copies = (
            0 if self.draw_fault("lose", faults.lose) else 2 if self.draw_fault("duplicate", faults.duplicate) else 1
        )
        for _ in range(copies):
            visible_in = faults.delay_for.total_seconds() if self.draw_fault("delay", faults.delay) else delay
            sent = queue.put(message_id, text, body.get("MessageAttributes") or {}, now=now, delay=visible_in)
            if self.draw_fault("reorder", faults.reorder):
                queue.move(sent, self._random.random())
        return {"MessageId": message_id, "MD5OfMessageBody": _md5(text)}

    def _receive(self, body: Body, now: float) -> dict[str, Any]:
        queue = self.queue(body)
        check_range(body.get("WaitTimeSeconds", 0), "WaitTimeSeconds", WAIT_SECONDS)
        limit = check_range(body.get("MaxNumberOfMessages", 1), "MaxNumberOfMessages", BATCH_SIZES)
        visibility = int(body.get("VisibilityTimeout", queue.attributes["VisibilityTimeout"]))
        check_range(visibility, "VisibilityTimeout", VISIBILITY_SECONDS)
        received = queue.receive(limit, visibility=visibility, now=now)
        return {"Messages": [_to_json(each) for each in received]} if received else {}

    def _delete(self, body: Body, now: float) -> dict[str, Any]:
        queue = self.queue(body)
        state, message = queue.find(body["ReceiptHandle"], now)
        if state is MessageState.UNKNOWN:
            raise SqsError("ReceiptHandleIsInvalid")
        if state in {MessageState.SUPERSEDED, MessageState.GONE} and self._refuses_stale(on_delete=True):
            return {}
        if message is not None:
            queue.delete(message)
        return {}

    def _hide(self, body: Body, now: float) -> dict[str, Any]:
        queue = self.queue(body)
        duration = check_range(body["VisibilityTimeout"], "VisibilityTimeout", VISIBILITY_SECONDS)
        state, message = queue.find(body["ReceiptHandle"], now)
        if state is MessageState.UNKNOWN:
            raise SqsError("ReceiptHandleIsInvalid")
        if state is not MessageState.HELD:
            self._refuses_stale(on_delete=False)
        if message is None:
            raise SqsError("ReceiptHandleIsInvalid")
        _hide_within_bounds(queue, message, duration, now)
        return {}

    def _refuses_stale(self, *, on_delete: bool) -> bool:
        """Raise the configured error for a stale receipt handle, or return whether to ignore the call."""
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
            case configured:
                return configured is StaleReceipts.KEPT


def _hide_within_bounds(queue: Queue, message: StoredMessage, duration: int, now: float) -> None:
    if now + duration - message.first_received_at > VISIBILITY_SECONDS[-1]:
        reason = f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_SECONDS[-1]} seconds]"
        raise Invalid(duration, "VisibilityTimeout", reason)
    queue.hide(message, until=now + duration, now=now)


def _to_json(received: ReceivedCopy) -> dict[str, Any]:
    message = received.message
    return {
        "MessageId": message.message_id,
        "ReceiptHandle": received.receipt_handle,
        "Body": message.body,
        "MD5OfBody": _md5(message.body),
        "Attributes": {"ApproximateReceiveCount": str(received.receive_count)},
        **({"MessageAttributes": message.attributes} if message.attributes else {}),
    }


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
