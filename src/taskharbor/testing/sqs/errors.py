"""How SQS words what went wrong."""

from __future__ import annotations

from typing import Final

# Where the name that the older protocol had differs, AWS sends it too, in a header; boto3 shows that one.
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
    "RequestThrottled": 403,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
}
_WORDS: Final = {
    "MessageNotInflight": "The specified message isn't in flight.",
    "QueueDoesNotExist": "The specified queue does not exist.",
    "ReceiptHandleIsInvalid": "The input receipt handle is invalid.",
    "RequestThrottled": "Request is throttled.",
    "ThrottlingException": "Rate exceeded",
}


class SqsError(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or _WORDS.get(code, code)
        self.status = _STATUSES.get(code, 400)

    @property
    def header(self) -> str:
        side = "Receiver" if self.status >= 500 else "Sender"  # noqa: PLR2004  as HTTP has it
        return f"{_OLDER_NAMES.get(self.code, self.code)};{side}"


class Invalid(SqsError):
    """A value is out of its bounds."""

    def __init__(self, value: object, name: str, reason: str) -> None:
        super().__init__("InvalidParameterValue", f"Value {value} for parameter {name} is invalid. Reason: {reason}.")
        self.args = (value, name, reason)
