"""A payload that is an object of scalars has a faster path through the codec. It must not show in any result."""

from __future__ import annotations

import json
from enum import IntEnum
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core import codec as module
from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import PayloadNotDecodable, PayloadNotEncodable, PayloadTooLarge
from taskharbor.core.tagged_json import MAX_BITS

WIDEST: Final = 2**MAX_BITS - 1
thorough: Final = settings(max_examples=200, deadline=None)


class Name(str):
    """A str that would be read back as str."""

    __slots__ = ()


class Level(IntEnum):
    LOW = 1


keys: Final = st.sampled_from(["a", "b", "c:", "$", "$date", "a$", "ü", "", 'q"', "\ud800", "\\"])
scalars: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([WIDEST, WIDEST + 1, -WIDEST - 1, "x:y", "$9", '"', '"$', "\\", "\ud800", "x" * 2_450, "1e999"])
)


@thorough
@given(st.dictionaries(keys, scalars, max_size=3))
def test_a_flat_dict_is_encoded_as_the_walk_encodes_it(value: dict[str, Any]) -> None:
    assert encoded(value) == encoded_by_the_walk(value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": Name("x")},
        {Name("a"): "x"},
        {1: "x"},
        {None: "x"},
        {"a": Level.LOW},
        {"a": (1,)},
        {"a": [1]},
        {"a": {"b": {"$c": 1}}},
        {"a": object()},
        {"a": WIDEST + 1},
        {"a": float("nan")},
        {"a": "\ud800"},
        {"$a": 1, "b": "$c"},
        {},
        [],
        "",
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_dict_that_the_walk_refuses_or_changes_is_left_to_it(value: object) -> None:
    assert encoded(value) == encoded_by_the_walk(value)


@pytest.mark.parametrize("other", [1, "$9", WIDEST, WIDEST + 1, "\ud800", float("inf"), True, None])
@pytest.mark.parametrize("key", ["b", "$b", "b$"])
def test_a_flat_dict_of_any_length_is_encoded_as_the_walk_encodes_it(key: str, other: object) -> None:
    for size in (1, 2_400, 3_000):
        value = {"a": "x" * size, key: other}

        assert encoded(value) == encoded_by_the_walk(value)


def test_a_flat_dict_has_the_limit_of_every_payload() -> None:
    with pytest.raises(PayloadTooLarge):
        JsonCodec(limit=8).encode({"a": "12"}, context=b"")

    assert JsonCodec(limit=9).encode({"a": "1"}, context=b"") == b'{"a":"1"}'


numbers: Final = st.sampled_from(
    ["0", "-0", "1", "-7", "1.5", "-0.0", "2e3", "1e999", "-1E999", "NaN", "Infinity", "-Infinity", "01", "1.", "+1"]
)
literals: Final = st.sampled_from(["null", "true", "false", "nul", "", "[]", "[1]", "{}", '{"a":1,"a":2}', '{"a":1}'])
strings: Final = st.sampled_from(
    ['""', '"x"', '"x:y"', '"\\""', '"\\u0041"', '"\\ud800"', '"$"', '"["', '"{"', '"ü"', '"\n"', '"\'"']
)
wide: Final = st.sampled_from([str(WIDEST), str(WIDEST + 1), str(-WIDEST - 1), "9" * 2_460, "9" * 5_000])
spaces: Final = st.sampled_from(["", "", "", " ", "\n\t", "\ufeff"])
names: Final = st.sampled_from(['"a"', '"b"', '"c:"', '"\\u0061"', '"$date"', "a", "1"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Return an object as another program may write it: with spaces, a key twice, or not quite JSON."""
    space = partial(draw, spaces)  # drawn anew at each place
    pairs = draw(st.lists(st.tuples(names, numbers | literals | strings | wide), max_size=4))
    items = [f"{space()}{name}{space()}:{space()}{value}{space()}" for name, value in pairs]
    return f"{space()}{{{','.join(items)}}}{space()}{draw(st.sampled_from(['', '', '', '}', ',', '1', '{}']))}"


@thorough
@given(texts())
def test_a_flat_object_is_decoded_as_the_parser_with_all_checks_decodes_it(text: str) -> None:
    assert decoded(text.encode()) == decoded_with_all_checks(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":1,"a" :2}',
        '{"a":"x","a":"y:z"}',
        '{"a":1,"b":"c:d","a":"x"}',
        '{"a":1e999}',
        '{"a":NaN}',
        f'{{"a":{WIDEST + 1}}}',
        '{"$date":"2024-02-29"}',
        '{"a":1} x',
    ],
)
def test_a_flat_object_is_refused_or_read_by_the_same_rules(text: str) -> None:
    assert decoded(text.encode()) == decoded_with_all_checks(text.encode())


@pytest.mark.parametrize(
    "text", ['{"a":1,"b":"x","c":null}', '{"at":"12:30:00","url":"http://x"}', "{}", '{"a" : 1.5}']
)
def test_the_usual_payload_takes_the_fast_path(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PARSER", None)

    assert JsonCodec().decode(text.encode(), context=b"") == json.loads(text)


def test_the_usual_call_is_encoded_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = JsonCodec()
    monkeypatch.setattr(codec, "_to_json", None)

    assert codec.encode({"id": 7, "price": "9 $", "ü": None}, context=b"") == '{"id":7,"price":"9 $","ü":null}'.encode()


def encoded(value: object) -> object:
    """Return the encoded *value*, or the error that says why there is none."""
    try:
        return JsonCodec().encode(value, context=b"")
    except (PayloadNotEncodable, PayloadTooLarge) as error:
        return type(error), str(error)


def encoded_by_the_walk(value: object) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_written_flat", lambda _: None)
        return encoded(value)


def decoded(data: bytes) -> object:
    """Return the decoded value in a form that distinguishes 1, 1.0 and True, or the error."""
    try:
        return repr(JsonCodec().decode(data, context=b""))
    except PayloadNotDecodable as error:
        return type(error), str(error)


def decoded_with_all_checks(data: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_parsed_flat", lambda _: None)
        return decoded(data)
