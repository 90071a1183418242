"""Fire times around all clock changes of ten years in every time zone, and simulated days with crashes.

A fire time that differs from the oracle's raises, and so does one without a job or with two jobs, so there
are no figures. Zones with equal clocks for ten years are checked once.
"""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from tests.support.cron_oracle import MINUTE, RULES, changes, disagreements, year
from tests.support.scheduler_day import SchedulerDay

FIRST, LAST = 2017, 2026
EVERY = timedelta(minutes=97)  # between two checks of the next fire time
DAYS = 60


def figures(first: int = FIRST, last: int = LAST, days: int = DAYS) -> dict[str, object]:
    start = time.monotonic()
    alike = _zones_alike(year(first), year(last + 1))
    for times, names in alike:
        for change in times:
            if found := disagreements(names[0], change, every=EVERY):
                raise RuntimeError("; ".join(found))
    return {
        "years": f"{first} to {last}",
        "zones": sum(len(names) for _, names in alike),
        "zones that differ": len(alike),
        "changes of clocks": sum(len(times) * len(names) for times, names in alike),
        "changes walked through": sum(len(times) for times, _ in alike),
        "expressions": len(RULES),
        "disagreements": 0,
        "seconds": round(time.monotonic() - start),
        **_days(days),
    }


def _zones_alike(start: datetime, end: datetime) -> list[tuple[tuple[datetime, ...], list[str]]]:
    """Return the times of clock changes, and the zones whose clocks were equal in every minute."""
    alike: dict[tuple[tuple[datetime, ...], tuple[object, ...]], list[str]] = defaultdict(list)
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        times = tuple(changes(zone, start, end))
        minutes = [start, *(time_of_change + n * MINUTE for time_of_change in times for n in range(61))]
        alike[times, tuple(minute.astimezone(zone).utcoffset() for minute in minutes)].append(name)
    return [(times, names) for (times, _), names in alike.items()]


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
