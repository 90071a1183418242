from __future__ import annotations

import doctest
import json
import sys
from collections import OrderedDict
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from traceback import walk_stack
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core import codec as module
from taskharbor.core.codec import MAX_BYTES, JsonCodec, check_codec, codec_name, encode_with
from taskharbor.core.errors import CodecMismatch, PayloadNotDecodable, PayloadNotEncodable, PayloadTooLarge, UsageError
from taskharbor.core.tagged_json import MAX_DEPTH
from taskharbor.core.text import is_storable

few = settings(max_examples=60, deadline=None)


class Color(Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796  an alias of RED
    BLUE = (0, 0, 255)


class Level(IntEnum):
    NONE = 0
    LOUD = 11


class Unit(StrEnum):
    EMPTY = ""
    METRE = "m"


class Right(Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: Any
    y: Any = None
    length: int = field(init=False, default=2)


@dataclass
class Node:
    name: str
    parent: Node | None = None


@dataclass
class Unregistered:
    name: str


class Name(str):
    __slots__ = ()


class Pair(NamedTuple):
    left: int
    right: int


CODEC: Final = JsonCodec(types=[Color, Level, Unit, Right, Point, Node])
WIDEST: Final = 2**8192 - 1


def encoded(value: object) -> bytes:
    return CODEC.encode(value, context=b"")


def decoded(data: bytes) -> Any:
    return CODEC.decode(data, context=b"")


def nested(levels: int, core: object = 0) -> object:
    value = core
    for _ in range(levels):
        value = [value]
    return value


offsets = st.integers(-86_399, 86_399).map(lambda seconds: timedelta(seconds=seconds))
moments = st.datetimes(timezones=st.none() | st.builds(timezone, offsets))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
keys = texts | st.sampled_from(["$", "$$", "$date", "$$date", "$enum", "$dataclass", "a$b"])
plain_scalars = (
    st.none() | st.booleans() | st.integers(-WIDEST, WIDEST) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
rich_scalars = st.one_of(
    moments.map(lambda moment: moment.replace(fold=0)),
    st.dates(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.binary(max_size=8),
    st.sampled_from([*Color, *Level, *Unit, *Right]),
)


def trees(leaves: st.SearchStrategy[Any], *, keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda parts: st.lists(parts, max_size=4) | st.dictionaries(keys, parts, max_size=4),
        max_leaves=12,
    )


plain_values = trees(plain_scalars, keys=texts.filter(lambda key: not key.startswith("$")))
values = st.recursive(
    plain_scalars | rich_scalars,
    lambda parts: (
        st.lists(parts, max_size=4)
        | st.dictionaries(keys, parts, max_size=4)
        | st.builds(lambda x, y: Point(x=x, y=y), parts, parts)
    ),
    max_leaves=12,
)


@few
@given(values)
def test_an_accepted_value_decodes_to_an_equal_value_of_the_same_type(value: object) -> None:
    back = decoded(encoded(value))

    assert back == value
    assert repr(back) == repr(value)


@few
@given(plain_values)
def test_a_json_value_is_stored_as_standard_json(value: object) -> None:
    as_anyone_would = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    assert encoded(value) == as_anyone_would
    assert repr(decoded(json.dumps(value, indent=2).encode())) == repr(value)


FORMS: Final[dict[str, tuple[object, str]]] = {
    "text": ("Grüße \x00 \U0001f600", '"Grüße \\u0000 \U0001f600"'),
    "float": ([1.0, -0.0, 1e22, 5e-324], "[1.0,-0.0,1e+22,5e-324]"),
    "naive datetime": (datetime(2024, 2, 29, 12, 0, 0, 1), '{"$datetime":"2024-02-29T12:00:00.000001"}'),  # noqa: DTZ001
    "aware datetime": (datetime(2024, 2, 29, tzinfo=UTC), '{"$datetime":"2024-02-29T00:00:00+00:00"}'),
    "date": (date(1, 1, 1), '{"$date":"0001-01-01"}'),
    "uuid": (UUID(int=1), '{"$uuid":"00000000-0000-0000-0000-000000000001"}'),
    "decimal": (Decimal("-9.90E+3"), '{"$decimal":"-9.90E+3"}'),
    "bytes": (b"hi\xff", '{"$bytes":"aGn/"}'),
    "enum": (Color.BLUE, '{"$enum":["Color","BLUE"]}'),
    "alias of an enum member": (Color.CRIMSON, '{"$enum":["Color","RED"]}'),
    "dataclass": (
        Point(x=[Level.NONE], y=Unit.EMPTY),
        '{"$dataclass":["Point",{"x":[{"$enum":["Level","NONE"]}],"y":{"$enum":["Unit","EMPTY"]}}]}',
    ),
    "escaped keys": ({"$": 1, "$date": {"$$a": 2}, "b$": 3}, '{"$$":1,"$$date":{"$$$a":2},"b$":3}'),
}


@pytest.mark.parametrize(("value", "form"), FORMS.values(), ids=FORMS)
def test_each_tagged_type_has_its_documented_form(value: object, form: str) -> None:
    data = encoded(value)

    assert data.decode() == form
    assert repr(decoded(data)) == repr(value)


def test_an_aware_datetime_keeps_its_offset() -> None:
    moment = datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))

    assert decoded(encoded(moment)).utcoffset() == timedelta(hours=5, minutes=45)


REFUSED: Final[dict[str, tuple[object, str, str]]] = {
    "nan": ({"items": [0, 1, 2, {"price": float("nan")}]}, "$.items[3].price", "not a finite number"),
    "infinity": ([float("-inf")], "$[0]", "not a finite number"),
    "decimal nan": ({"a b": Decimal("sNaN")}, "$['a b']", "not a finite number"),
    "decimal infinity": ({"größe": Decimal("Infinity")}, "$.größe", "not a finite number"),
    "surrogate": ({"name": "x\ud800"}, "$.name", "lone surrogate"),
    "surrogate in a key": ({"a": {"\udfff": 1}}, "$.a['\\udfff']", "lone surrogate"),
    "surrogate in an escaped key": ({"$\udfff": 1}, "$['$\\udfff']", "lone surrogate"),
    "odd offset": (datetime(2024, 2, 29, tzinfo=timezone(timedelta(microseconds=1))), "$", "a fraction of a second"),
    "int key": ({"a": {1: 2}}, "$.a", "a key of type int: keys must be str"),
    "enum key": ({Unit.METRE: 2}, "$", "a key of type Unit"),
    "quote in a key": ({"it's": {1}}, '$["it\'s"]', "use a list"),
    "empty key": ({"": {1}}, "$['']", "use a list"),
    "tuple": ({"xy": (1, 2)}, "$.xy", "a tuple would be read back as a list: use a list"),
    "named tuple": ([Pair(1, 2)], "$[0]", "use a list"),
    "set": ({1}, "$", "a set would be read back as a list: use a list"),
    "frozenset": (frozenset[int](), "$", "use a list"),
    "str subclass": ([Name("x")], "$[0]", "Name would be read back as str: pass a str"),
    "dict subclass": (OrderedDict(a=1), "$", "OrderedDict would be read back as dict: pass a dict"),
    "wide int": ({"n": WIDEST + 1}, "$.n", "over 8,192 bits: pass a str"),
    "wide negative int": ([-WIDEST - 1], "$[0]", "over 8,192 bits"),
    "unregistered enum": ({"c": Enum("Mood", "GLAD").GLAD}, "$.c", "JsonCodec(types=[Mood])"),  # type: ignore[attr-defined]
    "unregistered dataclass": (
        [Unregistered("x")],
        "$[0]",
        "Unregistered is not registered: JsonCodec(types=[Unregistered])",
    ),
    "inside a dataclass": ([Point(x={"y": {1}})], "$[0].x.y", "use a list"),
    "combined flags": ([Right.READ | Right.WRITE], "$[0]", "pass a list of members"),
    "no flags": ([Right(0)], "$[0]", "pass a list of members"),
    "class": ([Point], "$[0]", "type has no JSON form"),
    "fraction": (
        Fraction(1, 2),
        "$",
        "Fraction has no JSON form: convert it first, for example to a str. Values may be None, bool, int, float, str",
    ),
    "time": (time(12), "$", "time has no JSON form"),
    "bytearray": (bytearray(b"x"), "$", "bytes, or enums and dataclasses that are named in JsonCodec(types=[…])"),
    "generator": ({"gen": (n for n in [1])}, "$.gen", "generator has no JSON form"),
}


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_value_that_would_decode_differently_is_refused_with_its_path(value: object, path: str, reason: str) -> None:
    with pytest.raises(PayloadNotEncodable) as caught:
        encoded(value)
    with pytest.raises(PayloadNotEncodable) as undigested:
        CODEC.digest(value)

    assert caught.value.path == path
    assert reason in caught.value.reason
    assert str(undigested.value) == str(caught.value)


def test_a_refusal_is_storable_and_picklable_for_any_key() -> None:
    with pytest.raises(PayloadNotEncodable) as caught:
        encoded({"\ud800" * 1000: {"\x00" * 1000: {"x": {"y": {1}}}}})

    assert is_storable(str(caught.value))
    assert len(caught.value.path) <= 200


def test_a_long_path_keeps_its_beginning_and_its_end() -> None:
    value: object = {1}
    for n in range(100, 0, -1):
        value = {f"level{n}": value}

    with pytest.raises(PayloadNotEncodable) as caught:
        encoded(value)

    assert caught.value.path.startswith("$.level1.level2.")
    assert caught.value.path.endswith(".level99.level100")
    assert len(caught.value.path) <= 200


def test_the_largest_allowed_int_round_trips() -> None:
    assert decoded(encoded([WIDEST, -WIDEST])) == [WIDEST, -WIDEST]


def test_a_cycle_is_reported_as_a_cycle() -> None:
    loop: dict[str, Any] = {"inner": {"list": [0]}}
    loop["inner"]["list"].append(loop["inner"])

    with pytest.raises(PayloadNotEncodable, match=r"a cycle: the same object as \$\.inner$") as caught:
        encoded(loop)

    assert caught.value.path == "$.inner.list[1]"


def test_a_cycle_through_dataclasses_is_reported_as_a_cycle() -> None:
    child = Node("child", parent=Node("root"))
    assert child.parent is not None
    child.parent.parent = child

    with pytest.raises(PayloadNotEncodable, match=r"^\$\[0\]\.parent\.parent: a cycle: the same object as \$\[0\]$"):
        encoded([child])


def test_an_object_used_twice_is_not_a_cycle() -> None:
    shared = {"a": 1}

    assert decoded(encoded([shared, {"again": shared}])) == [{"a": 1}, {"again": {"a": 1}}]


@pytest.mark.parametrize("core", [0, "", UUID(int=1), Color.RED, "ü"])
def test_values_nest_as_deep_as_the_limit_and_no_deeper(core: object) -> None:
    deepest = nested(MAX_DEPTH, core)

    assert decoded(encoded(deepest)) == deepest
    with pytest.raises(PayloadNotEncodable, match="nested deeper than 200 levels"):
        encoded([deepest])


def test_a_dataclass_counts_as_one_level() -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = Point(x=value)

    assert decoded(encoded(value)) == value
    with pytest.raises(PayloadNotEncodable, match="nested deeper"):
        encoded(Point(x=value))


def test_a_call_near_the_stack_limit_is_refused_without_a_recursion_error() -> None:
    value, data = nested(MAX_DEPTH), encoded(nested(MAX_DEPTH, UUID(int=1)))
    limit = sys.getrecursionlimit()

    sys.setrecursionlimit(sum(1 for _ in walk_stack(None)) + MAX_DEPTH // 2)
    try:
        with pytest.raises(PayloadNotEncodable, match="than the stack allows"):
            encoded(value)
        with pytest.raises(PayloadNotDecodable, match="than the stack allows"):
            decoded(data)
    finally:
        sys.setrecursionlimit(limit)


def test_a_payload_at_the_limit_is_accepted_and_above_it_refused() -> None:
    largest = "x" * (MAX_BYTES - 2)

    assert len(encoded(largest)) == MAX_BYTES
    with pytest.raises(PayloadTooLarge) as caught:
        encoded(largest + "x")
    assert (caught.value.size, caught.value.limit) == (MAX_BYTES + 1, MAX_BYTES)


def test_the_limit_counts_bytes_and_not_characters() -> None:
    with pytest.raises(PayloadTooLarge):
        JsonCodec(limit=5).encode("üü", context=b"")


def test_stored_data_above_a_lowered_limit_can_still_be_read() -> None:
    data = JsonCodec().encode("x" * 100, context=b"")

    assert JsonCodec(limit=10).decode(data, context=b"") == "x" * 100


UNREADABLE: Final[dict[str, tuple[bytes, str]]] = {
    "nothing": (b"", "Expecting value"),
    "invalid utf-8": (b'"\xff"', "utf-8"),
    "trailing garbage": (b"{} {}", "Extra data"),
    "raw control character": (b'"\n"', "control character"),
    "nan": (b"[NaN]", "NaN is not JSON"),
    "infinity": (b"-Infinity", "-Infinity is not JSON"),
    "float out of range": (b'{"a":-1e999}', "not a finite number"),
    "same key twice": (b'[{"a":1,"b":2,"a":3}]', "the key 'a' twice"),
    "wide int": (b"%d" % (WIDEST + 1), "over 8,192 bits"),
    "very long int": (b"9" * 1_000_000, "an int of 1,000,000 digits"),
    "escaped surrogate": (b'{"a":["\\ud83d"]}', "$.a[0]: a lone surrogate"),
    "escaped surrogate in a key": (b'{"\\ud83d":0}', "a lone surrogate"),
    "201 levels": (b"[" * 201 + b"]" * 201, "nested deeper than 200 levels"),
    "100,000 levels": (b"[" * 100_000, "nested deeper"),
    "100,000 levels of objects": (b'{"a":' * 100_000, "nested deeper"),
    "unknown tag": (b'{"a":[{"$set":[]}]}', "$.a[0]['$set']: unknown tag"),
    "tag that is not alone": (b'{"$date":"2024-02-29","b":1}', "not the only key"),
    "bare dollar": (b'{"$":1}', "start your own key with $$"),
    "no datetime": (b'{"$datetime":"yesterday"}', "$: malformed $datetime"),
    "no date": (b'{"$date":"2023-02-29"}', "malformed $date"),
    "no uuid": (b'[{"$uuid":"1234"}]', "$[0]: malformed $uuid"),
    "no str in a tag": (b'{"$uuid":1}', "malformed $uuid"),
    "tag in a tag": (b'{"$date":{"$enum":["Unit","METRE"]}}', "malformed $date"),
    "no decimal": (b'{"$decimal":"ten"}', "malformed $decimal"),
    "decimal nan": (b'{"$decimal":"NaN"}', "not a finite number"),
    "no base64": (b'{"$bytes":"a"}', "malformed $bytes"),
    "base64 with spaces": (b'{"$bytes":"aG k="}', "malformed $bytes"),
    "base64 beyond ascii": ('{"$bytes":"ü"}'.encode(), "malformed $bytes"),
    "no such member": (b'{"$enum":["Color","GREEN"]}', "Color has no member 'GREEN'"),
    "malformed enum": (b'{"$enum":["Color"]}', "malformed $enum"),
    "unregistered class": (b'{"$enum":["os.system","RED"]}', "no class 'os.system' is registered: JsonCodec(types=["),
    "renamed class": (b'{"$dataclass":["Dot",{}]}', "or types={'Dot': …} if it was renamed"),
    "enum as dataclass": (b'{"$dataclass":["Color",{"value":"X","names":["A"]}]}', "no class 'Color' is registered"),
    "dataclass as enum": (b'{"$enum":["Point","x"]}', "no class 'Point' is registered"),
    "malformed dataclass": (b'{"$dataclass":["Point",[]]}', "malformed $dataclass"),
    "missing field": (b'[{"$dataclass":["Point",{}]}]', "$[0]: Point does not accept the stored fields: TypeError"),
    "unknown field": (b'{"$dataclass":["Point",{"x":1,"z":1}]}', "unexpected keyword argument 'z'"),
    "inside a dataclass": (b'{"$dataclass":["Point",{"x":[{"$uuid":""}]}]}', "$.x[0]: malformed $uuid"),
}


@pytest.mark.parametrize(("data", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_bytes_of_another_format_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(PayloadNotDecodable) as caught:
        decoded(data)

    assert reason in caught.value.reason


def test_an_escaped_pair_of_surrogates_is_one_character() -> None:
    assert decoded(b'"\\ud83d\\ude00"') == "\U0001f600"


def test_a_tag_written_with_escapes_is_still_a_tag() -> None:
    assert decoded(b'{"\\u0024date":"2024-02-29"}') == date(2024, 2, 29)


def test_a_utc_time_written_by_another_language_is_read() -> None:
    assert decoded(b'{"$datetime":"2024-02-29T12:00:00Z"}') == datetime(2024, 2, 29, 12, tzinfo=UTC)


def test_a_large_flat_payload_round_trips() -> None:
    value = [{"id": n, "name": f"customer {n}"} for n in range(MAX_DEPTH + 1)]

    assert decoded(encoded(value)) == value


@few
@given(st.binary(max_size=40))
def test_reading_arbitrary_bytes_raises_nothing_but_not_decodable(data: bytes) -> None:
    read_or_refuse(data)


tags = st.sampled_from(["$datetime", "$date", "$uuid", "$decimal", "$bytes", "$enum", "$dataclass", "$none"])
names = st.sampled_from(
    ["Color", "Point", "RED", "x", "y", "NaN", "1e99999999999999999999", "2024-02-29", "\ud800", "\x00"]
)


@few
@given(trees(names | plain_scalars, keys=tags | names | keys))
def test_reading_json_full_of_tags_raises_nothing_but_not_decodable(value: object) -> None:
    read_or_refuse(json.dumps(value).encode())


@few
@given(values, st.data())
def test_reading_damaged_bytes_raises_nothing_but_not_decodable(value: object, data: st.DataObject) -> None:
    damaged = bytearray(encoded(value))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    read_or_refuse(bytes(damaged))


def read_or_refuse(data: bytes) -> None:
    """Read *data*, and check that the value or the reason is storable."""
    try:
        value = decoded(data)
    except PayloadNotDecodable as error:
        value = str(error)

    assert repr(decoded(encoded(value))) == repr(value)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@dataclass
class Picky:
    x: int

    def __post_init__(self) -> None:
        if self.x:
            raise Unprintable


def test_any_error_of_a_constructor_becomes_not_decodable() -> None:
    codec = JsonCodec(types=[Picky])
    data = codec.encode(Picky(0), context=b"").replace(b"0", b"1")

    with pytest.raises(PayloadNotDecodable, match="Picky does not accept the stored fields") as caught:
        codec.decode(data, context=b"")

    assert isinstance(caught.value.__cause__, Unprintable)


def test_a_field_added_later_takes_its_default() -> None:
    assert decoded(b'{"$dataclass":["Point",{"x":1}]}') == Point(x=1, y=None)


def test_a_renamed_class_is_read_under_both_names_and_written_under_the_first() -> None:
    codec = JsonCodec(types={"Dot": Point, "Spot": Point})

    data = codec.encode(Point(x=1), context=b"")

    assert data == b'{"$dataclass":["Dot",{"x":1,"y":null}]}'
    assert codec.decode(data.replace(b"Dot", b"Spot"), context=b"") == Point(x=1)


@dataclass
class Secretive:
    x: int
    seed: InitVar[int]


UNFIT: Final[dict[str, tuple[list[Any] | dict[str, Any], str]]] = {
    "neither enum nor dataclass": ([int], "must be an enum class or a dataclass"),
    "a member": ([Color.RED], "must be an enum class or a dataclass"),
    "an instance": ({"Point": Point(x=1)}, "must be an enum class or a dataclass"),
    "two of one name": ([Color, Enum("Color", "RED")], "types is Color: two classes have this name"),
    "one that needs more than its fields": ([Secretive], "Secretive: its constructor does not accept its fields"),
}


@pytest.mark.parametrize(("types", "reason"), UNFIT.values(), ids=UNFIT)
def test_a_class_that_cannot_be_registered_is_refused_at_once(types: list[Any] | dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        JsonCodec(types)

    assert reason in str(caught.value)


def test_a_class_may_be_listed_twice() -> None:
    assert JsonCodec(types=[Color, Color]).encode(Color.RED, context=b"") == b'{"$enum":["Color","RED"]}'


@few
@given(st.dictionaries(keys, plain_scalars | rich_scalars, max_size=5), st.data())
def test_the_digest_ignores_the_order_of_keys(value: dict[str, Any], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations([*value.items()])))

    assert CODEC.digest({"deep": [shuffled]}) == CODEC.digest({"deep": [value]})


@few
@given(values, values)
def test_values_stored_differently_have_different_digests(one: object, other: object) -> None:
    stored = [json.dumps(json.loads(encoded(value)), sort_keys=True) for value in (one, other)]

    assert (CODEC.digest(one) == CODEC.digest(other)) == (stored[0] == stored[1])


@few
@given(values)
def test_encode_with_digest_equals_encode_and_digest(value: object) -> None:
    assert CODEC.encode_with_digest(value) == (encoded(value), CODEC.digest(value))


@pytest.mark.parametrize("value", [object(), {"at": float("nan")}, "x" * MAX_BYTES], ids=["type", "value", "size"])
def test_encode_with_digest_refuses_what_encode_refuses(value: object) -> None:
    with pytest.raises(PayloadNotEncodable) as alone:
        CODEC.encode(value, context=b"")
    with pytest.raises(PayloadNotEncodable) as together:
        CODEC.encode_with_digest(value)

    assert (type(together.value), str(together.value)) == (type(alone.value), str(alone.value))


def test_values_of_different_types_have_different_digests() -> None:
    alike = [1, 1.0, True, "1", Decimal(1), b"1", [1], {"1": 1}, None, "", [], {}, date(2024, 1, 1), "2024-01-01"]

    assert len({CODEC.digest(value) for value in alike}) == len(alike)


def test_the_digest_is_the_same_in_every_release() -> None:
    value = {"to": "a@b.c", "ü": [1, 1.5, None, True], "$day": date(2024, 2, 29)}

    assert CODEC.digest(value).hex() == "653f66176aaea2a2d7c9d8e225c593ccd654021283bc817f098ba42cad125f81"


class Bare:
    """A codec without a name."""

    def encode(self, value: object, *, context: bytes) -> bytes:
        raise NotImplementedError

    def decode(self, data: bytes, *, context: bytes) -> Any:
        raise NotImplementedError

    def digest(self, value: object) -> bytes:
        raise NotImplementedError


class Another(JsonCodec):
    """Overrides `encode` and inherits the name."""

    def encode(self, value: object, *, context: bytes) -> bytes:
        return super().encode(value, context=context)[::-1]


class Named(Another):
    name = "reversed"  # type: ignore[misc]


class OfAnInstance(Bare):
    def __init__(self, name: Any) -> None:
        self.name = name


class WithTypes(Named):
    """Overrides neither `encode` nor the name."""


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        (JsonCodec(), "json"),
        (JsonCodec([Color], limit=5), "json"),
        (Bare(), "Bare"),
        (Another(), "Another"),
        (Named(), "reversed"),
        (WithTypes(), "reversed"),
        (OfAnInstance("zip"), "zip"),
    ],
)
def test_a_codec_has_the_name_of_its_format(codec: Any, name: str) -> None:
    assert codec_name(codec) == name


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x1b[31m", "\ud800", None, 7])
def test_a_name_that_cannot_be_recorded_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="1 to 200 printable characters"):
        codec_name(OfAnInstance(name))


def test_a_codec_other_than_the_recorded_one_is_refused_with_both_names() -> None:
    check_codec("json", JsonCodec())

    with pytest.raises(CodecMismatch) as refused:
        check_codec("json", Named())
    assert (refused.value.recorded, refused.value.ours) == ("json", "reversed")


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_whatever_kind_of_bytes_a_codec_returns_is_stored_as_bytes(kind: Any) -> None:
    class Other(JsonCodec):
        def encode(self, value: object, *, context: bytes) -> Any:
            return kind(super().encode(value, context=context))

    data = encode_with(Other(), 7, context=b"")

    assert (type(data), data) == (bytes, b"7")
