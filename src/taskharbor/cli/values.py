"""Values that options take, and that click has no type for."""

from __future__ import annotations

import re
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST: Final = timedelta(days=366)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_LIMIT: Final = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_UNITS: Final[Mapping[str, timedelta]] = MappingProxyType(
    {
        "ms": timedelta(milliseconds=1),
        "s": timedelta(seconds=1),
        "m": timedelta(minutes=1),
        "h": timedelta(hours=1),
        "d": timedelta(days=1),
    }
)


class Unreadable(click.BadParameter):
    """What was typed cannot be read as what it should be."""

    def __init__(self, text: str, rule: str) -> None:
        super().__init__(f"{text!r}: {rule}")


def duration(text: str) -> timedelta:
    """Read a time with its unit, such as 25s, up to a year."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None:
        raise Unreadable(text, "write a duration with its unit, such as 500ms, 25s or 2m")
    value = float(parts[1]) * _UNITS[parts[2]]
    if value > LONGEST:
        raise Unreadable(text, f"at most {LONGEST.days}d")
    return value


def duration_from(shortest: str) -> Callable[[str], timedelta]:
    """Return what reads a duration of at least *shortest*."""

    def read(text: str) -> timedelta:
        value = duration(text)
        if value < duration(shortest):
            raise Unreadable(text, f"at least {shortest}")
        return value

    return read


def queues(text: str) -> dict[str, int | None]:
    """Read queues such as mail:10,default: each with how many of its jobs run at once, or None."""
    limits: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, limit = part.strip().partition(":")
        if not name or (colon and _LIMIT.fullmatch(limit) is None):
            raise Unreadable(part, "write a queue's name, or its name and a limit, such as mail:10")
        if name in limits:
            raise Unreadable(name, "a queue is named once")
        limits[name] = int(limit) if colon else None
    return limits
