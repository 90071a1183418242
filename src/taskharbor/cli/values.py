"""Values that options take, and that click has no type for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST: Final = timedelta(days=366)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_EXAMPLE: Final = "2026-11-15T02:00Z"
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


class InvalidValue(click.BadParameter):
    """What was typed cannot be read as what it should be."""

    def __init__(self, text: str, rule: str) -> None:
        super().__init__(f"{text!r}: {rule}")


class ConflictingOptions(click.UsageError):
    """Two ways to say one thing were used at once."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"give {one} or {other}, not both")


def duration(text: str) -> timedelta:
    """Read a time with its unit, such as 25s, up to a year."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None:
        raise InvalidValue(text, "write a duration with its unit, such as 500ms, 25s or 2m")
    value = float(parts[1]) * _UNITS[parts[2]]
    if value > LONGEST:
        raise InvalidValue(text, f"at most {LONGEST.days}d")
    return value


def duration_from(shortest: str) -> Callable[[str], timedelta]:
    """Return what reads a duration of at least *shortest*."""

    def read(text: str) -> timedelta:
        value = duration(text)
        if value < duration(shortest):
            raise InvalidValue(text, f"at least {shortest}")
        return value

    return read


def queues(text: str) -> dict[str, int | None]:
    """Read queues such as mail:10,default: each with how many of its jobs run at once, or None."""
    limits: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, limit = part.strip().partition(":")
        if not name or (colon and _LIMIT.fullmatch(limit) is None):
            raise InvalidValue(part, "write a queue's name, or its name and a limit, such as mail:10")
        if name in limits:
            raise InvalidValue(name, "a queue is named once")
        limits[name] = int(limit) if colon else None
    return limits


def moment(text: str) -> datetime:
    """Read a time with its zone, such as 2026-11-15T02:00Z."""
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidValue(text, f"write a time as {_EXAMPLE}") from None
    if value.tzinfo is None:
        raise InvalidValue(text, f"say in which zone, as in {_EXAMPLE} or 2026-11-15T02:00+01:00")
    return value.astimezone(UTC)


def time_or_ago(text: str) -> datetime:
    """Read a time with its zone, or how long ago it was, such as 2h."""
    if _DURATION.fullmatch(text.strip()):
        return datetime.now(UTC) - duration(text)
    return moment(text)


def tag(text: str) -> tuple[str, str]:
    """Read a key and its value, such as tenant=acme."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidValue(text, "write a key and its value, such as tenant=acme")
    return key, value
