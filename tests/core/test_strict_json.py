from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskharbor.core.codec import JsonCodec, strict_json
from taskharbor.core.errors import PayloadNotDecodable
from taskharbor.views import stored_value

KEYS = st.text(max_size=5) | st.sampled_from(["$date", "$$date", "$bytes", "$"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_accepted_json_can_be_stored_and_is_shown_unchanged(value: Any) -> None:
    read = strict_json(json.dumps(value).encode())

    stored = JsonCodec().encode(read, context=b"")

    assert read == value
    assert JsonCodec().decode(stored, context=b"") == value
    assert stored_value(stored) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b'{"a": 1, "a": 2}',
        b'"\\ud800"',
        b'{"\\ud800": 1}',
        b"\xff",
        b"\xef\xbb\xbf1",
        b"9" * 5_000,
        b"[" * 300 + b"]" * 300,
        b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_json_that_is_not_strict_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadNotDecodable):
        strict_json(data)
