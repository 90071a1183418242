"""The faults that the endpoint can inject. Rates are from 0 (never) to 1 (always)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class StaleReceipts(StrEnum):
    """How to answer a receipt handle whose message is deleted, visible again, or received again; endpoints differ."""

    KEPT = "kept"
    """A delete succeeds but keeps the message; a visibility change fails with MessageNotInflight. As on AWS."""
    DELETED = "deleted"
    """The receipt handle is still valid. As on moto."""
    UNMOVED = "unmoved"
    """A delete succeeds; a visibility change fails with InvalidParameterValueException. As on LocalStack."""
    INVALID = "invalid"
    """Both calls fail with ReceiptHandleIsInvalid. As on ministack."""
    EXPIRED = "expired"
    """Both calls fail with InvalidParameterValue: the receipt handle has expired. As sometimes on AWS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFaults:
    """The faults to inject and their rates. By default there are none.

    >>> EndpointFaults.from_json('{"delay": 1, "delay_for": 2.5, "stale": "invalid"}').delay_for.total_seconds()
    2.5
    """

    lose: float = 0.0
    """A message is reported as sent but never arrives."""
    duplicate: float = 0.0
    """A message arrives twice."""
    reorder: float = 0.0
    """A message moves to a random position among the visible ones."""
    delay: float = 0.0
    """A message becomes visible only after *delay_for*."""
    delay_for: timedelta = timedelta(seconds=60)
    cut_before: float = 0.0
    """The connection is closed before the call is executed."""
    cut: float = 0.0
    """The call is executed, and the connection is closed before the response."""
    stall: float = 0.0
    """The call is executed, and the response is sent only after *stall_for*."""
    stall_for: timedelta = timedelta(seconds=60)
    reject: float = 0.0
    """One entry of a batch fails with InternalError."""
    omit: float = 0.0
    """One entry of a batch is executed but missing in the response."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """A call fails with this error; rates by error code: `{"ThrottlingException": 0.1}`."""
    stale: StaleReceipts = StaleReceipts.KEPT
    operations: frozenset[str] = frozenset()
    """The operations that can fail; empty: all of them."""

    @classmethod
    def from_json(cls, text: str) -> EndpointFaults:
        """Parse a JSON object of faults. Durations are in seconds."""
        values = json.loads(text)
        unknown = sorted(values.keys() - {each.name for each in fields(cls)})
        if unknown:
            raise NoSuchFault(unknown)
        return cls(**{name: _parse(name, value) for name, value in values.items()})


class NoSuchFault(ValueError):
    """Raised for the name of a fault that does not exist."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)

    def __str__(self) -> str:
        known = ", ".join(each.name for each in fields(EndpointFaults))
        return f"no such fault: {', '.join(self.args[0])}; known faults: {known}"


def _parse(name: str, value: Any) -> Any:
    match name:
        case "delay_for" | "stall_for":
            return timedelta(seconds=value)
        case "operations":
            return frozenset(value)
        case "stale":
            return StaleReceipts(value)
        case _:
            return value
