"""What is wrong with a cron expression, and the way out."""

from __future__ import annotations

from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import Problem
from taskharbor.schedules.walls import wall_times

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_CRON: Final = 200


def cron_problem(cron: object) -> Problem | None:
    """Say what is wrong with an expression: which field, and what may stand there; or that it never fires."""
    if not isinstance(cron, str):
        return _invalid_cron(cron, "must be a str")
    if cron.strip() in _NICKNAMES:
        return _invalid_cron(cron, f"write {_NICKNAMES[cron.strip()]!r}")
    fields = cron.split()
    if len(cron) > MAX_CRON:
        return _invalid_cron(f"{cron[:20]}...", f"must have at most {MAX_CRON} characters")
    if len(fields) != len(_ALLOWED):
        return _invalid_cron(cron, f"must have five fields ({', '.join(_ALLOWED)}), and has {len(fields)}")
    return None if _fires(fields) else _invalid_cron(cron, _why_not(fields))


def _fires(fields: list[str]) -> bool:
    return next(wall_times(" ".join(fields), _SOME_DAY), None) is not None


def _why_not(fields: list[str]) -> str:
    for place, name in enumerate(_ALLOWED):
        alone = ["*"] * len(_ALLOWED)
        alone[place] = fields[place]
        if not _fires(alone):
            return f"its {name} {fields[place]!r} is wrong: {_help(fields[place], name)}"
    return "no such day ever comes, so it would never fire"


def _help(field: str, name: str) -> str:
    first, dash, last = field.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and int(first) > int(last):
        return f"a range runs upwards; write two, such as {first}-{_LAST[name]},{_FIRST[name]}-{last}"
    return _ALLOWED[name]


def _invalid_cron(cron: object, rule: str) -> Problem:
    return Problem(field="cron", value=repr(cron), rule=rule)


_SOME_DAY: Final = datetime(2024, 1, 1)  # noqa: DTZ001  a wall time: whether an expression ever fires is the same in all zones
_NAMES: Final = "a list (1,5), a range (1-5), a step (*/15)"
_ALLOWED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "minute": f"0 to 59, {_NAMES}",
        "hour": f"0 to 23, {_NAMES}",
        "day-of-month": f"1 to 31, L (the last), LW (the last from Monday to Friday), {_NAMES}",
        "month": f"1 to 12, JAN to DEC, {_NAMES}",
        "day-of-week": f"0 (Sunday) to 7 (again), SUN to SAT, 5L (the last Friday), 1#2 (the second Monday), {_NAMES}",
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
