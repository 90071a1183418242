"""How payloads and results become bytes, and come back as they were.

Other languages read the JSON form too, and an HTTP API stores what it was sent: a
plain JSON value is written as itself. What JSON lacks becomes an object with one
key that begins with ``$``; a user's own key that does so gets one more ``$``::

    {"$datetime": "2024-02-29T12:00:00+01:00"}      {"$enum": ["Color", "RED"]}
    {"$date": "2024-02-29"}                         {"$dataclass": ["Point", {"x": 1, "y": 2}]}
    {"$decimal": "9.90"}                            {"$bytes": "aGk="}
    {"$uuid": "0190163d-…"}                         {"$$mine": "the user's own key $mine"}

Whatever would come back as something else is refused on the way in, with its path:
what fails at the enqueue is mended by its author, what fails in a worker is not.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, NoReturn, Protocol
from uuid import UUID

from taskharbor.core.errors import PayloadNotDecodable, PayloadNotEncodable, PayloadTooLarge, Problem, UsageError
from taskharbor.core.failure import Failure
from taskharbor.core.text import storable

MAX_BYTES: Final = 1_048_576
"""The most bytes of an encoded payload or result, unless the codec was given another limit."""

MAX_DEPTH: Final = 200
"""The most lists, dicts and dataclasses inside each other: few enough to leave the caller its share of the stack."""


class Codec(Protocol):
    """Turns values into the bytes a store keeps, and back.

    One codec serves all threads of a process, and other processes read what it wrote,
    days later: keep no state between calls, and go on reading what earlier releases wrote.
    """

    def encode(self, value: object, *, context: bytes) -> bytes:
        """Return bytes from which ``decode`` makes an equal value of the same types.

        Raise ``PayloadNotEncodable``, with the path of whatever would not come back as
        it is, or ``PayloadTooLarge``. *context* names what the bytes belong to: the job's
        id and type, and whether they are its payload or its result. A codec may bind the
        bytes to it, so that they open nowhere else, or ignore it.
        """

    def decode(self, data: bytes, *, context: bytes) -> Any:
        """Return the value that ``encode`` was given with the same *context*.

        Raise ``PayloadNotDecodable``, and nothing else, whatever *data* holds. Read bytes
        over a size limit all the same: one lowered later must not strand what is stored.
        """

    def digest(self, value: object) -> bytes:
        """Return 32 bytes, the same for the same value in every process and release.

        It tells whether a second enqueue under one idempotency key carries the same body.
        The order of dict keys does not matter; types do (1, 1.0, True and "1" are four
        values). Raise what ``encode`` raises, but for the size.
        """


class JsonCodec:
    """Strict JSON in UTF-8, with dates, UUIDs, decimals, bytes, and the enums and dataclasses it is told of.

    *types* are those classes, or a mapping from the name each is stored under to the
    class. After renaming a class, map both names to it until no job is stored under
    the old one; the first name is written. No class is ever imported by its name.
    An aware datetime keeps its offset, not its zone; a dataclass, what its constructor takes.

    >>> JsonCodec().encode({"day": date(2024, 2, 29), "n": 1}, context=b"")
    b'{"day":{"$date":"2024-02-29"},"n":1}'
    >>> JsonCodec().encode({"items": [{"price": float("nan")}]}, context=b"")
    Traceback (most recent call last):
        ...
    taskharbor.core.errors.PayloadNotEncodable: $.items[0].price: not a finite number
    """

    def __init__(self, types: Iterable[type] | Mapping[str, type] = (), *, limit: int = MAX_BYTES) -> None:
        classes = _by_name(types)
        self._limit = limit
        self._to_json = _writing_walk(classes)
        self._from_json = _Reader(classes).walk

    def encode(self, value: object, *, context: bytes) -> bytes:  # noqa: ARG002  plain JSON opens anywhere
        data = self._dump(value, _AS_GIVEN)
        if len(data) > self._limit:
            raise PayloadTooLarge(len(data), self._limit)
        return data

    def decode(self, data: bytes, *, context: bytes) -> Any:  # noqa: ARG002  as in encode
        try:
            text = data.decode()
            parsed = _PARSER.decode(text)
            return parsed if _needs_no_walk(text) else self._from_json(parsed)
        except _Refused as refused:
            raise PayloadNotDecodable(": ".join(refused.explained())) from refused.__cause__
        except (RecursionError, ValueError) as error:  # not UTF-8, not JSON, or no stack left
            raise PayloadNotDecodable(_TOO_DEEP if isinstance(error, RecursionError) else str(error)) from None

    def digest(self, value: object) -> bytes:
        return hashlib.sha256(self._dump(value, _SORTED)).digest()

    def _dump(self, value: object, encoder: json.JSONEncoder) -> bytes:
        try:
            return encoder.encode(self._to_json(value)).encode()
        except _Refused as refused:
            raise PayloadNotEncodable(*refused.explained()) from None
        except (RecursionError, ValueError) as error:  # no stack left, or Python's limit on digits was lowered
            raise PayloadNotEncodable("$", _TOO_DEEP if isinstance(error, RecursionError) else str(error)) from None


class _Walk:
    """Copies a value, giving every part of it to the step for its exact type.

    The copy costs no more than finding out whether one is needed, and what was
    checked is what gets written even while another thread changes the original.
    """

    def __init__(self, special_key: Callable[[Any], str]) -> None:
        self._special_key = special_key
        self.steps: dict[type, _Step] = {
            type(None): lambda value, _: value,
            bool: lambda value, _: value,
            str: _text,
            int: _int,
            float: _float,
            list: self.items,
            dict: lambda value, depth: self.pairs(value, value.items(), depth),
        }

    def __call__(self, value: object) -> Any:
        return self.steps.get(type(value), _unknown)(value, 1)

    def items(self, items: list[Any], depth: int) -> list[Any]:
        if depth > MAX_DEPTH:
            _refuse(_TOO_DEEP)
        steps, copy = self.steps, list[Any]()
        try:
            for item in items:
                copy.append(steps.get(type(item), _unknown)(item, depth + 1))
        except _Refused as refused:
            refused.trail.append((items, f"[{len(copy)}]"))
            raise
        return copy

    def pairs(self, owner: object, pairs: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            _refuse(_TOO_DEEP)
        steps, copy, key = self.steps, dict[str, Any](), None
        try:
            for key, item in pairs:
                name = key if type(key) is str and key.isascii() and "$" not in key else self._special_key(key)
                copy[name] = steps.get(type(item), _unknown)(item, depth + 1)
        except _Refused as refused:
            refused.trail.append((owner, _step_to(key)))
            raise
        return copy


class _Refused(Exception):
    """Carries a refusal out of a walk; each container it passes adds itself and the step that led on from it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.trail: list[tuple[object, str]] = []

    def explained(self) -> tuple[str, str]:
        """Return the path of what was refused, and why. A container found inside itself is a cycle, not depth."""
        path, above = "$", dict[int, str]()
        for container, step in reversed(self.trail):
            if id(container) in above:
                return _cut(path), f"a cycle: the same object as {_cut(above[id(container)])}"
            above[id(container)] = path
            path += step
        return _cut(path), str(self)


def _refuse(why: str) -> NoReturn:
    raise _Refused(why)


def _step_to(key: object) -> str:
    """Return the piece of a path that leads to *key*; none for what cannot be a key, which is its dict's own fault."""
    if type(key) is not str:
        return ""
    return f".{key}" if key.isidentifier() and len(key) <= _MAX_NAME else f"[{_short(key)}]"


def _short(name: str) -> str:
    return repr(name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "…")


def _text(value: str, _depth: int = 0) -> str:
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        _refuse("a lone surrogate, which has no UTF-8 form")
    return value


def _int(value: int, _depth: int = 0) -> int:
    return value if value.bit_length() <= _MAX_BITS else _refuse(f"an int of over {_MAX_BITS:,} bits: pass a str")


def _float(value: float, _depth: int = 0) -> float:
    return value if math.isfinite(value) else _refuse("not a finite number")


def _decimal(value: Decimal | str) -> Decimal:
    return number if (number := Decimal(value)).is_finite() else _refuse("not a finite number")


def _written_moment(value: datetime) -> str:
    if (value.utcoffset() or timedelta()).microseconds:  # Python itself reads +00:00:00.000001 as UTC
        _refuse("an offset of a fraction of a second")
    return value.isoformat()


def _unknown(value: object, _depth: int) -> NoReturn:
    kind, name = type(value), type(value).__name__
    if isinstance(value, Enum) or is_dataclass(kind):
        _refuse(f"{name} is not registered: JsonCodec(types=[{name}])")
    if isinstance(value, tuple | set | frozenset):
        _refuse(f"a {name} would come back as a list: use a list")
    for known in _ACCEPTED:
        if isinstance(value, known):
            _refuse(f"{name} would come back as {known.__name__}: pass a plain {known.__name__}")
    accepted = ", ".join(known.__name__ for known in _ACCEPTED)
    _refuse(f"a {kind.__qualname__} has no JSON form; accepted are None, {accepted}, registered enums and dataclasses")


def _writing_walk(classes: Mapping[str, type]) -> _Walk:
    walk = _Walk(_written_key)
    for tag, (kind, write, _) in _SCALARS.items():
        walk.steps[kind] = partial(_write_scalar, tag, write)
    for name, cls in reversed([*classes.items()]):  # so that of several names the first stays
        if issubclass(cls, Enum):
            walk.steps[cls] = partial(_write_enum, name)
        else:
            walk.steps[cls] = partial(_write_dataclass, walk, name, _init_fields(cls))
    return walk


def _written_key(key: object) -> str:
    if type(key) is not str:
        _refuse(f"a key of type {type(key).__name__}: keys must be plain str")
    return f"${_text(key)}" if key.startswith("$") else _text(key)


def _write_scalar(tag: str, write: Callable[[Any], str], value: object, _depth: int) -> dict[str, str]:
    return {tag: write(value)}


def _write_enum(name: str, member: Enum, _depth: int) -> dict[str, list[str]]:
    if member._name_ not in type(member).__members__:
        _refuse(f"flags of {name} that have no name together: pass a list of members")
    return {"$enum": [name, member._name_]}


def _write_dataclass(walk: _Walk, name: str, names: list[str], value: object, depth: int) -> dict[str, list[object]]:
    return {"$dataclass": [name, walk.pairs(value, [(each, getattr(value, each)) for each in names], depth)]}


class _Reader:
    def __init__(self, classes: Mapping[str, type]) -> None:
        self._enums = {name: cls for name, cls in classes.items() if issubclass(cls, Enum)}
        self._dataclasses = {name: cls for name, cls in classes.items() if name not in self._enums}
        self._tags: dict[str, _Step] = {tag: partial(_read_scalar, tag, read) for tag, (_, _, read) in _SCALARS.items()}
        self._tags |= {"$enum": self._enum, "$dataclass": self._dataclass}
        self.walk = _Walk(_read_key)
        self.walk.steps[dict] = self._object

    def _object(self, value: dict[str, Any], depth: int) -> object:
        if len(value) == 1:
            [(key, held)] = value.items()
            if key in self._tags:
                return self._tags[key](held, depth)
        return self.walk.pairs(value, value.items(), depth)

    def _enum(self, held: object, _depth: int) -> Enum:
        name, member = _named("$enum", held, str, self._enums)
        members = self._enums[name].__members__
        return members[member] if member in members else _refuse(f"{name} has no member {_short(member)}")

    def _dataclass(self, held: object, depth: int) -> object:
        name, stored = _named("$dataclass", held, dict, self._dataclasses)
        values = self.walk.pairs(stored, stored.items(), depth)
        try:
            return self._dataclasses[name](**values)
        except Exception as error:  # the constructor is the user's: it may raise anything
            why = f"{name} does not take the stored fields: {Failure.of(error)}"
            raise _Refused(why) from error


def _read_key(key: str) -> str:
    if key.startswith("$") and not key.startswith("$$"):
        _refuse("no tag known here, or not alone in its object; a key of one's own takes a second $")
    return _text(key.removeprefix("$"))


def _read_scalar(tag: str, read: Callable[[str], object], held: object, _depth: int) -> object:
    with suppress(ValueError, ArithmeticError):  # the latter from Decimal
        if isinstance(held, str):
            return read(held)
    return _refuse(f"what {tag} holds is malformed")


def _named(tag: str, held: object, kind: type, classes: Mapping[str, type]) -> tuple[str, Any]:
    match held:
        case [str(name), content] if isinstance(content, kind):
            if name in classes:
                return name, content
            name = _short(name)
            _refuse(f"no class {name} is registered: JsonCodec(types=[…]), or types={{{name}: …}} if it was renamed")
    return _refuse(f"what {tag} holds is malformed")


def _needs_no_walk(text: str) -> bool:
    """Tell, by mere searching, that *text* holds neither a tag nor an escaped surrogate nor too many levels."""
    return "$" not in text and "\\u" not in text and text.count("[") + text.count("{") <= MAX_DEPTH


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        _refuse(f"an object has the key {_short(key)} twice")
    return made


def _parsed_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:  # before reading it, which takes time by the square of its length
        _refuse(f"an int of {len(digits):,} digits, over {_MAX_BITS:,} bits")
    return _int(int(digits))


def _by_name(types: Iterable[type] | Mapping[str, type]) -> dict[str, type]:
    named = types.items() if isinstance(types, Mapping) else [(getattr(cls, "__name__", "?"), cls) for cls in types]
    classes: dict[str, type] = {}
    for name, cls in named:
        if not isinstance(cls, type) or not (issubclass(cls, Enum) or is_dataclass(cls)):
            _misuse(repr(cls), "must be the class of an enum or a dataclass, as in JsonCodec(types=[Color])")
        if classes.setdefault(name, cls) is not cls:
            _misuse(name, "names two classes; pass a mapping from names of your own choice to classes")
    return classes


def _init_fields(cls: Any) -> list[str]:
    names = [field.name for field in fields(cls) if field.init]
    try:
        inspect.signature(cls).bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        _misuse(cls.__name__, f"could not be built again from its fields ({error})")
    return names


def _misuse(value: str, rule: str) -> NoReturn:
    raise UsageError(Problem(field="types", value=value, rule=rule)) from None


_Step = Callable[[Any, int], Any]  # takes a value of one exact type and how deep it stands
_MAX_BITS: Final = 8192  # Python refuses to read an int of more than 4,300 digits, some 14,000 bits
_MAX_NAME: Final = 60
_cut = partial(storable, limit=200)
_MAX_DIGITS: Final = len(str(-(2**_MAX_BITS)))
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels, or than the stack has room for"
# What JSON lacks, by its tag: the type, how it becomes a str, how it comes back.
_SCALARS: Final[Mapping[str, tuple[type, Callable[[Any], str], Callable[[str], object]]]] = {
    "$datetime": (datetime, _written_moment, datetime.fromisoformat),
    "$date": (date, date.isoformat, date.fromisoformat),
    "$uuid": (UUID, str, UUID),
    "$decimal": (Decimal, lambda value: str(_decimal(value)), _decimal),
    "$bytes": (bytes, lambda value: b64encode(value).decode(), partial(b64decode, validate=True)),
}
_ACCEPTED: Final = (bool, int, float, str, list, dict, *(kind for kind, _, _ in _SCALARS.values()))
_encoder = partial(json.JSONEncoder, ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_AS_GIVEN: Final = _encoder()
_SORTED: Final = _encoder(sort_keys=True)
_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_parsed_int,
    parse_float=lambda digits: _float(float(digits)),
    parse_constant=lambda name: _refuse(f"{name} is not JSON"),
)
