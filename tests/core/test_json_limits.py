"""Counting the keys and values of a JSON text."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core.errors import PayloadNotDecodable
from taskharbor.core.json_limits import check_json_limits

MANY: Final = 10_000
TEXTS: Final = st.text(st.sampled_from('ab"\\:,[]{} \n\u00e9\U0001f600'))
VALUES: Final = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, min_size=1) | st.dictionaries(TEXTS, inner, min_size=1),
    max_leaves=30,
)
FORMS: Final = st.sampled_from([{}, {"indent": 1}, {"separators": (" ,\n", "\t : ")}, {"ensure_ascii": False}])


def keys_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(keys_in, value.values()))
    return sum(map(keys_in, value)) if isinstance(value, list) else 0


def values_in(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(values_in, value.values()))
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


@settings(deadline=None, derandomize=True)
@given(VALUES, FORMS)
def test_a_text_is_refused_exactly_above_its_own_counts(value: Any, form: dict[str, Any]) -> None:
    data = json.dumps(value, **form).encode()
    keys, values = keys_in(value), values_in(value)

    check_json_limits(data, max_keys=keys, max_values=values)
    with pytest.raises(PayloadNotDecodable, match="values"):
        check_json_limits(data, max_keys=MANY, max_values=values - 1)
    if keys:
        with pytest.raises(PayloadNotDecodable, match="keys"):
            check_json_limits(data, max_keys=keys - 1, max_values=MANY)


@pytest.mark.parametrize("data", [b'{"a" :1,"b"\n:2}', b'{"a":1,"b":2}', rb'{"\"":1,"\\":2}'])
def test_whitespace_and_escapes_hide_no_key(data: bytes) -> None:
    with pytest.raises(PayloadNotDecodable, match="over 1 keys"):
        check_json_limits(data, max_keys=1, max_values=MANY)


@pytest.mark.parametrize("data", [b'["a:b", "c:d"]', b'"a,[{"', rb'"\":\","'])
def test_text_counts_as_one_value(data: bytes) -> None:
    check_json_limits(data, max_keys=0, max_values=3)


def test_too_many_strings_are_refused_before_the_text_is_split() -> None:
    with pytest.raises(PayloadNotDecodable, match="over 3 values"):
        check_json_limits(b'"a" ' * 9, max_keys=1, max_values=3)


def test_empty_lists_and_objects_count() -> None:
    with pytest.raises(PayloadNotDecodable, match="over 8 values"):
        check_json_limits(b"[[],[],[],{}]", max_keys=1, max_values=8)
