from __future__ import annotations

import doctest
import importlib
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from hashlib import sha256
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor import crypto as module
from taskharbor.core.codec import JsonCodec, codec_name
from taskharbor.core.errors import PayloadNotDecodable, PayloadNotEncodable, PayloadTooLarge, UsageError
from taskharbor.crypto import AesGcmCodec
from taskharbor.installation import install_command

OLD: Final = b"old key, which has 32 bytes, no."
NEW: Final = b"a new key, 24 bytes long"
CONTEXT: Final = b"job 1 payload"
VALUE: Final = {"card": "4111 1111", "amount": [1, 2.5]}

few = settings(max_examples=40, deadline=None)


class Color(Enum):
    RED = "red"


@few
@given(
    value=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers() | st.binary(), max_size=4),
    key=st.sampled_from([16, 24, 32]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    context=st.binary(),
)
def test_encrypted_bytes_decrypt_with_the_same_key_and_context(
    value: dict[str, object], key: bytes, context: bytes
) -> None:
    codec = AesGcmCodec({"k": key})

    assert codec.decode(codec.encode(value, context=context), context=context) == value


def test_the_stored_bytes_contain_the_key_id_but_not_the_value() -> None:
    codec = AesGcmCodec({"2025": NEW})

    data = codec.encode(VALUE, context=CONTEXT)

    assert data[:6] == b"\x01\x042025"
    assert len(data) == 6 + 12 + len(JsonCodec().encode(VALUE, context=CONTEXT)) + 16
    assert b"4111" not in data


def test_the_same_value_is_never_encrypted_to_the_same_bytes() -> None:
    codec = AesGcmCodec({"2025": NEW})

    assert len({codec.encode(VALUE, context=CONTEXT) for _ in range(100)}) == 100


def test_the_last_key_encrypts_and_every_key_decrypts() -> None:
    before = AesGcmCodec({"old": OLD}).encode(VALUE, context=CONTEXT)
    rotated = AesGcmCodec({"old": OLD, "new": NEW})

    after = rotated.encode(VALUE, context=CONTEXT)

    assert after[2:5] == b"new"
    assert rotated.decode(before, context=CONTEXT) == VALUE
    assert rotated.decode(after, context=CONTEXT) == VALUE


def test_the_active_key_can_be_chosen() -> None:
    reader_first = AesGcmCodec({"old": OLD, "new": NEW}, active="old")

    assert reader_first.encode(VALUE, context=CONTEXT)[2:5] == b"old"


def test_bytes_moved_to_another_job_or_role_cannot_be_decrypted() -> None:
    codec = AesGcmCodec({"2025": NEW})
    data = codec.encode(VALUE, context=b"job 1 payload")

    for elsewhere in (b"job 2 payload", b"job 1 result", b""):
        with pytest.raises(PayloadNotDecodable, match="written for another job or role"):
            codec.decode(data, context=elsewhere)


def test_a_changed_or_missing_byte_is_detected() -> None:
    codec = AesGcmCodec({"2025": NEW})
    data = codec.encode(VALUE, context=CONTEXT)
    altered = [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(len(data))]
    shortened = [data[:n] for n in range(len(data))]

    for damaged in (*altered, *shortened, data + b"\x00"):
        with pytest.raises(PayloadNotDecodable):
            codec.decode(damaged, context=CONTEXT)


@few
@given(st.binary() | st.binary().map(lambda tail: b"\x01\x01k" + tail))
def test_reading_arbitrary_bytes_raises_nothing_but_not_decodable(data: bytes) -> None:
    with pytest.raises(PayloadNotDecodable):
        AesGcmCodec({"k": NEW}).decode(data, context=CONTEXT)


UNREADABLE: Final[dict[str, tuple[bytes, str]]] = {
    "nothing": (b"", "they do not have the header of AesGcmCodec"),
    "plain json": (b'{"a":1}', "read them with the codec that wrote them"),
    "cut in the header": (b"\x01\x04a", "they are truncated"),
    "cut in the tag": (b"\x01\x01k" + bytes(12 + 15), "they are truncated"),
    "unknown key": (b"\x01\x03old" + bytes(28), "under the key 'old': put it back in AesGcmCodec's keys"),
    "key id that is no text": (b"\x01\x01\xff" + bytes(28), "put it back"),
    "another key of that name": (b"\x01\x01k" + bytes(28), "encrypted with another key named 'k'"),
}


@pytest.mark.parametrize(("data", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_bytes_that_cannot_be_decrypted_are_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(PayloadNotDecodable) as caught:
        AesGcmCodec({"k": NEW}).decode(data, context=CONTEXT)

    assert reason in caught.value.reason


UNFIT: Final[dict[str, tuple[dict[Any, Any], str]]] = {
    "no keys": ({}, "keys is empty: at least one is required"),
    "short key": ({"2025": NEW[:15]}, "keys['2025'] is 15 bytes long: a key has 16, 24 or 32"),
    "long key": ({"2025": NEW + NEW}, "keys['2025'] is 48 bytes long"),
    "str key": ({"2025": "a" * 32}, "keys['2025'] is a str: a key is bytes"),
    "empty id": ({"": NEW}, "an id is 1 to 64 printable ASCII characters"),
    "long id": ({"x" * 65: NEW}, "an id is 1 to 64"),
    "id beyond ascii": ({"schlüssel": NEW}, "an id is 1 to 64"),
    "id with a line break": ({"2025\n": NEW}, "an id is 1 to 64"),
    "id and key exchanged": ({NEW: "2025"}, "an id is 1 to 64"),
}


@pytest.mark.parametrize(("keys", "reason"), UNFIT.values(), ids=UNFIT)
def test_bad_keys_are_refused_at_once_and_never_shown(keys: dict[Any, Any], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        AesGcmCodec(keys)

    assert reason in str(caught.value)
    assert NEW[:15].decode() not in repr(caught.value)


def test_the_active_key_must_be_one_of_the_keys() -> None:
    with pytest.raises(UsageError, match=r"active is '2026': the keys are \['2025'\]"):
        AesGcmCodec({"2025": NEW}, active="2026")


def test_a_codec_shows_its_key_ids_and_never_its_keys() -> None:
    assert repr(AesGcmCodec({"old": OLD, "new": NEW})) == "AesGcmCodec(keys=['old', 'new'], active='new')"


def test_errors_of_the_inner_codec_are_raised() -> None:
    codec = AesGcmCodec({"k": NEW}, inner=JsonCodec(limit=10))

    with pytest.raises(PayloadNotEncodable, match="use a list"):
        codec.encode({1}, context=CONTEXT)
    with pytest.raises(PayloadTooLarge):
        codec.encode("x" * 10, context=CONTEXT)


def test_the_inner_codec_may_know_more_types() -> None:
    codec = AesGcmCodec({"k": NEW}, inner=JsonCodec(types=[Color]))

    assert codec.decode(codec.encode(Color.RED, context=CONTEXT), context=CONTEXT) is Color.RED


def test_the_digest_depends_on_the_first_key_only() -> None:
    before = AesGcmCodec({"old": OLD}).digest(VALUE)

    assert AesGcmCodec({"old": OLD, "new": NEW}).digest(VALUE) == before
    assert AesGcmCodec({"old": OLD, "new": NEW}, active="old").digest(VALUE) == before
    assert AesGcmCodec({"new": NEW}).digest(VALUE) != before


def test_the_digest_does_not_reveal_a_guessable_value() -> None:
    codec = AesGcmCodec({"2025": NEW})

    digest = codec.digest("yes")

    assert len(digest) == 32
    assert digest not in {JsonCodec().digest("yes"), sha256(b'"yes"').digest(), codec.digest("no")}
    assert codec.digest({"a": 1, "b": 2}) == codec.digest({"b": 2, "a": 1})


def test_the_wire_form_and_the_digest_are_the_same_in_every_release() -> None:
    codec = AesGcmCodec({"k": bytes(16)})
    stored = bytes.fromhex("01016be112d87daaa66317bd859491eac48c373f6b46998d8927beefded961d4337c642ae5f6")

    assert codec.decode(stored, context=CONTEXT) == {"a": 1}
    assert codec.digest({"a": 1}).hex() == "b814bed9f78df6855822bc89198542d80921eecf9b45e3e19e5736742875d73d"


def test_one_codec_serves_many_threads() -> None:
    codec = AesGcmCodec({"2025": NEW})

    def there_and_back(n: int) -> object:
        return codec.decode(codec.encode([n] * 100, context=CONTEXT), context=CONTEXT)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, range(500))) == [[n] * 100 for n in range(500)]


def test_without_cryptography_the_import_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "taskharbor.crypto")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)

    with pytest.raises(ImportError, match=re.escape(install_command("crypto"))):
        importlib.import_module("taskharbor.crypto")


def test_the_examples_in_the_documentation_hold() -> None:
    assert doctest.testmod(module).failed == 0


class Mirrored(JsonCodec):
    def encode(self, value: object, *, context: bytes) -> bytes:
        return super().encode(value, context=context)[::-1]


def test_the_name_is_that_of_the_format_and_stays_when_keys_are_rotated() -> None:
    names = {codec_name(codec) for codec in (AesGcmCodec({"old": OLD}), AesGcmCodec({"old": OLD, "new": NEW}))}

    assert names == {"aes-gcm+json"}
    assert codec_name(AesGcmCodec({"old": OLD}, inner=Mirrored())) == "aes-gcm+Mirrored"
