"""The clock protocol, and conversion between instants and the wall times of a time zone.

When clocks are set forward, some wall times do not occur (a gap); when they are set back, some occur twice (a fold).
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

DAY: Final = timedelta(days=1)
SECOND: Final = timedelta(seconds=1)


class Clock(Protocol):
    """A source of the current time, as an aware UTC datetime."""

    def now(self) -> datetime: ...


def wall_time(zone: tzinfo, instant: datetime) -> datetime:
    """Return the wall time at *instant*, without a zone."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def offset_at(zone: tzinfo, instant: datetime) -> timedelta:
    """Return the UTC offset at *instant*."""
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def unambiguous_instant(zone: tzinfo, wall: datetime) -> datetime:
    """Return one instant for *wall*: in a fold the first of the two, in a gap the first instant after it.

    A later wall time never has an earlier instant.

    >>> from zoneinfo import ZoneInfo
    >>> paris = ZoneInfo("Europe/Paris")
    >>> unambiguous_instant(paris, datetime(2030, 3, 31, 2, 30)).astimezone(paris).isoformat()
    '2030-03-31T03:00:00+02:00'
    >>> unambiguous_instant(paris, datetime(2030, 10, 27, 2, 30)).astimezone(paris).isoformat()
    '2030-10-27T02:30:00+02:00'
    """
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if wall_time(zone, first) == wall:
        return first
    # In a gap, fold=0 and fold=1 use the offsets before and after it, so the change lies between the two instants.
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return next_offset_change(zone, before, first) or first


def next_offset_change(zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first instant in (*after*, *until*] with another UTC offset, or None.

    Two changes within a day that cancel each other are not detected; no zone has them.
    """
    low = after.replace(microsecond=0)
    while low < until:
        high = min(low + DAY, until)
        if offset_at(zone, high) != offset_at(zone, low):
            return _find_change(zone, low, high)
        low = high
    return None


def _find_change(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    """Find the offset change between *low* and *high* by bisection, to the second."""
    before = offset_at(zone, low)
    seconds = range(-((low - high) // SECOND) + 1)
    first = bisect_left(seconds, True, key=lambda second: offset_at(zone, low + second * SECOND) != before)  # noqa: FBT003  the value to find
    return low + first * SECOND
