"""Annotated values as what a codec can store, and back.

A codec knows values, not annotations: it would refuse a tuple, because a list would come
back. Where a function says what it takes, more can be stored, in plain JSON that other
languages can write too: a dataclass as an object, an enum as its value, a tuple as a list.
What does not fit its annotation is refused on the way in and on the way out, with its path.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

Walk = Callable[[Any, str], Any]
"""Takes a value and its path, and returns the other form of it."""


class Misfit(Exception):
    """A value does not fit its annotation."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class Shape:
    """How values of one annotation are stored (`pack`) and come back (`unpack`)."""

    __slots__ = ("pack", "unpack")

    def __init__(self, pack: Walk, unpack: Walk) -> None:
        self.pack = pack
        self.unpack = unpack


def shape_of(annotation: Any) -> Shape:  # noqa: PLR0911  one for each kind of annotation
    """Return how values of *annotation* are stored.

    >>> shape_of(tuple[int, ...]).pack((1, 2), "$")
    [1, 2]
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return shape_of(get_args(annotation)[0])
    if isinstance(annotation, NewType):
        return shape_of(annotation.__supertype__)
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin in {Union, types.UnionType}:
        return _union([shape_of(each) for each in get_args(annotation)], annotation)
    if annotation is None or annotation is type(None):
        return _leaf(type(None))
    if origin is not None:
        return _generic(origin, get_args(annotation))
    if isinstance(annotation, type):
        return _plain(annotation)
    return _ANYTHING


def _plain(kind: type[Any]) -> Shape:  # noqa: PLR0911  as above
    if is_typeddict(kind):
        return _Record(kind, dict, required=_required_keys).shape
    if is_dataclass(kind):
        return _Record(kind, kind, required=_required_fields).shape
    if hasattr(kind, "model_validate") and hasattr(kind, "model_dump"):
        return _model(kind)
    if issubclass(kind, Enum):
        return _enum(kind)
    if kind in _GENERICS:
        return _generic(kind, ())
    if kind is timedelta:
        return Shape(
            lambda value, path: _checked(timedelta, value, path).total_seconds(),
            lambda value, path: timedelta(seconds=_checked_number(value, path)),
        )
    return _leaf(kind) if kind in _LEAVES else _ANYTHING


def _leaf(kind: type[Any]) -> Shape:
    if kind is float:
        return Shape(_checked_number, _checked_number)

    def check(value: Any, path: str) -> Any:
        return _checked(kind, value, path)

    return Shape(check, check)


def _checked(kind: type[Any], value: Any, path: str) -> Any:
    is_other = (kind is int and isinstance(value, bool)) or (kind is date and isinstance(value, datetime))
    if not isinstance(value, kind) or is_other:
        raise Misfit(path, f"must be {_name(kind)}, and is {_name(type(value))}")
    return value


def _checked_number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit(path, f"must be float, and is {_name(type(value))}")
    return float(value)


def _literal(allowed: tuple[Any, ...]) -> Shape:
    def check(value: Any, path: str) -> Any:
        if not any(value == each and type(value) is type(each) for each in allowed):
            raise Misfit(path, f"must be one of {', '.join(map(repr, allowed))}")
        return value

    return Shape(check, check)


def _union(shapes: Sequence[Shape], annotation: Any) -> Shape:
    def first(walks: Sequence[Walk]) -> Walk:
        def walk(value: Any, path: str) -> Any:
            refusals = []
            for each in walks:
                try:
                    return each(value, path)
                except Misfit as refused:
                    refusals.append(refused)
            deepest = max(refusals, key=lambda refused: len(refused.path))
            if deepest.path != path:
                raise deepest
            raise Misfit(path, f"must be {_name(annotation)}, and is {_name(type(value))}")

        return walk

    return Shape(first([each.pack for each in shapes]), first([each.unpack for each in shapes]))


def _enum(kind: type[Enum]) -> Shape:
    def unpack(value: Any, path: str) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise Misfit(
                path, f"must be the value of a {_name(kind)}: {', '.join(repr(e.value) for e in kind)}"
            ) from None

    return Shape(lambda value, path: _checked(kind, value, path).value, unpack)


def _model(kind: Any) -> Shape:
    """Return the shape of a pydantic model, which is known by its methods: nothing of it is imported here."""

    def pack(value: Any, path: str) -> Any:
        return _validated(kind, _checked(kind, value, path).model_dump(warnings=False), path).model_dump(mode="json")

    return Shape(pack, lambda value, path: _validated(kind, value, path))


def _validated(kind: Any, value: Any, path: str) -> Any:
    try:
        return kind.model_validate(value)
    except ValueError as error:
        raise Misfit(path, _first_problem(error, kind)) from error


def _first_problem(error: ValueError, kind: Any) -> str:
    """Return what a model found, in a line; never the value, which may be a secret."""
    found = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": type(error).__name__}
    place = ".".join(str(part) for part in found["loc"])
    return f"is no {_name(kind)}: {place + ': ' if place else ''}{found['msg']}"


class _Record:
    """A dataclass or a TypedDict. What its fields are is found out when it is first needed: it may hold itself."""

    def __init__(self, kind: Any, make: Callable[..., Any], *, required: Callable[[Any], Collection[str]]) -> None:
        self._kind = kind
        self._make = make
        self._required = required
        self._fields: dict[str, Shape] | None = None
        self.shape = Shape(self._pack, self._unpack)

    def _shapes(self) -> dict[str, Shape]:
        if self._fields is None:
            hints = get_type_hints(self._kind)
            names = [f.name for f in fields(self._kind) if f.init] if is_dataclass(self._kind) else list(hints)
            self._fields = {name: shape_of(hints[name]) for name in names}
        return self._fields

    def _pack(self, value: Any, path: str) -> dict[str, Any]:
        if self._make is not dict:
            checked = _checked(self._kind, value, path)
            return {
                name: shape.pack(getattr(checked, name), f"{path}.{name}") for name, shape in self._shapes().items()
            }
        return self._walk(_checked(dict, value, path), path, lambda shape: shape.pack)

    def _unpack(self, value: Any, path: str) -> Any:
        values = self._walk(value, path, lambda shape: shape.unpack)
        try:
            return self._make(**values)
        except (TypeError, ValueError) as error:  # its own __post_init__ refuses
            raise Misfit(path, f"is no {_name(self._kind)}: {error}") from error

    def _walk(self, value: Any, path: str, way: Callable[[Shape], Walk]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(path, f"must be an object with the fields of {_name(self._kind)}, and is {_name(type(value))}")
        shapes = self._shapes()
        for name in value:
            if name not in shapes:
                raise Misfit(f"{path}.{name}", f"{_name(self._kind)} has no such field")
        for name in self._required(self._kind):
            if name not in value:
                raise Misfit(f"{path}.{name}", f"is missing: {_name(self._kind)} needs it")
        return {name: way(shapes[name])(each, f"{path}.{name}") for name, each in value.items()}


def _required_keys(kind: Any) -> frozenset[str]:
    """Return the keys of a TypedDict that must be there. It would tell itself, but not of annotations in quotes."""
    hints = get_type_hints(kind, include_extras=True)
    said = {name: get_origin(hint) for name, hint in hints.items()}
    return frozenset(
        name for name in hints if said[name] is Required or (said[name] is not NotRequired and kind.__total__)
    )


def _required_fields(kind: Any) -> frozenset[str]:
    return frozenset(f.name for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING)


def _generic(origin: Any, arguments: tuple[Any, ...]) -> Shape:
    if origin is tuple:
        return _tuple(arguments)
    if origin in _GENERICS and issubclass(origin, Mapping):
        return _mapping(
            *(shape_of(each) for each in arguments or (str, Any)), has_text_keys=arguments[:1] in {(), (str,), (Any,)}
        )
    if origin in _GENERICS:
        return _collection(_GENERICS[origin], origin, shape_of(arguments[0] if arguments else Any))
    return _plain(origin) if is_dataclass(origin) or hasattr(origin, "model_validate") else _ANYTHING


def _collection(make: type[Any], kind: Any, item: Shape) -> Shape:
    def pack(value: Any, path: str) -> list[Any]:
        if not isinstance(value, kind) or isinstance(value, str | bytes):
            raise Misfit(path, f"must be {_name(make)}, and is {_name(type(value))}")
        packed = [item.pack(each, f"{path}[{n}]") for n, each in enumerate(value)]
        return sorted(packed, key=repr) if isinstance(value, AbstractSet) else packed  # a set has no order to keep

    return Shape(pack, lambda value, path: make(_items(item.unpack, value, path)))


def _items(walk: Walk, value: Any, path: str) -> list[Any]:
    return [walk(each, f"{path}[{n}]") for n, each in enumerate(_checked(list, value, path))]


def _tuple(arguments: tuple[Any, ...]) -> Shape:
    if not arguments or arguments[-1] is Ellipsis:
        return _collection(tuple, tuple, shape_of(arguments[0] if arguments else Any))
    shapes = [shape_of(each) for each in arguments]

    def walk(kind: type[Any], way: Callable[[Shape], Walk], value: Any, path: str) -> list[Any]:
        if len(_checked(kind, value, path)) != len(shapes):
            raise Misfit(path, f"must have {len(shapes)} items, and has {len(value)}")
        return [way(shape)(each, f"{path}[{n}]") for n, (shape, each) in enumerate(zip(shapes, value, strict=True))]

    return Shape(
        lambda value, path: walk(tuple, lambda shape: shape.pack, value, path),
        lambda value, path: tuple(walk(list, lambda shape: shape.unpack, value, path)),
    )


def _mapping(key: Shape, value: Shape, *, has_text_keys: bool) -> Shape:
    """Return the shape of a mapping: an object, or pairs where its keys are no text."""

    def pack(mapping: Any, path: str) -> Any:
        if not isinstance(mapping, Mapping):
            raise Misfit(path, f"must be dict, and is {_name(type(mapping))}")
        pairs = [[key.pack(k, f"{path} key"), value.pack(v, f"{path}[{k!r}]")] for k, v in mapping.items()]
        return {k: v for k, v in pairs} if has_text_keys else pairs  # noqa: C416  dict() has no type for lists

    def unpack(stored: Any, path: str) -> dict[Any, Any]:
        if has_text_keys:
            pairs = list(_checked(dict, stored, path).items())
        else:
            pairs = [_checked(list, pair, path) for pair in _checked(list, stored, path)]
        return {key.unpack(k, f"{path} key"): value.unpack(v, f"{path}[{k!r}]") for k, v in pairs}

    return Shape(pack, unpack)


def _name(kind: Any) -> str:
    if kind is type(None):
        return "None"
    return str(kind.__name__) if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


_ANYTHING: Final = Shape(lambda value, _path: value, lambda value, _path: value)
"""Of what is not annotated further the codec says whether it can be stored."""
_LEAVES: Final = frozenset({bool, bytes, date, datetime, Decimal, int, str, float, UUID, type(None)})
_GENERICS: Final[Mapping[Any, type[Any]]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    dict: dict,
    Sequence: list,
    Collection: list,
    Mapping: dict,
    AbstractSet: set,
}
