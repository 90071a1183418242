"""Whether a value fits its annotation, and how it is said where it does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any, get_args

Walk = Callable[[Any, str], Any]
"""Takes a value and its path, and returns the other form of it."""


class Misfit(Exception):
    """A value does not fit its annotation."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class Ambiguous(Misfit):
    """A value fits its annotation, and would come back as something else."""


class Shape:
    """How values of one annotation are stored (`pack`) and come back (`unpack`)."""

    __slots__ = ("pack", "unpack")

    def __init__(self, pack: Walk, unpack: Walk) -> None:
        self.pack = pack
        self.unpack = unpack


def checked(kind: type[Any], value: Any, path: str) -> Any:
    """Return *value*, if it is a *kind*."""
    is_other = (kind is int and isinstance(value, bool)) or (kind is date and isinstance(value, datetime))
    if not isinstance(value, kind) or is_other:
        raise Misfit(path, f"must be {name_of(kind)}, and is {name_of(type(value))}")
    return value


def checked_number(value: Any, path: str) -> float:
    """Return *value* as a float, if it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit(path, f"must be float, and is {name_of(type(value))}")
    try:
        return float(value)
    except OverflowError:
        raise Misfit(path, "is too large for a float") from None


def exactly(kind: type[Any], value: Any, path: str) -> Any:
    """Return *value*, if it is a *kind* and of no class below: what such a class adds would not come back."""
    if isinstance(value, kind) and type(value) is not kind:
        named = name_of(kind)
        raise Misfit(path, f"must be {named} itself, and is {name_of(type(value))}: it would come back as {named}")
    return checked(kind, value, path)


def name_of(kind: Any) -> str:
    """Return an annotation as people write it."""
    if kind is type(None):
        return "None"
    return str(kind.__name__) if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
