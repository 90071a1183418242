"""Converters between annotated values and their stored form, the type checks they use, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from typing import Any, get_args

Walk = Callable[[Any, str], Any]
"""A function that converts a value, given with its path."""
Parts = Callable[[], Iterable[tuple[str, "Converter"]]]


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
    """Converts values of one annotation to their stored form (`pack`) and back (`unpack`).

    `read` converts from JSON that another program wrote. It differs from `unpack` if a value has a part of a type that
    JSON lacks: a codec returns such a part as it was, but another program writes it as text.

    *parts* returns the converters of its parts, each with its path, such as ``.lines`` or ``[0]``. *kind* is the
    class of its values: of a record, or of values that only the codec can convert (*is_opaque*). *kept* are the types
    of which `pack` and `unpack` return each value itself, and None if they do so for every value.
    """

    __slots__ = ("is_opaque", "kept", "kind", "pack", "parts", "read", "unpack")

    def __init__(
        self,
        pack: Walk,
        unpack: Walk,
        read: Walk | None = None,
        *,
        parts: Parts = tuple,
        kind: Any = None,
        is_opaque: bool = False,
        kept: frozenset[type] | None = frozenset(),
    ) -> None:
        self.pack, self.unpack, self.read = pack, unpack, read or unpack
        self.parts, self.kind, self.is_opaque, self.kept = parts, kind, is_opaque, kept

    def keeps(self, kind: type) -> bool:
        """Return whether values of exactly this type are their own stored form."""
        return self.kept is None or kind in self.kept


def opaque_kinds(converter: Converter, path: str, seen: set[Any] | None = None) -> Iterator[tuple[str, type[Any]]]:
    """Yield the classes that only the codec can convert, with their paths. A recursive record is visited once."""
    seen = set() if seen is None else seen
    if converter.is_opaque:
        yield path, converter.kind
    elif converter.kind is None or converter.kind not in seen:
        seen.add(converter.kind)
        for step, part in converter.parts():
            yield from opaque_kinds(part, path + step, seen)


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


def step_to(path: str, name: str) -> str:
    """Return the path to the part *name* of the value at *path*. The name may be any text."""
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{name!r}]"


def type_name(kind: Any) -> str:
    """Return an annotation as it is written in source code."""
    if kind is type(None):
        return "None"
    return str(kind.__name__) if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
