"""When schedules fire, in every time zone, whenever its clocks were changed in ten years; and days full of crashes.

A fire time that differs from that of a walk through the minutes raises, and so does one without a job, or
with two: there are no figures then. Zones whose clocks ran alike for ten years are walked through once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from tests.support.cron_oracle import MINUTE, RULES, changes, disagreements, year
from tests.support.scheduler_day import SchedulerDay

FIRST, LAST = 2017, 2026
EVERY = timedelta(minutes=97)  # how often it is asked what comes next
DAYS = 60


def figures(first: int = FIRST, last: int = LAST, days: int = DAYS) -> dict[str, object]:
    start = time.monotonic()
    alike = _zones_alike(year(first), year(last + 1))
    for moments, names in alike:
        for change in moments:
            if found := disagreements(names[0], change, every=EVERY):
                raise RuntimeError("; ".join(found))
    return {
        "years": f"{first} to {last}",
        "zones": sum(len(names) for _, names in alike),
        "zones that differ": len(alike),
        "changes of clocks": sum(len(moments) * len(names) for moments, names in alike),
        "changes walked through": sum(len(moments) for moments, _ in alike),
        "expressions": len(RULES),
        "disagreements": 0,
        "seconds": round(time.monotonic() - start),
        **_days(days),
    }


def _zones_alike(start: datetime, end: datetime) -> list[tuple[tuple[datetime, ...], list[str]]]:
    """Return when clocks were changed, and the zones where they ran alike for all of the time, minute by minute."""
    alike: dict[tuple[tuple[datetime, ...], tuple[object, ...]], list[str]] = defaultdict(list)
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        moments = tuple(changes(zone, start, end))
        minutes = [start, *(moment + n * MINUTE for moment in moments for n in range(61))]
        alike[moments, tuple(minute.astimezone(zone).utcoffset() for minute in minutes)].append(name)
    return [(moments, names) for (moments, _), names in alike.items()]


def _days(count: int) -> dict[str, object]:
    verdicts = [SchedulerDay(seed).live() for seed in range(1_000, 1_000 + count)]
    if bad := [each for each in verdicts if each.missing or each.doubled or each.unwanted]:
        raise RuntimeError(str(bad[0]))
    return {
        "simulated days": count,
        "restarts": sum(each.restarts for each in verdicts),
        "fire times": sum(each.made for each in verdicts),
        "missed": 0,
        "doubled": 0,
    }
