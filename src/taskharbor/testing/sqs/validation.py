"""The errors of SQS, and the checks it makes before it executes a call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Codes of the older query protocol, if they differ: AWS sends them in a header, and boto3 reports them.
_OLDER_NAMES: Final = {
    "BatchEntryIdsNotDistinct": "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
    "BatchRequestTooLong": "AWS.SimpleQueueService.BatchRequestTooLong",
    "EmptyBatchRequest": "AWS.SimpleQueueService.EmptyBatchRequest",
    "MessageNotInflight": "AWS.SimpleQueueService.MessageNotInflight",
    "PurgeQueueInProgress": "AWS.SimpleQueueService.PurgeQueueInProgress",
    "QueueDeletedRecently": "AWS.SimpleQueueService.QueueDeletedRecently",
    "QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
    "TooManyEntriesInBatchRequest": "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
}
_STATUSES: Final = {
    "AccessDenied": 403,
    "AccessDeniedException": 403,
    "ExpiredToken": 403,
    "InternalError": 500,
    "InternalFailure": 500,
    "InvalidClientTokenId": 403,
    "MissingAuthenticationToken": 403,
    "RequestThrottled": 403,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
}
_MESSAGES: Final = {
    "MessageNotInflight": "The specified message isn't in flight.",
    "QueueDoesNotExist": "The specified queue does not exist.",
    "ReceiptHandleIsInvalid": "The input receipt handle is invalid.",
    "RequestThrottled": "Request is throttled.",
    "ThrottlingException": "Rate exceeded",
}
BATCH_SIZES: Final = range(1, 11)
WAIT_SECONDS: Final = range(21)
VISIBILITY_SECONDS: Final = range(43_201)
_MAX_BATCH_BYTES: Final = 1_048_576
QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ILLEGAL: Final = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
DEFAULTS: Final = {
    "VisibilityTimeout": "30",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "SqsManagedSseEnabled": "true",
}
_BOUNDS: Final = {
    "VisibilityTimeout": VISIBILITY_SECONDS,
    "MessageRetentionPeriod": range(60, 1_209_601),
    "ReceiveMessageWaitTimeSeconds": WAIT_SECONDS,
    "DelaySeconds": range(901),
}
_SETTABLE: Final = {*DEFAULTS, "RedrivePolicy", "KmsMasterKeyId", "Policy"}


class SqsError(Exception):
    """An error response of SQS."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or _MESSAGES.get(code, code)
        self.status = _STATUSES.get(code, 400)

    @property
    def header(self) -> str:
        side = "Receiver" if self.status >= 500 else "Sender"  # noqa: PLR2004  an HTTP status
        return f"{_OLDER_NAMES.get(self.code, self.code)};{side}"


class Invalid(SqsError):
    """The error response for a parameter that is out of range."""

    def __init__(self, value: object, name: str, reason: str) -> None:
        super().__init__("InvalidParameterValue", f"Value {value} for parameter {name} is invalid. Reason: {reason}.")
        self.args = (value, name, reason)


def check_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    for name, value in attributes.items():
        if name not in _SETTABLE:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        if name in _BOUNDS and (not value.isdigit() or int(value) not in _BOUNDS[name]):
            raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
    return dict(attributes)


def check_entries(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *entries*, or reject them all if one is invalid, as SQS does."""
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > BATCH_SIZES[-1]:
        raise SqsError("TooManyEntriesInBatchRequest", f"Maximum number of entries per request are {BATCH_SIZES[-1]}.")
    if len({entry["Id"] for entry in entries}) < len(entries):
        raise SqsError("BatchEntryIdsNotDistinct", "Two or more batch entries have the same Id.")
    bodies = [entry["MessageBody"] for entry in entries if "MessageBody" in entry]
    if sum(len(body.encode("utf-8", "surrogatepass")) for body in bodies) > _MAX_BATCH_BYTES:
        raise SqsError("BatchRequestTooLong", f"Batch requests cannot be longer than {_MAX_BATCH_BYTES} bytes.")
    if any(not body or _ILLEGAL.search(body) for body in bodies):
        raise SqsError("InvalidMessageContents", "The message contains characters outside the allowed set.")
    return entries


def check_range(value: int, name: str, bounds: range) -> int:
    if value not in bounds:
        raise Invalid(value, name, f"Must be >= {bounds[0]} and <= {bounds[-1]}, if provided")
    return value
