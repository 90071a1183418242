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
from dataclasses import MISSING, InitVar, fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from taskharbor.core.conversion import (
    AmbiguousType,
    Converter,
    TypeMismatch,
    Walk,
    require_exact_type,
    require_number,
    require_type,
    type_name,
)
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.pydantic_models import model


def converter_for(annotation: Any) -> Converter:  # noqa: PLR0911  one for each kind of annotation
    """Return how values of *annotation* are stored.

    >>> converter_for(tuple[int, ...]).pack((1, 2), "$")
    [1, 2]
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return converter_for(get_args(annotation)[0])
    if isinstance(annotation, NewType):
        return converter_for(annotation.__supertype__)
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin in {Union, types.UnionType}:
        return _union([converter_for(each) for each in get_args(annotation)], annotation)
    if annotation is None or annotation is type(None):
        return _leaf(type(None))
    if origin is not None:
        return _generic(origin, get_args(annotation))
    if isinstance(annotation, type):
        return _plain(annotation)
    return _ANYTHING


def type_hints_of(annotated: Any, names: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Return the annotations of a function or class; *names* are those that its module does not have."""
    try:
        return get_type_hints(annotated, localns=names and dict(names), **options)
    except NameError as error:
        if names is None and isinstance(annotated, type):
            # It holds itself, and was defined inside of a function. Not at once: its attributes are names too.
            return type_hints_of(annotated, {annotated.__name__: annotated}, **options)
        rule = f"{error}; define or import that name where a module is loaded, outside of 'if TYPE_CHECKING'"
        raise UsageError(Problem(field="annotation", value=f"of {annotated.__qualname__}", rule=rule)) from error


def _plain(kind: type[Any], arguments: tuple[Any, ...] = ()) -> Converter:  # noqa: PLR0911  as above
    if is_typeddict(kind):
        return _Record(kind, arguments, required=_required_keys).shape
    if is_dataclass(kind):
        return _Record(kind, arguments, required=_required_fields).shape
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Record(kind, arguments, required=_required_items).shape
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump"):
        return model(kind)
    if issubclass(kind, Enum):
        return _enum(kind)
    if kind in _GENERICS:
        return _generic(kind, ())
    if kind is timedelta:
        return Converter(_seconds, _time_span)
    return _leaf(kind) if kind in _LEAVES else _ANYTHING


def _leaf(kind: type[Any]) -> Converter:
    if kind is float:
        return Converter(require_number, require_number)

    def check(value: Any, path: str) -> Any:
        return value if type(value) is kind else require_type(kind, value, path)

    return Converter(check, check)


def _seconds(value: Any, path: str) -> float:
    seconds: float = require_type(timedelta, value, path).total_seconds()
    if _time_span(seconds, path) != value:
        raise TypeMismatch(path, "is too long to be stored to the microsecond")
    return seconds


def _time_span(value: Any, path: str) -> timedelta:
    try:
        return timedelta(seconds=require_number(value, path))
    except OverflowError:
        raise TypeMismatch(path, "is longer than a timedelta can be") from None


def _literal(allowed: tuple[Any, ...]) -> Converter:
    stored = [each.value if isinstance(each, Enum) else each for each in allowed]

    def walk(ways: Sequence[tuple[Any, Any]], value: Any, path: str) -> Any:
        for one, other in ways:
            if value == one and type(value) is type(one):
                return other
        raise TypeMismatch(path, f"must be one of {', '.join(map(repr, (one for one, _ in ways)))}")

    there, back = [*zip(allowed, stored, strict=True)], [*zip(stored, allowed, strict=True)]
    return Converter(lambda value, path: walk(there, value, path), lambda value, path: walk(back, value, path))


def _union(shapes: Sequence[Converter], annotation: Any) -> Converter:
    packs = [partial(_packed_as, place, shapes, annotation) for place in range(len(shapes))]
    return Converter(_first(packs, annotation), _first([each.unpack for each in shapes], annotation))


def _first(walks: Sequence[Walk], annotation: Any) -> Walk:
    def walk(value: Any, path: str) -> Any:
        refusals = []
        for each in walks:
            try:
                return each(value, path)
            except AmbiguousType:
                raise
            except TypeMismatch as refused:
                refusals.append(refused)
        deepest = max(refusals, key=lambda refused: len(refused.path))
        if deepest.path != path:
            raise deepest
        raise TypeMismatch(path, f"must be {type_name(annotation)}, and is {type_name(type(value))}")

    return walk


def _packed_as(place: int, shapes: Sequence[Converter], annotation: Any, value: Any, path: str) -> Any:
    """Return how one alternative stores *value*, if none before it would take that for its own."""
    packed = shapes[place].pack(value, path)
    for earlier in shapes[:place]:
        try:
            back = earlier.unpack(packed, path)
        except TypeMismatch:
            continue
        if back != value:
            order = f"in {type_name(annotation)} name {type_name(type(value))} first"
            raise AmbiguousType(
                path, f"would come back as {type_name(type(back))}: {order}, or give it a field of its own"
            )
    return packed


def _enum(kind: type[Enum]) -> Converter:
    def unpack(value: Any, path: str) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise TypeMismatch(
                path, f"must be the value of a {type_name(kind)}: {', '.join(repr(e.value) for e in kind)}"
            ) from None

    return Converter(lambda value, path: require_type(kind, value, path).value, unpack)


class _Record:
    """A dataclass, named tuple or TypedDict. What its fields are is found out when first needed: it may hold itself."""

    def __init__(self, kind: Any, arguments: tuple[Any, ...], *, required: Callable[[Any], Collection[str]]) -> None:
        self._kind = kind
        self._given = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
        self._required = required
        self._fields: dict[str, Converter] | None = None
        self.shape = Converter(self._pack, self._unpack)

    def _shapes(self) -> dict[str, Converter]:
        if self._fields is None:
            hints = type_hints_of(self._kind)
            self._fields = {
                name: converter_for(_filled(hints.get(name, Any), self._given)) for name in _names(self._kind, hints)
            }
        return self._fields

    def _pack(self, value: Any, path: str) -> dict[str, Any]:
        if is_typeddict(self._kind):
            return self._walk(require_type(dict, value, path), path, lambda shape: shape.pack)
        known = require_exact_type(self._kind, value, path)
        return {name: shape.pack(getattr(known, name), f"{path}.{name}") for name, shape in self._shapes().items()}

    def _unpack(self, value: Any, path: str) -> Any:
        values = self._walk(value, path, lambda shape: shape.unpack)
        try:
            return self._kind(**values)
        except (TypeError, ValueError) as error:  # its own __post_init__ refuses
            raise TypeMismatch(path, f"is no {type_name(self._kind)}: {error}") from error

    def _walk(self, value: Any, path: str, way: Callable[[Converter], Walk]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeMismatch(
                path, f"must be an object with the fields of {type_name(self._kind)}, and is {type_name(type(value))}"
            )
        shapes = self._shapes()
        for name in value:
            if name not in shapes:
                raise TypeMismatch(f"{path}.{name}", f"{type_name(self._kind)} has no such field")
        for name in self._required(self._kind):
            if name not in value:
                raise TypeMismatch(f"{path}.{name}", f"is missing: {type_name(self._kind)} needs it")
        return {name: way(shapes[name])(each, f"{path}.{name}") for name, each in value.items()}


def _names(kind: Any, hints: Mapping[str, Any]) -> list[str]:
    """Return the fields that are stored."""
    if not is_dataclass(kind):
        return list(getattr(kind, "_fields", hints))
    for name, hint in hints.items():
        if isinstance(hint, InitVar) or hint is InitVar:
            rule = "its value is not kept by the object, and so cannot be stored: make it a field"
            raise UsageError(Problem(field=f"{type_name(kind)}.{name}", value="an InitVar", rule=rule))
    return [each.name for each in fields(kind) if each.init]


def _filled(hint: Any, given: Mapping[Any, Any]) -> Any:
    """Return an annotation with what stands for its type variables in place."""
    if isinstance(hint, TypeVar):
        return given.get(hint, Any)
    names = getattr(hint, "__parameters__", ()) if get_origin(hint) is not None else ()
    return hint[tuple(given.get(name, Any) for name in names)] if names else hint


def _required_keys(kind: Any) -> frozenset[str]:
    """Return the keys of a TypedDict that must be there. It would tell itself, but not of annotations in quotes."""
    hints = type_hints_of(kind, include_extras=True)
    said = {name: get_origin(hint) for name, hint in hints.items()}
    return frozenset(
        name
        for name in hints
        if said[name] is Required or (said[name] is not NotRequired and name in kind.__required_keys__)
    )


def _required_fields(kind: Any) -> frozenset[str]:
    return frozenset(f.name for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING)


def _required_items(kind: Any) -> frozenset[str]:
    return frozenset(name for name in kind._fields if name not in kind._field_defaults)


def _generic(origin: Any, arguments: tuple[Any, ...]) -> Converter:
    if origin is tuple:
        return _tuple(arguments)
    if origin in _GENERICS and issubclass(origin, Mapping):
        return _mapping(
            *(converter_for(each) for each in arguments or (str, Any)),
            has_text_keys=arguments[:1] in {(), (str,), (Any,)},
        )
    if origin in _GENERICS:
        return _collection(_GENERICS[origin], origin, converter_for(arguments[0] if arguments else Any))
    return _plain(origin, arguments) if isinstance(origin, type) else _ANYTHING


def _collection(make: type[Any], kind: Any, item: Converter) -> Converter:
    def pack(value: Any, path: str) -> list[Any]:
        if not isinstance(value, kind) or isinstance(value, str | bytes):
            raise TypeMismatch(path, f"must be {type_name(make)}, and is {type_name(type(value))}")
        packed = [item.pack(each, f"{path}[{n}]") for n, each in enumerate(value)]
        return sorted(packed, key=repr) if isinstance(value, AbstractSet) else packed  # a set has no order to keep

    return Converter(pack, lambda value, path: make(_items(item.unpack, value, path)))


def _items(walk: Walk, value: Any, path: str) -> list[Any]:
    return [walk(each, f"{path}[{n}]") for n, each in enumerate(require_type(list, value, path))]


def _tuple(arguments: tuple[Any, ...]) -> Converter:
    if not arguments or arguments[-1] is Ellipsis:
        return _collection(tuple, tuple, converter_for(arguments[0] if arguments else Any))
    shapes = [converter_for(each) for each in arguments]

    def walk(kind: type[Any], way: Callable[[Converter], Walk], value: Any, path: str) -> list[Any]:
        if len(require_type(kind, value, path)) != len(shapes):
            raise TypeMismatch(path, f"must have {len(shapes)} items, and has {len(value)}")
        return [way(shape)(each, f"{path}[{n}]") for n, (shape, each) in enumerate(zip(shapes, value, strict=True))]

    return Converter(
        lambda value, path: walk(tuple, lambda shape: shape.pack, value, path),
        lambda value, path: tuple(walk(list, lambda shape: shape.unpack, value, path)),
    )


def _mapping(key: Converter, value: Converter, *, has_text_keys: bool) -> Converter:
    """Return the shape of a mapping: an object, or pairs where its keys are no text."""

    def pack(mapping: Any, path: str) -> Any:
        if not isinstance(mapping, Mapping):
            raise TypeMismatch(path, f"must be dict, and is {type_name(type(mapping))}")
        pairs = [[key.pack(k, f"{path} key"), value.pack(v, f"{path}[{k!r}]")] for k, v in mapping.items()]
        return {k: v for k, v in pairs} if has_text_keys else pairs  # noqa: C416  dict() has no type for lists

    def unpack(stored: Any, path: str) -> dict[Any, Any]:
        if has_text_keys:
            pairs = list(require_type(dict, stored, path).items())
        else:
            pairs = [require_type(list, pair, path) for pair in require_type(list, stored, path)]
        return {key.unpack(k, f"{path} key"): value.unpack(v, f"{path}[{k!r}]") for k, v in pairs}

    return Converter(pack, unpack)


_ANYTHING: Final = Converter(lambda value, _path: value, lambda value, _path: value)
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
