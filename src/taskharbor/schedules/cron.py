"""Fire times of cron expressions in time zones, and validation of both.

`cronsim` parses expressions and finds their wall times. This module maps wall times to instants, as Debian's
cron does. `cronsim` does not handle all zones: it misses a wall time that repeats after half an hour (Lord Howe),
and in the second hour of a fold it returns a time in the first.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.clocks import SECOND, next_offset_change, offset_at, unambiguous_instant, wall_time
from taskharbor.core.errors import InvalidRequest, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import tzinfo

MAX_FIRES: Final = 10_000
MAX_CRON_CHARS: Final = 200


def zone_named(timezone: str) -> tzinfo | None:
    """Return the time zone with this name, or None."""
    if timezone == "UTC":
        return UTC  # works without a time zone database
    from zoneinfo import ZoneInfo  # noqa: PLC0415  importing it takes as long as all of taskharbor

    with suppress(KeyError, ValueError, OSError):  # unknown; invalid; a directory
        return ZoneInfo(timezone)
    return None


def zone_problem(timezone: object) -> Problem | None:
    """Return why a time zone is invalid, with the closest known name; None if it is valid."""
    if not isinstance(timezone, str):
        return _invalid_zone(timezone, "must be a str, such as 'Europe/Paris'")
    if zone_named(timezone) is not None:
        return None
    from zoneinfo import available_timezones  # noqa: PLC0415  as above

    known = available_timezones()
    if not known:
        return _invalid_zone(timezone, "only UTC is available on this machine: install tzdata")
    near = _near(timezone, known)
    rule = f"did you mean {' or '.join(map(repr, near))}?" if near else "write one such as 'Europe/Paris' or 'UTC'"
    return _invalid_zone(timezone, f"there is no such time zone; {rule}")


def _near(timezone: str, known: set[str]) -> list[str]:
    wanted = timezone.strip().replace(" ", "_").lower()
    by_city = [zone for zone in known if zone.lower() == wanted or zone.lower().endswith(f"/{wanted}")]
    lower = {zone.lower(): zone for zone in sorted(known)}
    return sorted(by_city)[:2] or [lower[near] for near in get_close_matches(wanted, lower, n=1)]


def _invalid_zone(timezone: object, rule: str) -> Problem:
    return Problem(field="timezone", value=repr(timezone), rule=rule)


def wall_times(cron: str, after: datetime) -> Iterator[datetime]:
    """Yield the wall times of *cron* later than *after*, all without a zone.

    Yields nothing if the expression is invalid, and stops if there is none within fifty years.
    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415  only schedules need it

    try:
        return CronSim(cron, after)
    except CronSimError:
        return iter(())


def next_fires(cron: str, tz: str, *, after: datetime, count: int) -> list[datetime]:
    """Return the next *count* fire times later than *after*, in UTC; fewer if there are not that many.

    >>> [fire.isoformat() for fire in next_fires(
    ...     "30 2 * * *", "Europe/Paris", after=datetime(2030, 3, 30, 12, tzinfo=UTC), count=2)]
    ['2030-03-31T01:00:00+00:00', '2030-04-01T00:30:00+00:00']
    """
    return list(islice(Cron(cron, tz).after(after), min(count, MAX_FIRES)))


class Cron:
    """A cron expression in a time zone. Raises `InvalidRequest` if it is invalid or never fires.

    If minute and hour are both fixed (neither begins with ``*``), each wall time fires once: in a gap at the
    first instant after it, in a fold the first time. Any other expression fires at every occurrence of its wall
    times: not in a gap, and twice in a fold.
    """

    def __init__(self, cron: str, timezone: str) -> None:
        problem = cron_problem(cron) or zone_problem(timezone)
        if problem is not None:
            raise InvalidRequest([problem])
        self._cron = cron
        self._zone = zone_named(timezone) or UTC  # never None: zone_problem checked it
        minute, hour, *_ = cron.split()
        self._is_fixed = not minute.startswith("*") and not hour.startswith("*")

    def after(self, start: datetime) -> Iterator[datetime]:
        """Yield the fire times later than *start*, in UTC, without end."""
        last = start.astimezone(UTC)
        return self._once_per_wall_time(last) if self._is_fixed else self._every_occurrence(last)

    def _once_per_wall_time(self, last: datetime) -> Iterator[datetime]:
        for wall in wall_times(self._cron, wall_time(self._zone, last)):
            instant = unambiguous_instant(self._zone, wall)
            if instant > last:  # one per gap, and none of the first pass of a fold if it has passed
                yield instant
                last = instant

    def _every_occurrence(self, last: datetime) -> Iterator[datetime]:
        since: datetime | None = last
        while since is not None:  # once per period of constant UTC offset
            offset, change = offset_at(self._zone, since), None
            for wall in wall_times(self._cron, last.replace(tzinfo=None) + offset):
                instant = wall.replace(tzinfo=UTC) - offset
                change = next_offset_change(self._zone, since, instant)
                if change is not None:
                    last = change - SECOND  # the instant of the change may fire too
                    break
                yield instant
                since = instant
            since = change


def cron_problem(cron: object) -> Problem | None:
    """Return what is wrong with an expression: an invalid field, or that it never fires; None if it is valid."""
    if not isinstance(cron, str):
        return _invalid_cron(cron, "must be a str")
    if cron.strip() in _NICKNAMES:
        return _invalid_cron(cron, f"write {_NICKNAMES[cron.strip()]!r}")
    fields = cron.split()
    if len(cron) > MAX_CRON_CHARS:
        return _invalid_cron(f"{cron[:20]}...", f"must have at most {MAX_CRON_CHARS} characters")
    if len(fields) != len(_ALLOWED):
        return _invalid_cron(cron, f"must have five fields ({', '.join(_ALLOWED)}), not {len(fields)}")
    return None if _ever_fires(fields) else _invalid_cron(cron, _error_in(fields))


def _ever_fires(fields: list[str]) -> bool:
    return next(wall_times(" ".join(fields), _SAMPLE_START), None) is not None


def _error_in(fields: list[str]) -> str:
    for place, name in enumerate(_ALLOWED):
        alone = ["*"] * len(_ALLOWED)
        alone[place] = fields[place]
        if not _ever_fires(alone):
            return f"its {name} {fields[place]!r} is wrong: {_help(fields[place], name)}"
    return "no such day ever comes, so it would never fire"


def _help(field: str, name: str) -> str:
    first, dash, last = field.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and int(first) > int(last):
        return f"a range must ascend; write two, such as {first}-{_LAST[name]},{_FIRST[name]}-{last}"
    return _ALLOWED[name]


def _invalid_cron(cron: object, rule: str) -> Problem:
    return Problem(field="cron", value=repr(cron), rule=rule)


_SAMPLE_START: Final = datetime(2024, 1, 1)  # noqa: DTZ001  a wall time: whether an expression ever fires does not depend on the zone
_FORMS: Final = "a list (1,5), a range (1-5), a step (*/15)"
_ALLOWED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "minute": f"0 to 59, {_FORMS}",
        "hour": f"0 to 23, {_FORMS}",
        "day-of-month": f"1 to 31, L (the last), LW (the last from Monday to Friday), {_FORMS}",
        "month": f"1 to 12, JAN to DEC, {_FORMS}",
        "day-of-week": f"0 (Sunday) to 7 (again), SUN to SAT, 5L (the last Friday), 1#2 (the second Monday), {_FORMS}",
    }
)
_FIRST: Final = MappingProxyType({"minute": 0, "hour": 0, "day-of-month": 1, "month": 1, "day-of-week": 0})
_LAST: Final = MappingProxyType({"minute": 59, "hour": 23, "day-of-month": 31, "month": 12, "day-of-week": 6})
_NICKNAMES: Final = MappingProxyType(
    {
        "@hourly": "0 * * * *",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@weekly": "0 0 * * 0",
        "@monthly": "0 0 1 * *",
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
    }
)
