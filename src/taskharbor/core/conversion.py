"""Whether a value fits its annotation, and how it is said where it does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any, get_args

Walk = Callable[[Any, str], Any]
"""Takes a value and its path, and returns the other form of it."""


class TypeMismatch(Exception):
    """A value does not fit its annotation."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class AmbiguousType(TypeMismatch):
    """A value fits its annotation, and would come back as something else."""


class Converter:
    """How values of one annotation are stored (`pack`) and come back (`unpack`)."""

    __slots__ = ("pack", "unpack")

    def __init__(self, pack: Walk, unpack: Walk) -> None:
        self.pack = pack
        self.unpack = unpack


def require_type(kind: type[Any], value: Any, path: str) -> Any:
    """Return *value*, if it is a *kind*."""
    is_other = (kind is int and isinstance(value, bool)) or (kind is date and isinstance(value, datetime))
    if not isinstance(value, kind) or is_other:
        raise TypeMismatch(path, f"must be {type_name(kind)}, and is {type_name(type(value))}")
    return value


def require_number(value: Any, path: str) -> float:
    """Return *value* as a float, if it is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatch(path, f"must be float, and is {type_name(type(value))}")
    try:
        return float(value)
    except OverflowError:
        raise TypeMismatch(path, "is too large for a float") from None


def require_exact_type(kind: type[Any], value: Any, path: str) -> Any:
    """Return *value*, if it is a *kind* and of no class below: what such a class adds would not come back."""
    if isinstance(value, kind) and type(value) is not kind:
        named = type_name(kind)
        raise TypeMismatch(
            path, f"must be {named} itself, and is {type_name(type(value))}: it would come back as {named}"
        )
    return require_type(kind, value, path)


def type_name(kind: Any) -> str:
    """Return an annotation as people write it."""
    if kind is type(None):
        return "None"
    return str(kind.__name__) if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
