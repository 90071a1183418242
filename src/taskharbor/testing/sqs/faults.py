"""How the endpoint shall fail. Rates are from 0 (never) to 1 (always)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class StaleReceipts(StrEnum):
    """How a receipt is answered whose message is gone, visible again, or in other hands. Endpoints differ in it."""

    KEPT = "kept"
    """A delete is answered as done, and the message stays, as with AWS; to hide it is refused: it is not in flight."""
    DELETED = "deleted"
    """It is as good as new, as with moto."""
    UNMOVED = "unmoved"
    """A delete is done; to hide it is called an invalid parameter, by a fault of the service, as with LocalStack."""
    INVALID = "invalid"
    """It is called invalid, as with ministack."""
    EXPIRED = "expired"
    """It is called an invalid parameter: the receipt has expired, as AWS says at times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFaults:
    """What goes wrong, and how often. Without arguments: nothing.

    >>> EndpointFaults.from_json('{"delay": 1, "delay_for": 2.5, "stale": "invalid"}').delay_for.total_seconds()
    2.5
    """

    lose: float = 0.0
    """A message is answered as sent, and never arrives."""
    duplicate: float = 0.0
    """A message arrives twice."""
    reorder: float = 0.0
    """A message is put somewhere among those that wait."""
    delay: float = 0.0
    """A message arrives only after *delay_for*."""
    delay_for: timedelta = timedelta(seconds=60)
    cut_before: float = 0.0
    """The connection is cut, and nothing was done."""
    cut: float = 0.0
    """What was asked is done, and the connection cut before the answer."""
    stall: float = 0.0
    """What was asked is done, and answered only after *stall_for*."""
    stall_for: timedelta = timedelta(seconds=60)
    reject: float = 0.0
    """One entry of a batch fails, by the service's own fault."""
    omit: float = 0.0
    """One entry of a batch is done, and the answer does not mention it."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """A call is refused, by the code of the error: `{"ThrottlingException": 0.1}`."""
    stale: StaleReceipts = StaleReceipts.KEPT
    operations: frozenset[str] = frozenset()
    """Calls that fail; empty: all of them."""

    @classmethod
    def from_json(cls, text: str) -> EndpointFaults:
        """Return what *text* asks for. Durations are in seconds."""
        asked = json.loads(text)
        unknown = sorted(asked.keys() - {each.name for each in fields(cls)})
        if unknown:
            raise NoSuchFault(unknown)
        return cls(**{name: _read(name, value) for name, value in asked.items()})


class NoSuchFault(ValueError):
    """Somebody asks for a fault that does not exist."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)

    def __str__(self) -> str:
        known = ", ".join(each.name for each in fields(EndpointFaults))
        return f"no such fault: {', '.join(self.args[0])}; there are {known}"


def _read(name: str, value: Any) -> Any:
    match name:
        case "delay_for" | "stall_for":
            return timedelta(seconds=value)
        case "operations":
            return frozenset(value)
        case "stale":
            return StaleReceipts(value)
        case _:
            return value
