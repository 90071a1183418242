"""Convert annotated values to values that a codec can store, and back.

A codec does not know annotations, so it refuses a tuple, which it would read back as a list. With an
annotation more types can be stored, as JSON that other languages can write: a dataclass as an object, an
enum as its value, a tuple as a list. A value that does not match its annotation is refused in both
directions, with its path.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, InitVar, fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from operator import attrgetter
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
    step_to,
    type_name,
)
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.json_text import FORMS, read_text
from taskharbor.core.pydantic_models import constrained, model


def converter_for(annotation: Any) -> Converter:  # noqa: PLR0911  one for each kind of annotation
    """Return the converter for values of *annotation*.

    >>> converter_for(tuple[int, ...]).pack((1, 2), "$")
    [1, 2]
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return constrained(annotation, converter_for(get_args(annotation)[0]))
    if origin in {Required, NotRequired}:
        return converter_for(get_args(annotation)[0])
    if hasattr(annotation, "__value__"):  # a 'type' statement
        return converter_for(annotation.__value__)
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


class UnresolvedAnnotation(UsageError):
    """An annotation contains a name that is not defined, or not defined yet."""


def type_hints_of(annotated: Any, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the annotations of a function or class. *names* are additional names, such as local ones."""
    try:
        return get_type_hints(annotated, localns=names and dict(names), include_extras=True)
    except NameError as error:
        if names is None and isinstance(annotated, type):
            # A recursive class defined inside a function. Only as a fallback: extra names hide the class's attributes.
            return type_hints_of(annotated, {annotated.__name__: annotated})
        rule = f"{error}; define or import that name at module level, outside of 'if TYPE_CHECKING'"
        problem = Problem(field=f"annotation of {annotated.__qualname__}", value="unresolved", rule=rule)
        raise UnresolvedAnnotation(problem) from error


def _plain(kind: type[Any], arguments: tuple[Any, ...] = ()) -> Converter:  # noqa: PLR0911  as above
    if is_typeddict(kind):
        return _Record(kind, arguments, required=_required_keys).converter
    if is_dataclass(kind):
        return _Record(kind, arguments, required=_required_fields).converter
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Record(kind, arguments, required=_required_items).converter
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump"):
        return model(kind)
    if issubclass(kind, Enum):
        return _enum(kind)
    if kind in _GENERICS:
        return _generic(kind, ())
    if kind is timedelta:
        return Converter(_seconds, _time_span)
    if kind in _LEAVES:
        return _leaf(kind)
    return _ANYTHING if kind in {Any, object} else Converter(_keep, _keep, kind=kind, is_opaque=True, kept=None)


def _leaf(kind: type[Any]) -> Converter:
    if kind is float:
        return Converter(require_number, require_number, kept=frozenset({float}))

    def check(value: Any, path: str) -> Any:
        return value if type(value) is kind else require_type(kind, value, path)

    return Converter(check, check, partial(read_text, kind) if kind in FORMS else None, kept=frozenset({kind}))


def _seconds(value: Any, path: str) -> float:
    seconds: float = require_type(timedelta, value, path).total_seconds()
    if _time_span(seconds, path) != value:
        raise TypeMismatch(path, "too long to be stored to the microsecond")
    return seconds


def _time_span(value: Any, path: str) -> timedelta:
    try:
        return timedelta(seconds=require_number(value, path))
    except (OverflowError, ValueError):  # the latter for NaN, which a codec other than JSON may store
        raise TypeMismatch(path, "exceeds the range of timedelta") from None


def _literal(allowed: tuple[Any, ...]) -> Converter:
    stored = [each.value if isinstance(each, Enum) else each for each in allowed]

    def convert(pairs: Sequence[tuple[Any, Any]], value: Any, path: str) -> Any:
        for known, result in pairs:
            if value == known and type(value) is type(known):
                return result
        raise TypeMismatch(path, f"must be one of {', '.join(map(repr, (known for known, _ in pairs)))}")

    packing, unpacking = [*zip(allowed, stored, strict=True)], [*zip(stored, allowed, strict=True)]
    return Converter(
        lambda value, path: convert(packing, value, path), lambda value, path: convert(unpacking, value, path)
    )


def _union(converters: Sequence[Converter], annotation: Any) -> Converter:
    packs = [partial(_pack_as, index, converters, annotation) for index in range(len(converters))]
    unpack, read = (_first([load(each) for each in converters], annotation) for load in _LOADS)
    others = [each for each, kind in zip(converters, get_args(annotation), strict=True) if kind is not type(None)]
    if len(others) == 1:  # the error then says how that type is written in JSON

        def read(value: Any, path: str) -> Any:
            return None if value is None else others[0].read(value, path)

    kept = _kept_by_any(converters)
    return Converter(
        _first(packs, annotation), unpack, read, parts=lambda: (("", each) for each in converters), kept=kept
    )


def _kept_by_any(converters: Sequence[Converter]) -> frozenset[type]:
    """Return the types that a union of leaves keeps. A leaf refuses the types of all others, but float converts int."""
    leaves = [each.kept for each in converters if each.kept]
    kept = frozenset[type]().union(*leaves) if len(leaves) == len(converters) else frozenset()
    return kept - {int} if float in kept else kept


def _first(walks: Sequence[Walk], annotation: Any) -> Walk:
    def walk(value: Any, path: str) -> Any:
        mismatches = []
        for each in walks:
            try:
                return each(value, path)
            except AmbiguousType:
                raise
            except TypeMismatch as mismatch:
                mismatches.append(mismatch)
        deepest = max(mismatches, key=lambda mismatch: len(mismatch.path))
        if deepest.path != path:
            raise deepest
        raise TypeMismatch(path, f"must be {type_name(annotation)}, not {type_name(type(value))}")

    return walk


def _pack_as(index: int, converters: Sequence[Converter], annotation: Any, value: Any, path: str) -> Any:
    """Pack *value* as one alternative, and check that no earlier alternative would unpack it differently."""
    packed = converters[index].pack(value, path)
    for earlier in converters[:index]:
        try:
            unpacked = earlier.unpack(packed, path)
        except TypeMismatch:
            continue
        if unpacked != value:
            order = f"in {type_name(annotation)} name {type_name(type(value))} first"
            raise AmbiguousType(
                path, f"would be read back as {type_name(type(unpacked))}: {order}, or give it a field of its own"
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
    """Converter of a dataclass, named tuple or TypedDict. Its fields are resolved on first use: it may be recursive."""

    def __init__(self, kind: Any, arguments: tuple[Any, ...], *, required: Callable[[Any], Collection[str]]) -> None:
        self._kind = kind
        self._type_arguments = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
        self._required = required
        self._fields: dict[str, Converter] | None = None
        whole = (kind, *arguments) if arguments else kind
        loads = (partial(self._load, load) for load in _LOADS)
        self.converter = Converter(self._pack, *loads, parts=self._parts, kind=whole)

    def _parts(self) -> list[tuple[str, Converter]]:
        return [(f".{name}", converter) for name, converter in self._converters().items()]

    def _converters(self) -> dict[str, Converter]:
        if self._fields is None:
            hints = type_hints_of(self._kind)
            self._fields = {
                name: converter_for(_substitute(hints.get(name, Any), self._type_arguments))
                for name in _names(self._kind, hints)
            }
        return self._fields

    def _pack(self, value: Any, path: str) -> dict[str, Any]:
        if is_typeddict(self._kind):
            return self._convert(attrgetter("pack"), require_type(dict, value, path), path)
        known = require_exact_type(self._kind, value, path)
        return {name: each.pack(getattr(known, name), f"{path}.{name}") for name, each in self._converters().items()}

    def _load(self, direction: _Direction, value: Any, path: str) -> Any:
        values = self._convert(direction, value, path)
        try:
            return self._kind(**values)
        except (TypeError, ValueError) as error:  # raised by its __post_init__
            raise TypeMismatch(path, f"not a valid {type_name(self._kind)}: {error}") from error

    def _convert(self, direction: _Direction, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeMismatch(
                path, f"must be an object with the fields of {type_name(self._kind)}, not {type_name(type(value))}"
            )
        converters = self._converters()
        for name in value:
            if name not in converters:
                raise TypeMismatch(step_to(path, name), f"{type_name(self._kind)} has no such field")
        for name in self._required(self._kind):
            if name not in value:
                raise TypeMismatch(f"{path}.{name}", f"missing: {type_name(self._kind)} requires it")
        return {name: direction(converters[name])(each, f"{path}.{name}") for name, each in value.items()}


def _names(kind: Any, hints: Mapping[str, Any]) -> list[str]:
    """Return the fields that are stored."""
    if not is_dataclass(kind):
        return list(getattr(kind, "_fields", hints))
    for name, hint in hints.items():
        if isinstance(hint, InitVar) or hint is InitVar:
            rule = "the object does not keep its value, so it cannot be stored: make it a field"
            raise UsageError(Problem(field=f"{type_name(kind)}.{name}", value="an InitVar", rule=rule))
    return [each.name for each in fields(kind) if each.init]


def _substitute(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """Return an annotation with its type variables replaced by their *arguments*."""
    if isinstance(hint, TypeVar):
        return arguments.get(hint, Any)
    names = getattr(hint, "__parameters__", ()) if get_origin(hint) is not None else ()
    return hint[tuple(arguments.get(name, Any) for name in names)] if names else hint


def _required_keys(kind: Any) -> frozenset[str]:
    """Return the required keys of a TypedDict. ``__required_keys__`` is wrong for annotations in quotes."""
    hints = type_hints_of(kind)
    origins = {name: get_origin(hint) for name, hint in hints.items()}
    return frozenset(
        name
        for name in hints
        if origins[name] is Required or (origins[name] is not NotRequired and name in kind.__required_keys__)
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
            raise TypeMismatch(path, f"must be {type_name(make)}, not {type_name(type(value))}")
        packed = [item.pack(each, f"{path}[{n}]") for n, each in enumerate(value)]
        return (
            sorted(packed, key=repr) if isinstance(value, AbstractSet) else packed
        )  # sorted, so that equal sets have equal digests

    loads = (partial(_items, make, load(item)) for load in _LOADS)
    return Converter(pack, *loads, parts=lambda: [("[0]", item)])


def _items(make: type[Any], walk: Walk, value: Any, path: str) -> Any:
    items = [walk(each, f"{path}[{n}]") for n, each in enumerate(require_type(list, value, path))]
    try:
        return make(items)
    except TypeError:  # a list or dict in a set
        raise TypeMismatch(path, f"an item cannot be in a {type_name(make)}, since it is not hashable") from None


def _tuple(arguments: tuple[Any, ...]) -> Converter:
    if not arguments or arguments[-1] is Ellipsis:
        return _collection(tuple, tuple, converter_for(arguments[0] if arguments else Any))
    converters = [converter_for(each) for each in arguments]

    def convert(kind: type[Any], direction: _Direction, value: Any, path: str) -> list[Any]:
        if len(require_type(kind, value, path)) != len(converters):
            raise TypeMismatch(path, f"must have {len(converters)} items, not {len(value)}")
        pairs = zip(converters, value, strict=True)
        return [direction(converter)(each, f"{path}[{n}]") for n, (converter, each) in enumerate(pairs)]

    def load(direction: _Direction, value: Any, path: str) -> tuple[Any, ...]:
        return tuple(convert(list, direction, value, path))

    return Converter(
        partial(convert, tuple, attrgetter("pack")),
        *(partial(load, each) for each in _LOADS),
        parts=lambda: [(f"[{n}]", converter) for n, converter in enumerate(converters)],
    )


def _mapping(key: Converter, value: Converter, *, has_text_keys: bool) -> Converter:
    """Return the converter of a mapping: an object, or a list of pairs if its keys are not str."""

    def pack(mapping: Any, path: str) -> Any:
        if not isinstance(mapping, Mapping):
            raise TypeMismatch(path, f"must be dict, not {type_name(type(mapping))}")
        pairs = [[key.pack(k, f"{path} key"), value.pack(v, f"{path}[{k!r}]")] for k, v in mapping.items()]
        return {k: v for k, v in pairs} if has_text_keys else pairs  # noqa: C416  dict() has no type for lists

    def load(direction: _Direction, stored: Any, path: str) -> dict[Any, Any]:
        pairs = list(require_type(dict, stored, path).items()) if has_text_keys else _pairs(stored, path)
        load_key, load_value = direction(key), direction(value)
        return {load_key(k, f"{path} key"): load_value(v, f"{path}[{k!r}]") for k, v in pairs}

    loads = (partial(load, each) for each in _LOADS)
    return Converter(pack, *loads, parts=lambda: [(" key", key), ("[…]", value)])


def _pairs(stored: Any, path: str) -> list[Any]:
    if isinstance(stored, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in stored):  # noqa: PLR2004  a pair
        return stored
    raise TypeMismatch(path, "must be a list of [key, value] pairs, since its keys are not str")


_Direction = Callable[[Converter], Walk]
_LOADS: Final[Sequence[_Direction]] = (attrgetter("unpack"), attrgetter("read"))
"""The ways from a stored or JSON form to a value, in the order of the parameters of `Converter`."""


def _keep(value: Any, _path: str) -> Any:
    return value


_ANYTHING: Final = Converter(_keep, _keep, kept=None)
"""For Any: the codec decides whether a value can be stored."""
_LEAVES: Final = frozenset({bool, bytes, date, datetime, Decimal, int, str, float, UUID, type(None)})
_GENERICS: Final[Mapping[Any, type[Any]]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    dict: dict,
    Iterable: list,
    Collection: list,
    Sequence: list,
    MutableSequence: list,
    Mapping: dict,
    MutableMapping: dict,
    AbstractSet: set,
}
