"""An independent oracle for cron fire times that checks every minute, as cron itself does.

It shares no code with `taskharbor.schedules`: its rules are written out as functions, and it skips no minute.
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
    """Return the fire times of each rule, by checking the local time of every minute.

    A fixed time fires when the local clock first shows it or jumps over it, and never a second time.
    Everything else fires whenever the local clock shows it.
    """
    fires: dict[str, list[datetime]] = {cron: [] for cron in RULES}
    before = highest = _wall(zone, start - MINUTE)
    time = start
    while time < end:
        wall = _wall(zone, time)
        first_shown = [*_jumped_over(before, wall), wall] if wall > highest else []
        for cron, rule in RULES.items():
            if any(map(rule.matches, first_shown)) if rule.is_fixed else rule.matches(wall):
                fires[cron].append(time)
        before, highest = wall, max(wall, highest)
        time += MINUTE
    return fires


def changes(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the hours in which the clocks change."""
    before, time = start.astimezone(zone).utcoffset(), start
    while time < end:
        time += HOUR
        now = time.astimezone(zone).utcoffset()
        if now != before:
            yield time - HOUR
        before = now


def disagreements(name: str, change: datetime, *, every: timedelta) -> list[str]:
    """Compare `Cron` with the oracle from one day before a clock change to two days after it.

    Also compare the next fire time after each multiple of *every*.
    """
    zone, start, end = ZoneInfo(name), change - DAY, change + 2 * DAY
    found = []
    for cron, expected in walk(zone, start, end).items():
        schedule = Cron(cron, name)
        if list(takewhile(lambda fire: fire < end, schedule.after(start - MINUTE))) != expected:
            found.append(f"{cron!r} in {name} around {change}")
        time = start
        while time < end and (index := bisect_right(expected, time)) < len(expected):
            if next(schedule.after(time)) != expected[index]:
                found.append(f"{cron!r} in {name} after {time}")
            time += every
    return found


def _wall(zone: ZoneInfo, time: datetime) -> datetime:
    return time.astimezone(zone).replace(tzinfo=None)


def _jumped_over(before: datetime, wall: datetime) -> list[datetime]:
    return [before + n * MINUTE for n in range(1, (wall - before) // MINUTE)]


def year(number: int) -> datetime:
    return datetime(number, 1, 1, tzinfo=UTC)
