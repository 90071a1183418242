"""Durations: as the public API takes them, a `timedelta` or a number of seconds, and as people write them: 7d."""

from __future__ import annotations

import re
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

Duration = timedelta | float
"""A time span: a `timedelta`, or a number of seconds."""
ZERO: Final = timedelta(0)
NOT_A_DURATION: Final = "must be a timedelta or a number of seconds, such as 30 or 0.5"

DURATION_PATTERN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_UNITS: Final[Mapping[str, timedelta]] = MappingProxyType(
    {
        "ms": timedelta(milliseconds=1),
        "s": timedelta(seconds=1),
        "m": timedelta(minutes=1),
        "h": timedelta(hours=1),
        "d": timedelta(days=1),
    }
)


def parse_duration(text: str) -> timedelta:
    """Parse a duration with its unit. Raise `ValueError` with the rule if it is none.

    >>> parse_duration("7d")
    datetime.timedelta(days=7)
    """
    parts = DURATION_PATTERN.fullmatch(text.strip())
    if parts is None:
        rule = "write a duration with its unit, such as 500ms, 25s or 7d"
        raise ValueError(rule)
    return float(parts[1]) * _UNITS[parts[2]]


def as_timedelta(value: Duration, name: str, *, least: timedelta = ZERO) -> timedelta:
    """Return *value* as a timedelta. Raise `UsageError` with the option's *name* if it is none, or below *least*.

    >>> as_timedelta(1.5, "timeout")
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    duration = to_timedelta(value)
    if duration is None:
        raise UsageError(Problem(field=name, value=repr(value), rule=NOT_A_DURATION))
    if duration < least:
        shown = f"{duration.total_seconds():g} seconds"
        raise UsageError(Problem(field=name, value=shown, rule="must not be negative"))
    return duration


def to_timedelta(value: object) -> timedelta | None:
    """Return *value* as a timedelta, or None if it is no duration: text, a bool, NaN, infinite or out of range."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        return None
