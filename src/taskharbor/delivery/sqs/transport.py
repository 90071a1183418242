"""The transport over Amazon SQS, or over anything that speaks as it does."""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.delivery.sqs import batches
from taskharbor.delivery.sqs.error_codes import MISSING, is_stale
from taskharbor.delivery.sqs.queues import PREFIX, QueueProvisioner, checked_prefix, sqs_name
from taskharbor.delivery.transport import (
    BATCH_LIMIT,
    IncomingMessage,
    ItemFailure,
    QueueDepth,
    TransportRefused,
    TransportUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskharbor.delivery.sqs.client import SqsClients
    from taskharbor.delivery.transport import OutgoingMessage, QueueSpec

MAX_RECEIVE_WAIT: Final = timedelta(seconds=20)
MAX_VISIBILITY: Final = timedelta(hours=12)
_CLOSED: Final = "this transport was closed"
_NO_BOTO: Final = "boto3 is not installed"
_INSTALL: Final = "run: pip install 'taskharbor[sqs]'"
_SMALL: Final = 1_500  # bytes, more than a receipt and its entry take


class SqsTransport:
    """Carries messages through SQS.

    Credentials, region and endpoint are found as boto3 finds them, unless given. *pollers* is how many
    threads will wait in `receive` at once, *answer_within* how long any answer may take, beyond the wait that
    was asked for. A process that was forked off makes connections of its own.
    """

    def __init__(
        self,
        *,
        prefix: str = PREFIX,
        endpoint_url: str | None = None,
        region: str | None = None,
        pollers: int = 8,
        answer_within: timedelta = timedelta(seconds=5),
    ) -> None:
        self._prefix = checked_prefix(prefix)
        self._endpoint_url, self._region, self._pollers = endpoint_url, region, pollers
        self._answer_within = answer_within
        self._urls: dict[str, str] = {}
        self._processes: dict[int, _Process] = {}
        self._is_closed = False

    @property
    def calls(self) -> Counter[str]:
        """How often this process called each operation of SQS: what is paid for."""
        clients = self._process().clients
        return Counter() if clients is None else clients.calls

    def name(self, queue: str) -> str:
        """Return what *queue* is called in SQS."""
        return sqs_name(queue, prefix=self._prefix)

    def ensure_queues(self, shapes: Sequence[QueueSpec]) -> None:
        self._urls.update(QueueProvisioner(self._clients().call, self.name).ensure_queues(shapes))

    def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[ItemFailure | None]:
        refused = [batches.rejection_of(message) for message in messages]
        good = [message for message, failed in zip(messages, refused, strict=True) if failed is None]
        entries, sizes = [batches.entry(message) for message in good], [batches.size(message) for message in good]
        answers = iter(self._each("SendMessageBatch", queue, entries, sizes))
        return [next(answers) if failed is None else failed for failed in refused]

    def receive(self, queue: str, *, most: int, wait: timedelta, visibility: timedelta) -> list[IncomingMessage]:
        if most < 1:
            return []
        answer = self._call(
            "ReceiveMessage",
            queue,
            MaxNumberOfMessages=min(most, BATCH_LIMIT),
            WaitTimeSeconds=_seconds(min(wait, MAX_RECEIVE_WAIT)),
            VisibilityTimeout=_seconds(min(visibility, MAX_VISIBILITY)),
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
            MessageAttributeNames=["All"],
        )
        return [_delivery(message) for message in answer.get("Messages", ())]

    def delete(self, queue: str, receipts: Sequence[str]) -> list[ItemFailure | None]:
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return self._each_held("DeleteMessageBatch", queue, entries)

    def change_visibility(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> list[ItemFailure | None]:
        entries = [
            {"ReceiptHandle": receipt, "VisibilityTimeout": _seconds(min(duration, MAX_VISIBILITY))}
            for receipt, duration in changes
        ]
        return self._each_held("ChangeMessageVisibilityBatch", queue, entries)

    def depth(self, queue: str) -> QueueDepth:
        names = {
            "ready": "ApproximateNumberOfMessages",
            "in_flight": "ApproximateNumberOfMessagesNotVisible",
            "delayed": "ApproximateNumberOfMessagesDelayed",
        }
        found = self._call("GetQueueAttributes", queue, AttributeNames=list(names.values())).get("Attributes", {})
        return QueueDepth(**{part: int(found.get(name, 0)) for part, name in names.items()})

    def close(self) -> None:
        self._is_closed = True
        clients = self._process().clients
        if clients is not None:
            clients.close()

    def _each_held(self, operation: str, queue: str, entries: Sequence[batches.Entry]) -> list[ItemFailure | None]:
        """Do something to messages by their receipts. A stale one is nobody's loss, however the service words it."""
        answers = self._each(operation, queue, entries, [_SMALL] * len(entries))
        return [None if answer is not None and is_stale(answer.code, answer.reason) else answer for answer in answers]

    def _each(
        self, operation: str, queue: str, entries: Sequence[batches.Entry], sizes: Sequence[int]
    ) -> list[ItemFailure | None]:
        return batches.call_in_batches(entries, sizes, lambda some: self._call(operation, queue, Entries=some))

    def _call(self, operation: str, queue: str, **parameters: object) -> Mapping[str, Any]:
        clients, name = self._clients(), self.name(queue)
        url = self._urls.get(queue)
        if url is not None:
            try:
                return clients.call(operation, name, QueueUrl=url, **parameters)
            except TransportRefused as error:
                if error.code not in MISSING:
                    raise
                self._urls.pop(queue, None)  # it was deleted; if it was made again, then perhaps elsewhere
        url = self._urls[queue] = clients.call("GetQueueUrl", name, QueueName=name)["QueueUrl"]
        return clients.call(operation, name, QueueUrl=url, **parameters)

    def _clients(self) -> SqsClients:
        if self._is_closed:
            raise TransportUnavailable(_CLOSED, is_unknown=False)
        process = self._process()
        with process.opening:
            if process.clients is None:
                process.clients = self._opened()
            return process.clients

    def _process(self) -> _Process:
        # setdefault is one step to other threads; and the lock of a new process was never held by anybody.
        return self._processes.setdefault(os.getpid(), _Process())

    def _opened(self) -> SqsClients:
        try:
            from taskharbor.delivery.sqs.client import SqsClients  # noqa: PLC0415  an extra, and slow to load
        except ModuleNotFoundError as error:
            raise TransportRefused(_NO_BOTO, _INSTALL) from error
        return SqsClients(
            endpoint_url=self._endpoint_url,
            region=self._region,
            pollers=self._pollers,
            answer_within=self._answer_within.total_seconds(),
        )


class _Process:
    """What one process has open."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.clients: SqsClients | None = None


def _delivery(message: Mapping[str, Any]) -> IncomingMessage:
    attributes = message.get("MessageAttributes", {})
    return IncomingMessage(
        body=message["Body"],
        receipt_handle=message["ReceiptHandle"],
        message_id=message["MessageId"],
        receive_count=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        attributes={name: value["StringValue"] for name, value in attributes.items() if "StringValue" in value},
    )


def _seconds(duration: timedelta) -> int:
    return -(-max(duration, timedelta(0)) // timedelta(seconds=1))
