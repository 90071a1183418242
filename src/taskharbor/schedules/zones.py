"""Time zones by name."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC
from difflib import get_close_matches
from typing import TYPE_CHECKING

from taskharbor.core.errors import Problem

if TYPE_CHECKING:
    from datetime import tzinfo


def zone_named(timezone: str) -> tzinfo | None:
    """Return the time zone of this name; None where there is none."""
    if timezone == "UTC":
        return UTC  # needs no files
    from zoneinfo import ZoneInfo  # noqa: PLC0415  looks up how Python was built, which takes as long as all of us

    with suppress(KeyError, ValueError, OSError):  # unknown; no name at all; the name of a folder
        return ZoneInfo(timezone)
    return None


def zone_problem(timezone: object) -> Problem | None:
    """Say that a time zone is unknown, and which one was perhaps meant."""
    if not isinstance(timezone, str):
        return _invalid_zone(timezone, "must be a str, such as 'Europe/Paris'")
    if zone_named(timezone) is not None:
        return None
    from zoneinfo import available_timezones  # noqa: PLC0415  as above

    known = available_timezones()
    if not known:
        return _invalid_zone(timezone, "this machine knows no time zones but UTC: install tzdata")
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
