"""Encode payloads and results as bytes and decode them without loss.

Other languages read the JSON form too, and the HTTP API stores JSON values that it receives,
so a JSON value is written as itself. Types that JSON lacks become an object with one key that
begins with ``$``. A user's own key that begins with ``$`` gets a second one::

    {"$datetime": "2024-02-29T12:00:00+01:00"}      {"$enum": ["Color", "RED"]}
    {"$date": "2024-02-29"}                         {"$dataclass": ["Point", {"x": 1, "y": 2}]}
    {"$decimal": "9.90"}                            {"$bytes": "aGk="}
    {"$uuid": "0190163d-…"}                         {"$$mine": "the user's own key $mine"}

A value that would not decode to an equal value of the same type is refused at encoding, with
its path: the author of the call sees an error at enqueue, but not one in a worker.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from taskharbor.core.errors import (
    CodecMismatch,
    PayloadNotDecodable,
    PayloadNotEncodable,
    PayloadTooLarge,
    Problem,
    UsageError,
)
from taskharbor.core.tagged_json import (
    MAX_BITS,
    MAX_DEPTH,
    MAX_DIGITS,
    TOO_DEEP,
    NotRepresentable,
    TagReader,
    checked_float,
    checked_int,
    reject,
    short,
    tree_encoder,
    types_by_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_BYTES: Final = 1_048_576
"""The default size limit of an encoded payload or result."""
CODEC_SETTING: Final = "codec"
"""The setting in which a store keeps the name of the codec of its payloads."""
MAX_NAME_CHARS: Final = 200


class Codec(Protocol):
    """Encodes values as the bytes that a store keeps, and decodes them.

    All threads of a process share one codec, and other processes read its bytes days later. So
    keep no state between calls, and keep reading what earlier releases wrote.

    A store records the name of the codec of its payloads and refuses a process with another
    codec. ``name`` (text, an attribute or a property) identifies the format that ``encode``
    writes. Keep it when keys are rotated or types are added. A codec that reads several formats
    has the name of the one that it writes. Without a ``name`` that belongs to its ``encode``, a
    codec is named after its class: see `codec_name`.

    A codec may also have a method ``stores(kind: type) -> bool``. Then a task whose parameters have
    a class that it does not store is refused when it is defined, not when it is enqueued.
    """

    def encode(self, value: object, *, context: bytes) -> bytes:
        """Return bytes that ``decode`` turns into an equal value of the same types.

        Raise ``PayloadNotEncodable``, with the path of a value that would not decode to itself,
        or ``PayloadTooLarge``. *context* identifies the owner of the bytes: the job's id and
        type, and whether they are its payload or its result. A codec may bind the bytes to the
        context, so that they decode nowhere else, or ignore it.
        """

    def decode(self, data: bytes, *, context: bytes) -> Any:
        """Return the value that was encoded with the same *context*.

        Raise only ``PayloadNotDecodable``, whatever *data* holds. Do not apply a size limit: a
        limit that was lowered must not make stored data unreadable.
        """

    def digest(self, value: object) -> bytes:
        """Return 32 bytes, the same for the same value in every process and release.

        The digest shows whether a second enqueue with the same idempotency key has the same
        payload. The order of dict keys does not matter; types do (1, 1.0, True and "1" are four
        values). Raise what ``encode`` raises, except for the size.
        """


class JsonCodec:
    """Strict JSON in UTF-8, with dates, UUIDs, decimals, bytes, and registered enums and dataclasses.

    *types* are the registered classes, or a mapping from stored names to classes. After renaming
    a class, map both names to it until no job is stored under the old one; the first name is
    written. No class is ever imported by its name. An aware datetime keeps its offset but not its
    zone. A dataclass keeps its constructor arguments.

    >>> from datetime import date
    >>> JsonCodec().encode({"day": date(2024, 2, 29), "n": 1}, context=b"")
    b'{"day":{"$date":"2024-02-29"},"n":1}'
    >>> JsonCodec().encode({"items": [{"price": float("nan")}]}, context=b"")
    Traceback (most recent call last):
        ...
    taskharbor.core.errors.PayloadNotEncodable: $.items[0].price: not a finite number
    """

    name: Final = "json"

    def __init__(self, types: Iterable[type] | Mapping[str, type] = (), *, limit: int = MAX_BYTES) -> None:
        classes = types_by_name(types)
        self.limit = limit
        self._to_json = tree_encoder(classes)
        self._from_json = TagReader(classes).walk

    def encode(self, value: object, *, context: bytes) -> bytes:  # noqa: ARG002  JSON is not bound to its context
        try:
            data = _written_flat(value) or "".join(_IN_ORDER(self._to_json(value), 0)).encode()
        except (NotRepresentable, RecursionError, ValueError) as error:
            raise _refusal(error) from None
        if len(data) > self.limit:
            raise PayloadTooLarge(len(data), self.limit)
        return data

    def encode_with_digest(self, value: object) -> tuple[bytes, bytes]:
        """Return the results of ``encode`` and ``digest``, in three quarters of the time."""
        try:
            written = self._to_json(value)
            data, ordered = "".join(_IN_ORDER(written, 0)).encode(), "".join(_SORTED(written, 0)).encode()
        except (NotRepresentable, RecursionError, ValueError) as error:
            raise _refusal(error) from None
        if len(data) > self.limit:
            raise PayloadTooLarge(len(data), self.limit)
        return data, hashlib.sha256(ordered).digest()

    def stores(self, kind: type) -> bool:
        """Return whether values of exactly this class can be encoded. Tasks are checked with it when defined."""
        return kind in self._to_json.steps

    def decode(self, data: bytes, *, context: bytes) -> Any:  # noqa: ARG002  as in encode
        try:
            text = data.decode()
            if (flat := _parsed_flat(text)) is not None:
                return flat
            parsed = _PARSER.decode(text)
            return parsed if _needs_no_walk(text) else self._from_json(parsed)
        except NotRepresentable as refused:
            raise PayloadNotDecodable(": ".join(refused.explained())) from refused.__cause__
        except (RecursionError, ValueError) as error:  # not UTF-8, not JSON, or the stack is exhausted
            raise PayloadNotDecodable(TOO_DEEP if isinstance(error, RecursionError) else str(error)) from None

    def digest(self, value: object) -> bytes:
        try:
            return hashlib.sha256("".join(_SORTED(self._to_json(value), 0)).encode()).digest()
        except (NotRepresentable, RecursionError, ValueError) as error:
            raise _refusal(error) from None


def encode_with(codec: Codec, value: object, *, context: bytes) -> bytes:
    """Return the bytes that *codec* writes for *value*. Raise `PayloadNotEncodable` if it returns something else.

    A store could not keep it, and a group commit would fail for all callers.
    """
    data: object = codec.encode(value, context=context)
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    if not isinstance(data, bytes):
        raise PayloadNotEncodable("$", f"its codec returned a {type(data).__name__}, not bytes")
    return data


def codec_name(codec: Codec) -> str:
    """Return the name under which a store records *codec*.

    This is ``codec.name``, unless a class overrides ``encode`` but inherits its name from another
    class. Such a class, and one without a name, is named by its ``__qualname__``. The module is
    left out: the same file may be ``__main__`` in one process and not in another.

    >>> codec_name(JsonCodec())
    'json'
    """
    return check_name(_given_name(codec))


def can_store(codec: Codec, kind: type) -> bool:
    """Return whether *codec* can encode values of the class *kind*; true if that is only known at each encode.

    ``codec.stores`` decides, unless a class overrides ``encode`` but inherits ``stores`` from another class.
    """
    for each in type(codec).__mro__:
        if "stores" in vars(each):
            return bool(getattr(codec, "stores")(kind))  # noqa: B009  not part of the protocol
        if "encode" in vars(each):
            return True
    return True


def check_name(name: object) -> str:
    """Return *name* if it is a valid codec name, or raise `UsageError`."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS:
        rule = f"must be text of 1 to {MAX_NAME_CHARS} printable characters"
        raise UsageError(Problem(field="name of a codec", value=short(repr(name)), rule=rule))
    return name


def _given_name(codec: Codec) -> Any:
    if "name" in getattr(codec, "__dict__", {}):
        return vars(codec)["name"]
    for kind in type(codec).__mro__:
        if "name" in vars(kind):
            return getattr(codec, "name")  # noqa: B009  not part of the protocol
        if "encode" in vars(kind):
            return kind.__qualname__
    return type(codec).__qualname__


def check_codec(recorded: str, codec: Codec) -> None:
    """Raise `CodecMismatch` unless *codec* has the name that the store has *recorded*."""
    if recorded != (ours := codec_name(codec)):
        raise CodecMismatch(recorded, ours)


def _refusal(error: Exception) -> PayloadNotEncodable:
    if isinstance(error, NotRepresentable):
        return PayloadNotEncodable(*error.explained())
    # The stack is exhausted, or Python's limit on int digits was lowered.
    return PayloadNotEncodable("$", TOO_DEEP if isinstance(error, RecursionError) else str(error))


def strict_json(data: bytes) -> Any:
    """Parse *data* by the rules of `JsonCodec`, but keep every tag as it is.

    For untrusted input: a `JsonCodec` can store every value that this accepts. Raises `PayloadNotDecodable`.
    """
    try:
        text = data.decode()
        parsed = _PARSER.decode(text)
        if not _needs_no_walk(text):
            _STRICT(parsed)
    except NotRepresentable as refused:
        raise PayloadNotDecodable(": ".join(refused.explained())) from None
    except (RecursionError, ValueError) as error:
        raise PayloadNotDecodable(TOO_DEEP if isinstance(error, RecursionError) else str(error)) from None
    return parsed


def _needs_no_walk(text: str) -> bool:
    """Return whether *text* certainly holds no tag, no escaped surrogate and not too many levels."""
    return "$" not in text and "\\u" not in text and text.count("[") + text.count("{") <= MAX_DEPTH


def _written_flat(value: object) -> bytes | None:
    """Return the JSON of a dict of scalars, in three quarters of the time; None if a `TreeWalk` must write it.

    It is checked without a call of Python for each item. What the walk refuses or writes differently is left to it.
    """
    if type(value) is not dict:
        return None
    copy = value.copy()  # as in a walk: the checked value is the one written
    if not (_SCALARS.issuperset(map(type, copy.values())) and _KEYS.issuperset(map(type, copy))):
        return None
    try:
        text = "".join(_IN_ORDER(copy, 0))
        if len(text) <= _MAX_FLAT_CHARS:
            is_plain = '"$' not in text
        else:
            is_plain = "$" not in "".join(copy) and not any(map(_is_wide, copy.values()))
        return text.encode() if is_plain else None
    except ValueError:  # a float that is not finite, or a lone surrogate
        return None


def _is_wide(value: object) -> bool:
    return type(value) is int and value.bit_length() > MAX_BITS


def _parsed_flat(text: str) -> dict[str, Any] | None:
    """Return an object of scalars without tags, in half of the time of `_PARSER`; None if `_PARSER` must parse it.

    Its hooks are calls of Python for each object and each int. Here a short text excludes large ints, and counts
    exclude a key that stands twice: each key has a colon and two quotes, and each text among the values two quotes.
    """
    is_flat = text.rfind("{") == 0 and "[" not in text
    if not is_flat or len(text) > _MAX_FLAT_CHARS or "$" in text or "\\" in text:
        return None
    try:
        parsed, end = _SCAN_FLAT(text, 0)
    except (NotRepresentable, StopIteration, ValueError):
        return None
    if end < len(text):
        return None
    if text.count(":") == len(parsed):
        return parsed
    quotes = 2 * (len(parsed) + [*map(type, parsed.values())].count(str))
    return parsed if text.count('"') == quotes else None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        reject(f"an object has the key {short(key)} twice")
    return result


def _parsed_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:  # check before int(), whose time is quadratic in the length
        reject(f"an int of {len(digits):,} digits, over {MAX_BITS:,} bits")
    return checked_int(int(digits))


def _parsed_float(digits: str) -> float:
    return checked_float(float(digits))


def _parsed_constant(name: str) -> NoReturn:
    reject(f"{name} is not JSON")


def _encoder(*, sort_keys: bool) -> Callable[[object, int], Iterable[str]]:
    """Return a function that writes JSON. ``json.JSONEncoder`` builds one per value, which is half of the cost."""
    form = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=sort_keys
    )
    if c_make_encoder is None:  # not every Python implementation has it
        return lambda value, _: form.iterencode(value)
    skip_keys = allow_nan = False
    encoder: Callable[[object, int], Iterable[str]] = c_make_encoder(
        None, form.default, encode_basestring, None, form.key_separator, form.item_separator, sort_keys, skip_keys,
        allow_nan,
    )  # fmt: skip
    return encoder


_IN_ORDER: Final = _encoder(sort_keys=False)
_SORTED: Final = _encoder(sort_keys=True)
_STRICT: Final = tree_encoder({})
_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_parsed_int,
    parse_float=_parsed_float,
    parse_constant=_parsed_constant,
)
_FLAT_PARSER: Final[Any] = json.JSONDecoder(parse_float=_parsed_float, parse_constant=_parsed_constant)
_SCAN_FLAT: Final[Callable[[str, int], tuple[dict[str, Any], int]]] = _FLAT_PARSER.scan_once
_SCALARS: Final = frozenset({type(None), bool, int, float, str})
_KEYS: Final = frozenset({str})
_MAX_FLAT_CHARS: Final = MAX_DIGITS - 2  # an int of this many digits has at most MAX_BITS bits
