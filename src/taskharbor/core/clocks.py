"""Between the clocks on the walls of a time zone and the one line of moments that they show.

When clocks go forward, some wall times never come (a gap); when they go back, some come twice (a fold).
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
    """Tells the time: an aware UTC datetime."""

    def now(self) -> datetime: ...


def wall_time(zone: tzinfo, moment: datetime) -> datetime:
    """Return what clocks show at *moment*, without a zone."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def offset_at(zone: tzinfo, moment: datetime) -> timedelta:
    """Return how far clocks are ahead of UTC at *moment*."""
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def unambiguous_instant(zone: tzinfo, wall: datetime) -> datetime:
    """Return the one moment that stands for *wall*: of two the first, and of none the first after the gap.

    Later wall times never have earlier moments.

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
    # Inside a gap the two folds are read with the offsets of both its sides, so the change lies between them.
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return next_offset_change(zone, before, first) or first


def next_offset_change(zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first moment, later than *after* and no later than *until*, from which clocks run otherwise.

    None where there is none. Two changes that undo each other within a day would not be seen: no zone has them.
    """
    low = after.replace(microsecond=0)
    while low < until:
        high = min(low + DAY, until)
        if offset_at(zone, high) != offset_at(zone, low):
            return _first_otherwise(zone, low, high)
        low = high
    return None


def _first_otherwise(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    """Halve the time between *low* and *high*, whose offsets differ, until the change is found to the second."""
    before = offset_at(zone, low)
    seconds = range(-((low - high) // SECOND) + 1)
    first = bisect_left(seconds, True, key=lambda second: offset_at(zone, low + second * SECOND) != before)  # noqa: FBT003  what is looked for
    return low + first * SECOND
