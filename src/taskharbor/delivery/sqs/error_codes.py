"""The SQS error codes that TaskHarbor handles."""

from __future__ import annotations

from typing import Final

THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "KmsThrottled",
        "OverLimit",  # too many messages in flight
        "QueueDeletedRecently",  # it can be created again after a minute
        "RequestLimitExceeded",
        "RequestThrottled",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""The call had no effect and can be retried."""

MISSING: Final = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
EXISTS: Final = frozenset({"QueueAlreadyExists", "QueueNameExists"})
_STALE_RECEIPT: Final = frozenset({"MessageNotInflight", "ReceiptHandleIsInvalid"})
_INVALID_VALUE: Final = frozenset({"InvalidParameterValue", "InvalidParameterValueException"})
"""Returned for an expired receipt handle, among other causes."""


def short_code(code: str) -> str:
    """Return an error code without its namespace.

    >>> short_code("AWS.SimpleQueueService.NonExistentQueue")
    'NonExistentQueue'
    """
    return code.rpartition(".")[2]


def is_stale(code: str, reason: str) -> bool:
    """Return whether a receipt handle was refused because its message was deleted or received again."""
    return code in _STALE_RECEIPT or (code in _INVALID_VALUE and "receipt" in reason.lower())
