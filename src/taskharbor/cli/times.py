"""Times as people say them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

# fmt: off
_UNITS: Final = (
    (timedelta(days=1),    "d"),
    (timedelta(hours=1),   "h"),
    (timedelta(minutes=1), "m"),
    (timedelta(seconds=1), "s"),
)
# fmt: on
_EXACT: Final = timedelta(seconds=10)


def span(length: timedelta) -> str:
    """Return a length of time in one or two units.

    >>> [span(timedelta(seconds=n)) for n in (0.25, 5.5, 42, 90, 7200, 100_000)]
    ['250ms', '5.5s', '42s', '1m30s', '2h', '1d3h']
    """
    length = abs(length)
    if length < timedelta(seconds=1):
        return f"{length // timedelta(milliseconds=1)}ms"
    if length < _EXACT:
        return f"{length.total_seconds():.1f}".removesuffix(".0") + "s"
    largest = next(place for place, (unit, _) in enumerate(_UNITS) if length >= unit)
    text = ""
    for unit, letter in _UNITS[largest : largest + 2]:
        count, length = divmod(length, unit)
        text += f"{count}{letter}" if count else ""
    return text


def relative(moment: datetime, now: datetime) -> str:
    """Return how long ago *moment* was, or how far off it is.

    >>> from datetime import UTC, datetime
    >>> noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    >>> relative(noon - timedelta(minutes=3), noon), relative(noon + timedelta(hours=2), noon)
    ('3m ago', 'in 2h')
    """
    return f"{span(now - moment)} ago" if moment <= now else f"in {span(moment - now)}"
