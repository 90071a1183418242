"""The transport over Amazon SQS or a compatible service."""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.durations import Duration, as_timedelta
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
from taskharbor.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskharbor.delivery.sqs.client import SqsClients
    from taskharbor.delivery.transport import OutgoingMessage, QueueSpec

MAX_RECEIVE_WAIT: Final = timedelta(seconds=20)
MAX_VISIBILITY: Final = timedelta(hours=12)
_CLOSED: Final = "this transport is closed"
_NO_BOTO: Final = "boto3 is not installed"
_RECEIPT_ENTRY_BYTES: Final = 1_500  # an upper bound for an entry with a receipt handle


class SqsTransport:
    """A `Transport` over SQS.

    Credentials, region and endpoint come from boto3's configuration, unless given. *pollers* is the number of
    threads that wait in `receive` at once. *answer_within* is the timeout of a reply, in addition to the wait of
    a receive. A forked process opens its own connections.
    """

    def __init__(
        self,
        *,
        prefix: str = PREFIX,
        endpoint_url: str | None = None,
        region: str | None = None,
        pollers: int = 8,
        answer_within: Duration = timedelta(seconds=5),
    ) -> None:
        self._prefix = checked_prefix(prefix)
        self._endpoint_url, self._region, self._pollers = endpoint_url, region, pollers
        self._answer_within = as_timedelta(answer_within, "answer_within")
        self._urls: dict[str, str] = {}
        self._processes: dict[int, _Process] = {}
        self._is_closed = False

    @property
    def calls(self) -> Counter[str]:
        """How often this process called each SQS operation. AWS bills by call."""
        clients = self._process().clients
        return Counter() if clients is None else clients.calls

    def open(self) -> None:
        """Prepare the connections, which the first call would do. No request is sent.

        Raises `TransportRefused` if boto3 is missing, or if the configuration is wrong, such as one without a region.
        """
        self._clients()

    def name(self, queue: str) -> str:
        """Return the SQS name of *queue*."""
        return sqs_name(queue, prefix=self._prefix)

    def ensure_queues(self, specs: Sequence[QueueSpec]) -> None:
        self._urls.update(QueueProvisioner(self._clients().call, self.name).ensure_queues(specs))

    def differing_attributes(self, spec: QueueSpec) -> dict[str, tuple[str, str]]:
        """Return the attributes of an existing queue that differ from *spec*, each as found and as wanted."""
        return QueueProvisioner(self._clients().call, self.name).differing(spec)

    def send(self, queue: str, messages: Sequence[OutgoingMessage]) -> list[ItemFailure | None]:
        refused = [batches.rejection_of(message) for message in messages]
        sendable = [message for message, failed in zip(messages, refused, strict=True) if failed is None]
        entries, sizes = (
            [batches.entry(message) for message in sendable],
            [batches.size(message) for message in sendable],
        )
        answers = iter(self._call_in_batches("SendMessageBatch", queue, entries, sizes))
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
        return [_incoming(message) for message in answer.get("Messages", ())]

    def delete(self, queue: str, receipts: Sequence[str]) -> list[ItemFailure | None]:
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return self._call_by_receipt("DeleteMessageBatch", queue, entries)

    def change_visibility(self, queue: str, changes: Sequence[tuple[str, timedelta]]) -> list[ItemFailure | None]:
        entries = [
            {"ReceiptHandle": receipt, "VisibilityTimeout": _seconds(min(duration, MAX_VISIBILITY))}
            for receipt, duration in changes
        ]
        return self._call_by_receipt("ChangeMessageVisibilityBatch", queue, entries)

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

    def _call_by_receipt(
        self, operation: str, queue: str, entries: Sequence[batches.Entry]
    ) -> list[ItemFailure | None]:
        """Call an operation on messages by receipt handle. A stale receipt counts as a success."""
        answers = self._call_in_batches(operation, queue, entries, [_RECEIPT_ENTRY_BYTES] * len(entries))
        return [None if answer is not None and is_stale(answer.code, answer.reason) else answer for answer in answers]

    def _call_in_batches(
        self, operation: str, queue: str, entries: Sequence[batches.Entry], sizes: Sequence[int]
    ) -> list[ItemFailure | None]:
        return batches.call_in_batches(entries, sizes, lambda batch: self._call(operation, queue, Entries=batch))

    def _call(self, operation: str, queue: str, **parameters: object) -> Mapping[str, Any]:
        clients, name = self._clients(), self.name(queue)
        url = self._urls.get(queue)
        if url is not None:
            try:
                return clients.call(operation, name, QueueUrl=url, **parameters)
            except TransportRefused as error:
                if error.code not in MISSING:
                    raise
                self._urls.pop(queue, None)  # deleted; if it was created again, its URL may differ
        url = self._urls[queue] = clients.call("GetQueueUrl", name, QueueName=name)["QueueUrl"]
        return clients.call(operation, name, QueueUrl=url, **parameters)

    def _clients(self) -> SqsClients:
        if self._is_closed:
            raise TransportUnavailable(_CLOSED, is_unknown=False)
        process = self._process()
        with process.opening:
            if process.clients is None:
                process.clients = self._open_clients()
            return process.clients

    def _process(self) -> _Process:
        # setdefault is atomic. A forked process gets a new lock, which no thread of its parent can hold.
        return self._processes.setdefault(os.getpid(), _Process())

    def _open_clients(self) -> SqsClients:
        try:
            from taskharbor.delivery.sqs.client import SqsClients  # noqa: PLC0415  optional dependency, and slow to import
        except ModuleNotFoundError as error:
            raise TransportRefused(_NO_BOTO, f"run: {install_command('sqs')}") from error
        return SqsClients(
            endpoint_url=self._endpoint_url,
            region=self._region,
            pollers=self._pollers,
            answer_within=self._answer_within.total_seconds(),
        )


class _Process:
    """The clients of one process."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self.clients: SqsClients | None = None


def _incoming(message: Mapping[str, Any]) -> IncomingMessage:
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
