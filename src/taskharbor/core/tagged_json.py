"""Convert values to JSON trees with tags for types that JSON lacks, and back; refuse other values with their path."""

from __future__ import annotations

import inspect
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, NoReturn
from uuid import UUID

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.failure import Failure
from taskharbor.core.text import make_storable

MAX_DEPTH: Final = 200
"""The maximum nesting of lists, dicts and dataclasses, low enough to leave stack for the caller."""


class TreeWalk:
    """Copies a tree, converting each part with the step for its exact type.

    A copy costs no more than checking whether one is needed. It also ensures that the checked value
    is the one written, even if another thread changes the original.
    """

    def __init__(self, special_key: Callable[[Any], str]) -> None:
        self._special_key = special_key
        self.steps: dict[type, _Step] = {
            type(None): lambda value, _: value,
            bool: lambda value, _: value,
            str: _text,
            int: checked_int,
            float: checked_float,
            list: self.items,
            dict: self.pairs,
        }

    def __call__(self, value: object) -> Any:
        return self.steps.get(type(value), _unknown)(value, 1)

    def items(self, items: list[Any], depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            reject(TOO_DEEP)
        copy: list[Any] = []
        steps = self.steps
        try:
            for item in items:
                copy.append(steps.get(type(item), _unknown)(item, depth + 1))  # noqa: PERF401  the except clause needs its length
        except NotRepresentable as refused:
            refused.trail.append((items, f"[{len(copy)}]"))
            raise
        return copy

    def pairs(self, owner: Any, depth: int, pairs: Iterable[tuple[Any, Any]] | None = None) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            reject(TOO_DEEP)
        copy: dict[str, Any] = {}
        steps, key = self.steps, None
        try:
            for key, item in owner.items() if pairs is None else pairs:
                name = key if type(key) is str and key.isascii() and "$" not in key else self._special_key(key)
                kind = type(item)
                copy[name] = item if kind is str and item.isascii() else steps.get(kind, _unknown)(item, depth + 1)
        except NotRepresentable as refused:
            refused.trail.append((owner, _step_to(key)))
            raise
        return copy


class NotRepresentable(Exception):
    """A value cannot be converted. Each enclosing container adds itself and the path step to the trail."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.trail: list[tuple[object, str]] = []

    def explained(self) -> tuple[str, str]:
        """Return the path of the refused value, and the reason. A container inside itself is reported as a cycle."""
        path, above = "$", dict[int, str]()
        for container, step in reversed(self.trail):
            if id(container) in above:
                return _cut(path), f"a cycle: the same object as {_cut(above[id(container)])}"
            above[id(container)] = path
            path += step
        return _cut(path), str(self)


def reject(reason: str) -> NoReturn:
    raise NotRepresentable(reason)


def _step_to(key: object) -> str:
    """Return the path step to *key*; empty if it is not a str, since the error then concerns the dict."""
    if type(key) is not str:
        return ""
    return f".{key}" if key.isidentifier() and len(key) <= _MAX_NAME_CHARS else f"[{short(key)}]"


def short(name: str) -> str:
    return repr(name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "…")


def _text(value: str, _depth: int = 0) -> str:
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        reject("a lone surrogate, which has no UTF-8 form")
    return value


def checked_int(value: int, _depth: int = 0) -> int:
    return value if value.bit_length() <= MAX_BITS else reject(f"an int of over {MAX_BITS:,} bits: pass a str")


def checked_float(value: float, _depth: int = 0) -> float:
    return value if math.isfinite(value) else reject("not a finite number")


def _decimal(value: Decimal | str) -> Decimal:
    return number if (number := Decimal(value)).is_finite() else reject("not a finite number")


def _write_datetime(value: datetime) -> str:
    if (value.utcoffset() or timedelta()).microseconds:  # Python parses +00:00:00.000001 as UTC
        reject("an offset of a fraction of a second")
    return value.isoformat()


def _unknown(value: object, _depth: int) -> NoReturn:
    kind, name = type(value), type(value).__name__
    if isinstance(value, Enum) or is_dataclass(kind):
        reject(f"{name} is not registered: JsonCodec(types=[{name}])")
    if isinstance(value, tuple | set | frozenset):
        reject(f"a {name} would be read back as a list: use a list")
    for known in _ACCEPTED:
        if isinstance(value, known):
            reject(f"{name} would be read back as {known.__name__}: pass a {known.__name__}")
    accepted = ", ".join(known.__name__ for known in _ACCEPTED)
    reject(
        f"{kind.__qualname__} has no JSON form: convert it first, for example to a str. Values may be None, {accepted},"
        " or enums and dataclasses that are named in JsonCodec(types=[…])"
    )


def tree_encoder(classes: Mapping[str, type]) -> TreeWalk:
    walk = TreeWalk(_written_key)
    for tag, (kind, write, _) in SCALARS.items():
        walk.steps[kind] = partial(_write_scalar, tag, write)
    for name, cls in reversed([*classes.items()]):  # reversed, so that the first of several names wins
        if issubclass(cls, Enum):
            walk.steps[cls] = partial(_write_enum, name)
        else:
            walk.steps[cls] = partial(_write_dataclass, walk, name, _init_fields(cls))
    return walk


def _written_key(key: object) -> str:
    if type(key) is not str:
        reject(f"a key of type {type(key).__name__}: keys must be str")
    return f"${_text(key)}" if key.startswith("$") else _text(key)


def _write_scalar(tag: str, write: Callable[[Any], str], value: object, _depth: int) -> dict[str, str]:
    return {tag: write(value)}


def _write_enum(name: str, member: Enum, _depth: int) -> dict[str, list[str]]:
    if member._name_ not in type(member).__members__:
        reject(f"flags of {name} that have no name together: pass a list of members")
    return {"$enum": [name, member._name_]}


def _write_dataclass(walk: TreeWalk, name: str, names: list[str], value: object, depth: int) -> dict[str, list[object]]:
    return {"$dataclass": [name, walk.pairs(value, depth, [(each, getattr(value, each)) for each in names])]}


class TagReader:
    def __init__(self, classes: Mapping[str, type]) -> None:
        self._enums = {name: cls for name, cls in classes.items() if issubclass(cls, Enum)}
        self._dataclasses = {name: cls for name, cls in classes.items() if name not in self._enums}
        self._tags: dict[str, _Step] = {tag: partial(_read_scalar, tag, read) for tag, (_, _, read) in SCALARS.items()}
        self._tags |= {"$enum": self._enum, "$dataclass": self._dataclass}
        self.walk = TreeWalk(_read_key)
        self.walk.steps[dict] = self._object

    def _object(self, value: dict[str, Any], depth: int) -> object:
        if len(value) == 1:
            [(key, held)] = value.items()
            if key in self._tags:
                return self._tags[key](held, depth)
        return self.walk.pairs(value, depth)

    def _enum(self, held: object, _depth: int) -> Enum:
        name, member = _named("$enum", held, str, self._enums)
        members = self._enums[name].__members__
        return members[member] if member in members else reject(f"{name} has no member {short(member)}")

    def _dataclass(self, held: object, depth: int) -> object:
        name, stored = _named("$dataclass", held, dict, self._dataclasses)
        values = self.walk.pairs(stored, depth)
        try:
            return self._dataclasses[name](**values)
        except Exception as error:  # the constructor is user code
            reason = f"{name} does not accept the stored fields: {Failure.of(error)}"
            raise NotRepresentable(reason) from error


def _read_key(key: str) -> str:
    if key.startswith("$") and not key.startswith("$$"):
        reject("unknown tag, or not the only key of its object; start your own key with $$")
    return _text(key.removeprefix("$"))


def _read_scalar(tag: str, read: Callable[[str], object], held: object, _depth: int) -> object:
    with suppress(ValueError, ArithmeticError):  # the latter from Decimal
        if isinstance(held, str):
            return read(held)
    return reject(f"malformed {tag}")


def _named(tag: str, held: object, kind: type, classes: Mapping[str, type]) -> tuple[str, Any]:
    match held:
        case [str(name), content] if isinstance(content, kind):
            if name in classes:
                return name, content
            name = short(name)
            reject(f"no class {name} is registered: JsonCodec(types=[…]), or types={{{name}: …}} if it was renamed")
    return reject(f"malformed {tag}")


def types_by_name(types: Iterable[type] | Mapping[str, type]) -> dict[str, type]:
    named = types.items() if isinstance(types, Mapping) else [(getattr(cls, "__name__", "?"), cls) for cls in types]
    classes: dict[str, type] = {}
    for name, cls in named:
        if not isinstance(cls, type) or not (issubclass(cls, Enum) or is_dataclass(cls)):
            _misuse(repr(cls), "must be an enum class or a dataclass, as in JsonCodec(types=[Color])")
        if classes.setdefault(name, cls) is not cls:
            _misuse(name, "two classes have this name; pass a mapping from unique names to classes")
    return classes


def _init_fields(cls: Any) -> list[str]:
    names = [field.name for field in fields(cls) if field.init]
    try:
        inspect.signature(cls).bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        _misuse(cls.__name__, f"its constructor does not accept its fields ({error})")
    return names


def _misuse(value: str, rule: str) -> NoReturn:
    raise UsageError(Problem(field="types", value=value, rule=rule)) from None


_Step = Callable[[Any, int], Any]  # converts a value of one exact type at a depth
MAX_BITS: Final = 8192  # Python refuses to parse an int of more than 4,300 digits, about 14,000 bits
_MAX_NAME_CHARS: Final = 60
_cut = partial(make_storable, limit=200)
MAX_DIGITS: Final = len(str(-(2**MAX_BITS)))
TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels, or deeper than the stack allows"
# Tags of types that JSON lacks: the type, its writer and its reader.
SCALARS: Final[Mapping[str, tuple[type, Callable[[Any], str], Callable[[str], object]]]] = {
    "$datetime": (datetime, _write_datetime, datetime.fromisoformat),
    "$date": (date, date.isoformat, date.fromisoformat),
    "$uuid": (UUID, str, UUID),
    "$decimal": (Decimal, lambda value: str(_decimal(value)), _decimal),
    "$bytes": (bytes, lambda value: b64encode(value).decode(), partial(b64decode, validate=True)),
}
_ACCEPTED: Final = (bool, int, float, str, list, dict, *(kind for kind, _, _ in SCALARS.values()))
