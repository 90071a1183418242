"""A second opinion on when cron expressions fire: a walk through the minutes, as cron itself would do it.

Nothing here is shared with what it judges: rules are written by hand, and nothing is skipped.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from taskharbor.schedules import Cron

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Rule:
    is_fixed: bool
    matches: Callable[[datetime], bool]


RULES: Final = {
    "30 2 * * *": Rule(is_fixed=True, matches=lambda w: w.hour == 2 and w.minute == 30),
    "0 0 * * *": Rule(is_fixed=True, matches=lambda w: w.hour == 0 and w.minute == 0),
    "15,45 1-3 * * *": Rule(is_fixed=True, matches=lambda w: 1 <= w.hour <= 3 and w.minute in {15, 45}),
    "0 3 * * 0": Rule(is_fixed=True, matches=lambda w: w.hour == 3 and w.minute == 0 and w.weekday() == 6),
    "30 0 28-31 3,10 *": Rule(
        is_fixed=True, matches=lambda w: w.hour == 0 and w.minute == 30 and w.day >= 28 and w.month in {3, 10}
    ),
    "*/5 * * * *": Rule(is_fixed=False, matches=lambda w: w.minute % 5 == 0),
    "0 * * * *": Rule(is_fixed=False, matches=lambda w: w.minute == 0),
    "*/30 2 * * *": Rule(is_fixed=False, matches=lambda w: w.hour == 2 and w.minute % 30 == 0),
    "40 */2 * * *": Rule(is_fixed=False, matches=lambda w: w.hour % 2 == 0 and w.minute == 40),
    "* 1 * * 6,0": Rule(is_fixed=False, matches=lambda w: w.hour == 1 and w.weekday() in {5, 6}),
}


def walk(zone: ZoneInfo, start: datetime, end: datetime) -> dict[str, list[datetime]]:
    """Go from minute to minute and look at the clock on the wall.

    A fixed time fires when the clock first shows it, or jumps over it; it never fires for what the clock showed
    before. Everything else fires when the clock shows it.
    """
    fires: dict[str, list[datetime]] = {cron: [] for cron in RULES}
    before = highest = _wall(zone, start - MINUTE)
    moment = start
    while moment < end:
        wall = _wall(zone, moment)
        first_shown = [*_jumped_over(before, wall), wall] if wall > highest else []
        for cron, rule in RULES.items():
            if any(map(rule.matches, first_shown)) if rule.is_fixed else rule.matches(wall):
                fires[cron].append(moment)
        before, highest = wall, max(wall, highest)
        moment += MINUTE
    return fires


def changes(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Give the hours within which clocks are changed."""
    before, moment = start.astimezone(zone).utcoffset(), start
    while moment < end:
        moment += HOUR
        now = moment.astimezone(zone).utcoffset()
        if now != before:
            yield moment - HOUR
        before = now


def disagreements(name: str, change: datetime, *, every: timedelta) -> list[str]:
    """Compare what we say about the day before a change and two days after it; and about what comes next, at times."""
    zone, start, end = ZoneInfo(name), change - DAY, change + 2 * DAY
    found = []
    for cron, expected in walk(zone, start, end).items():
        said = Cron(cron, name)
        if list(takewhile(lambda fire: fire < end, said.after(start - MINUTE))) != expected:
            found.append(f"{cron!r} in {name} around {change}")
        moment = start
        while moment < end and (place := bisect_right(expected, moment)) < len(expected):
            if next(said.after(moment)) != expected[place]:
                found.append(f"{cron!r} in {name} after {moment}")
            moment += every
    return found


def _wall(zone: ZoneInfo, moment: datetime) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _jumped_over(before: datetime, wall: datetime) -> list[datetime]:
    return [before + n * MINUTE for n in range(1, (wall - before) // MINUTE)]


def year(number: int) -> datetime:
    return datetime(number, 1, 1, tzinfo=UTC)
