"""The words that SQS has for what went wrong, as far as we act on them."""

from __future__ import annotations

from typing import Final

THROTTLED: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "KmsThrottled",
        "OverLimit",  # too many messages in flight
        "QueueDeletedRecently",  # it may be made again after a minute
        "RequestLimitExceeded",
        "RequestThrottled",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Nothing was done; it may be later."""

MISSING: Final = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
EXISTS: Final = frozenset({"QueueAlreadyExists", "QueueNameExists"})
_STALE: Final = frozenset({"MessageNotInflight", "ReceiptHandleIsInvalid"})
_SPOILT: Final = frozenset({"InvalidParameterValue", "InvalidParameterValueException"})
"""What AWS says of a receipt that has expired, and of much else."""


def short_code(code: str) -> str:
    """Return an error's code without the family name that AWS puts before some.

    >>> short_code("AWS.SimpleQueueService.NonExistentQueue")
    'NonExistentQueue'
    """
    return code.rpartition(".")[2]


def is_stale(code: str, reason: str) -> bool:
    """Tell whether a receipt was refused because its message is gone, or in other hands by now."""
    return code in _STALE or (code in _SPOILT and "receipt" in reason.lower())
