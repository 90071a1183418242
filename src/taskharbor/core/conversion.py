"""Converters between annotated values and their stored form, the type checks they use, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any, get_args

Walk = Callable[[Any, str], Any]
"""A function that converts a value, given with its path."""


class TypeMismatch(Exception):
    """A value does not match its annotation."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class AmbiguousType(TypeMismatch):
    """A value matches its annotation but would be read back as another type."""


class Converter:
    """Converts values of one annotation to their stored form (`pack`) and back (`unpack`)."""

    __slots__ = ("pack", "unpack")

    def __init__(self, pack: Walk, unpack: Walk) -> None:
        self.pack = pack
        self.unpack = unpack


def require_type(kind: type[Any], value: Any, path: str) -> Any:
    """Return *value* if it is an instance of *kind*, or raise `TypeMismatch`."""
    is_other = (kind is int and isinstance(value, bool)) or (kind is date and isinstance(value, datetime))
    if not isinstance(value, kind) or is_other:
        raise TypeMismatch(path, f"must be {type_name(kind)}, not {type_name(type(value))}")
    return value


def require_number(value: Any, path: str) -> float:
    """Return *value* as a float if it is a number, or raise `TypeMismatch`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeMismatch(path, f"must be float, not {type_name(type(value))}")
    try:
        return float(value)
    except OverflowError:
        raise TypeMismatch(path, "is too large for a float") from None


def require_exact_type(kind: type[Any], value: Any, path: str) -> Any:
    """Return *value* if its type is *kind*, or raise `TypeMismatch`: what a subclass adds would not be stored."""
    if isinstance(value, kind) and type(value) is not kind:
        named = type_name(kind)
        raise TypeMismatch(
            path, f"must be {named} itself, not {type_name(type(value))}: it would be read back as {named}"
        )
    return require_type(kind, value, path)


def type_name(kind: Any) -> str:
    """Return an annotation as it is written in source code."""
    if kind is type(None):
        return "None"
    return str(kind.__name__) if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
