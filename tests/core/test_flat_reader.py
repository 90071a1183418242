"""A payload of the form that was read last is read without the codec. It must not show in any result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor import Harbor
from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import CallNotReadable, PayloadNotDecodable
from taskharbor.core.signatures import CallSignature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CALL: Final = {"n": 7, "x": 2.5, "ok": True, "name": "ü", "none": None}
TEXT: Final = '{"n":7,"x":2.5,"ok":true,"name":"ü","none":null}'
CHANGES: Final = {
    "7": ["07", "-0", "+7", "7.0", "\u0667", "999999999999999999", "9999999999999999999", "true", '"7"'],
    "2.5": ["2", "2.5e3", "2E-3", "1e999", "1e99", ".5", "5.", "NaN", "0.1000000000000000055511151231257827"],
    "true": ["True", "1"],
    "ü": ["\\u00fc", '"', "\x00", "\n", "\x1f", "\x7f", "$date", "\\", "\\n"],
    "null": ["None", '"x"'],
    "{": ["{ "],
    ":": [": "],
    ",": [" ,"],
    "}": ["}\n", "}{}", ',"n":8}', ',"more":8}', ',"z":8}'],
    ',"none":null': [""],
    '"n":7,': [""],
    '"n"': ['"N"'],
    '"n":7,"x":2.5': ['"x":2.5,"n":7'],
    '"ok":true': ['"ok":[true]'],
}
"""Other texts for parts of the payload."""
integers: Final = st.integers() | st.sampled_from([0, -1, 10**17, 10**18 - 1, 10**18, -(10**18), 10**400])
floats: Final = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1e16, 1e-7, 5e-324, 1e308]
)
texts: Final = st.text(max_size=5) | st.sampled_from(['"', "\\", "\n", "\x7f", "$date", '","n":1', "x" * 5_000])
scalars: Final = integers | floats | texts | st.booleans() | st.none()


class Ctx:
    """Stands in for the worker's context."""


def usual(n: int, x: float, ok: bool, name: str, none: str | None = "", more: int = 3) -> None: ...  # noqa: PLR0917


def anything(n: Any, x: Any, ok: Any = (), name: Any = (), none: Any = ()) -> None: ...


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from([*CALL]), scalars), min_size=1, max_size=4))
def test_a_payload_is_read_as_the_codec_and_the_signature_read_it(calls: list[dict[str, Any]]) -> None:
    used = signature(anything)

    for call in [*calls, *calls, *calls]:
        payload = JsonCodec().encode(call, context=b"")
        assert repr(used.read_flat(payload)) in ("None", read_slowly(anything, payload))
        for _ in range(2):  # then its form is known
            try_unpack(used, call)


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, others in CHANGES.items() for new in others])
def test_a_payload_of_another_form_is_read_or_refused_by_the_same_rules(old: str, new: str) -> None:
    payload = TEXT.replace(old, new).encode()

    for function in (usual, anything):
        assert repr(known(function).read_flat(payload)) in ("None", read_slowly(function, payload))


@pytest.mark.parametrize("payload", [b"", b"{}", b"\xff", TEXT.encode().replace(b"\xbc", b""), TEXT.encode("utf-16")])
def test_a_payload_that_is_no_text_of_the_form_is_left_to_the_codec(payload: bytes) -> None:
    assert known(usual).read_flat(payload) is None


def test_a_payload_of_a_known_form_is_read_without_the_codec() -> None:
    used = known(usual)
    other = TEXT.replace("7", "-123456789012345678").replace("2.5", "1e-7").replace("true", "false")

    assert used.read_flat(TEXT.encode()) == [7, 2.5, True, "ü", None, 3]
    assert used.read_flat(other.encode()) == [-123456789012345678, 1e-7, False, "ü", None, 3]


def test_the_form_that_was_unpacked_last_is_known() -> None:
    used = known(usual)
    changed = CALL | {"none": "x"}

    for _ in range(2):
        used.unpack(changed)

    assert used.read_flat(TEXT.encode()) is None
    assert used.read_flat(TEXT.replace("null", '"x"').encode()) == [7, 2.5, True, "ü", "x", 3]


def test_forms_that_alternate_get_no_pattern() -> None:
    used = signature(usual)

    for _ in range(4):
        used.unpack(CALL)
        used.unpack(CALL | {"none": "x"})

    assert used.read_flat(TEXT.encode()) is None
    assert used.read_flat(TEXT.replace("null", '"x"').encode()) is None


def test_a_call_with_a_converted_or_named_argument_is_never_read_without_the_codec() -> None:
    def by_name(n: int, *, x: int) -> None: ...

    converted, named = signature(usual), signature(by_name)
    for _ in range(2):
        converted.unpack(CALL | {"x": 2})
        named.unpack({"n": 1, "x": 2})

    assert converted.read_flat(TEXT.replace("2.5", "2").encode()) is None
    assert named.read_flat(b'{"n":1,"x":2}') is None


def test_a_task_calls_its_function_with_what_it_reads() -> None:
    harbor = Harbor("memory://")
    called: list[tuple[int, str, str]] = []

    @harbor.task
    def note(number: int, name: str, last: str = "no") -> None:
        called.append((number, name, last))

    with harbor.testing() as harness:
        for number in range(4):
            note.enqueue(number, f"n{number}")
        note.enqueue(4, "n4", "yes")
        harness.drain()

    assert called == [*((number, f"n{number}", "no") for number in range(4)), (4, "n4", "yes")]


def test_payloads_of_another_codec_are_read_by_it() -> None:
    class Reversed(JsonCodec):
        """Writes the digits of numbers in reverse: a payload that has the form of JSON, and other values."""

        def decode(self, data: bytes, *, context: bytes) -> Any:
            return {name: int(str(value)[::-1]) for name, value in super().decode(data, context=context).items()}

    harbor = Harbor("memory://", codec=Reversed())
    called: list[int] = []

    @harbor.task
    def note(number: int) -> None:
        called.append(number)

    with harbor.testing() as harness:
        for _ in range(4):
            note.enqueue(12)
        harness.drain()

    assert called == [21] * 4


def known(function: Callable[..., Any]) -> CallSignature:
    """Return a signature that has unpacked `CALL` before."""
    used = signature(function)
    for _ in range(2):
        used.unpack(CALL)
    return used


def signature(function: Callable[..., Any]) -> CallSignature:
    return CallSignature(function, context=Ctx)


def read_slowly(function: Callable[..., Any], payload: bytes) -> str:
    """Return the arguments that the codec and a new signature read, as text, which shows types; or why not."""
    try:
        args, _ = signature(function).unpack(JsonCodec().decode(payload, context=b""))
    except (CallNotReadable, PayloadNotDecodable) as error:
        return str(error)
    return repr([*args])


def try_unpack(used: CallSignature, call: Mapping[str, Any]) -> None:
    try:
        used.unpack(call)
    except CallNotReadable:
        assert {"n", "x"} - call.keys()
