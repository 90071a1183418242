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
import json
from collections import Counter
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Final, Protocol

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
"""The most bytes of an encoded payload or result, unless the codec was given another limit."""
CODEC_SETTING: Final = "codec"
"""The setting of a store that holds the name of the codec its payloads are written with."""
MAX_NAME_CHARS: Final = 200


class Codec(Protocol):
    """Turns values into the bytes a store keeps, and back.

    One codec serves all threads of a process, and other processes read what it wrote,
    days later: keep no state between calls, and go on reading what earlier releases wrote.

    A store records the codec that its payloads are written with, by name, and a process with
    another one is refused. ``name`` (text, an attribute or a property) says what ``encode``
    writes. It stays the same when keys are rotated or types are added. A codec that reads
    several formats has the name of the one that it writes. Without a ``name`` that belongs to
    its ``encode``, a codec is called by its class: see `codec_name`.
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
        self._limit = limit
        self._to_json = tree_encoder(classes)
        self._from_json = TagReader(classes).walk

    def encode(self, value: object, *, context: bytes) -> bytes:  # noqa: ARG002  plain JSON opens anywhere
        try:
            data = "".join(_AS_GIVEN(self._to_json(value), 0)).encode()
        except (NotRepresentable, RecursionError, ValueError) as error:
            raise _refusal(error) from None
        if len(data) > self._limit:
            raise PayloadTooLarge(len(data), self._limit)
        return data

    def encode_with_digest(self, value: object) -> tuple[bytes, bytes]:
        """Return what ``encode`` and ``digest`` return, in three quarters of the time."""
        try:
            written = self._to_json(value)
            data, ordered = "".join(_AS_GIVEN(written, 0)).encode(), "".join(_SORTED(written, 0)).encode()
        except (NotRepresentable, RecursionError, ValueError) as error:
            raise _refusal(error) from None
        if len(data) > self._limit:
            raise PayloadTooLarge(len(data), self._limit)
        return data, hashlib.sha256(ordered).digest()

    def decode(self, data: bytes, *, context: bytes) -> Any:  # noqa: ARG002  as in encode
        try:
            text = data.decode()
            parsed = _PARSER.decode(text)
            return parsed if _needs_no_walk(text) else self._from_json(parsed)
        except NotRepresentable as refused:
            raise PayloadNotDecodable(": ".join(refused.explained())) from refused.__cause__
        except (RecursionError, ValueError) as error:  # not UTF-8, not JSON, or no stack left
            raise PayloadNotDecodable(TOO_DEEP if isinstance(error, RecursionError) else str(error)) from None

    def digest(self, value: object) -> bytes:
        try:
            return hashlib.sha256("".join(_SORTED(self._to_json(value), 0)).encode()).digest()
        except (NotRepresentable, RecursionError, ValueError) as error:
            raise _refusal(error) from None


def codec_name(codec: Codec) -> str:
    """Return the name under which a store records *codec*.

    It is ``codec.name``, unless a class overrides ``encode`` and inherits the name of another
    ``encode``: such a class, like one without any name, is called by its ``__qualname__``. The
    module is left out, since the same file is ``__main__`` in one process and not in another.

    >>> codec_name(JsonCodec())
    'json'
    """
    return check_name(_given_name(codec))


def check_name(name: object) -> str:
    """Return *name* if a codec can have it, or raise `UsageError`."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS:
        rule = f"it is text of 1 to {MAX_NAME_CHARS} printable characters"
        raise UsageError(Problem(field="name of a codec", value=short(repr(name)), rule=rule))
    return name


def _given_name(codec: Codec) -> Any:
    if "name" in getattr(codec, "__dict__", {}):
        return vars(codec)["name"]
    for kind in type(codec).__mro__:
        if "name" in vars(kind):
            return getattr(codec, "name")  # noqa: B009  the protocol does not ask for it
        if "encode" in vars(kind):
            return kind.__qualname__
    return type(codec).__qualname__


def check_codec(recorded: str, codec: Codec) -> None:
    """Raise `CodecMismatch` unless *codec* writes what the store has *recorded*."""
    if recorded != (ours := codec_name(codec)):
        raise CodecMismatch(recorded, ours)


def _refusal(error: Exception) -> PayloadNotEncodable:
    if isinstance(error, NotRepresentable):
        return PayloadNotEncodable(*error.explained())
    # No stack is left, or Python's limit on digits was lowered.
    return PayloadNotEncodable("$", TOO_DEEP if isinstance(error, RecursionError) else str(error))


def strict_json(data: bytes) -> Any:
    """Return the JSON value that *data* is, by the rules of `JsonCodec` but with every tag left as it stands.

    For what comes from outside: whatever this accepts, a `JsonCodec` can store. Raises `PayloadNotDecodable`.
    """
    try:
        text = data.decode()
        parsed = _PARSER.decode(text)
        if not _needs_no_walk(text):
            _PLAIN(parsed)
    except NotRepresentable as refused:
        raise PayloadNotDecodable(": ".join(refused.explained())) from None
    except (RecursionError, ValueError) as error:
        raise PayloadNotDecodable(TOO_DEEP if isinstance(error, RecursionError) else str(error)) from None
    return parsed


def _needs_no_walk(text: str) -> bool:
    """Tell, by mere searching, that *text* holds neither a tag nor an escaped surrogate nor too many levels."""
    return "$" not in text and "\\u" not in text and text.count("[") + text.count("{") <= MAX_DEPTH


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        reject(f"an object has the key {short(key)} twice")
    return made


def _parsed_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:  # before reading it, which takes time by the square of its length
        reject(f"an int of {len(digits):,} digits, over {MAX_BITS:,} bits")
    return checked_int(int(digits))


def _encoder(*, sort_keys: bool) -> Callable[[object, int], Iterable[str]]:
    """Return what writes JSON. ``json.JSONEncoder`` makes a new one for each value, at half the cost of the whole."""
    form = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=sort_keys
    )
    if c_make_encoder is None:  # not every Python has it
        return lambda value, _: form.iterencode(value)
    skips_keys = takes_nan = False
    made: Callable[[object, int], Iterable[str]] = c_make_encoder(
        None, form.default, encode_basestring, None, form.key_separator, form.item_separator, sort_keys, skips_keys,
        takes_nan,
    )  # fmt: skip
    return made


_AS_GIVEN: Final = _encoder(sort_keys=False)
_SORTED: Final = _encoder(sort_keys=True)
_PLAIN: Final = tree_encoder({})
_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_parsed_int,
    parse_float=lambda digits: checked_float(float(digits)),
    parse_constant=lambda name: reject(f"{name} is not JSON"),
)
