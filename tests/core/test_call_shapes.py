"""A call with the names and types of an earlier one is converted by its plan. It must not show in any result.

A new `CallSignature` has no plans: it converts its first call parameter by parameter.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from inspect import Parameter, Signature
from inspect import signature as signature_of
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NewType
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core import signatures as module
from taskharbor.core.codec import JsonCodec
from taskharbor.core.conversion import TypeMismatch
from taskharbor.core.errors import CallNotReadable, InvalidRequest, PayloadNotEncodable, UsageError
from taskharbor.core.flat_calls import FlatShape, encode_calls
from taskharbor.core.signatures import CallSignature
from taskharbor.core.typed_values import converter_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

thorough: Final = settings(max_examples=100, deadline=None)


class Name(str):
    """A str with a type of its own, which shows in the results of these tests."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Name({str(self)!r})"


@dataclass(frozen=True)
class FlatCall:
    flat: FlatShape | None
    values: tuple[Any, ...]


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int | None = None


Age = NewType("Age", int)

ANNOTATIONS: Final[list[Any]] = [
    *(int, str, bool, float, bytes, date, datetime, Decimal, UUID, type(None), Any, timedelta, object, Age),
    *(int | None, str | None, float | None, int | float, float | int, int | bool, bool | int, date | datetime),
    *(int | str | None, str | Any, int | Point, Point | int, Literal["x", 1], Color, Point, Color | str),
    *(list[int], tuple[int, ...], tuple[int, str], dict[str, int], set[int], timedelta | float, Color | None),
]
VALUES: Final[list[Any]] = [
    *(0, 7, -1, 10**400, True, False, 1.5, float("nan"), 0.0, "", "x", "red", Name("x"), None, b"b", Color.RED),
    *(date(2024, 2, 29), datetime(2024, 2, 29, tzinfo=UTC), Decimal("1.5"), UUID(int=1), timedelta(seconds=3)),
    *(Point(1), Point("x"), [], [1], ["x"], [[1]], (1,), (1, "x"), {"x": 1}, {"x": None}, {"x": "y"}, {1}, {"z": 1}),  # type: ignore[arg-type]
]
NAMES: Final = ("a", "b", "c", "d")
values: Final = st.sampled_from(VALUES)


@st.composite
def functions(draw: st.DrawFn) -> Callable[..., Any]:
    """Return a function with up to four parameters of any kind."""
    kinds = sorted(draw(st.lists(st.sampled_from(list(_KINDS)), min_size=1, max_size=4)))
    kinds = [kind for place, kind in enumerate(kinds) if kind not in _VARIADIC or kind not in kinds[:place]]
    parameters, has_default = [], False
    for name, kind in zip(NAMES, kinds, strict=False):
        may_have = kind not in _VARIADIC
        is_by_name = kind is Parameter.KEYWORD_ONLY
        default = Parameter.empty
        if may_have and ((has_default and not is_by_name) or draw(st.booleans())):
            default, has_default = draw(values), has_default or not is_by_name
        parameters.append(Parameter(name, kind, default=default, annotation=draw(st.sampled_from(ANNOTATIONS))))

    def function(*_args: Any, **_kwargs: Any) -> None: ...

    function.__annotations__ = {each.name: each.annotation for each in parameters}
    function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return function


_VARIADIC: Final = frozenset({Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD})
_KINDS: Final = (
    *(Parameter.POSITIONAL_OR_KEYWORD, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY),
    *(Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD),
)


@st.composite
def calls(draw: st.DrawFn, function: Callable[..., Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call that mostly fit *function*, in any order of names."""
    given = draw(payloads(function))
    by_place = draw(st.integers(0, len(given)))
    return tuple(given.values())[:by_place], dict([*given.items()][by_place:])


@st.composite
def payloads(draw: st.DrawFn, function: Callable[..., Any]) -> dict[str, Any]:
    """Return values for the parameters of *function*. Most fit, few are missing, and few are of no parameter."""
    parameters = signature_of(function).parameters
    names = [name for name in [*parameters] if draw(MOSTLY)] if draw(st.booleans()) else [*parameters]
    names = draw(st.permutations(names)) if draw(st.booleans()) else names
    names += [] if draw(MOSTLY) else ["z"]
    return {name: draw(fitting(parameters[name].annotation) if name in parameters else values) for name in names}


@cache
def fitting(annotation: Any) -> st.SearchStrategy[Any]:
    fit = [value for value in VALUES if is_accepted(annotation, value)]
    return st.sampled_from(fit) | st.sampled_from(fit) | values


def is_accepted(annotation: Any, value: Any) -> bool:
    try:
        converter_for(annotation).unpack(converter_for(annotation).pack(value, ""), "")
    except (TypeMismatch, UsageError):
        return False
    return True


MOSTLY: Final = st.sampled_from([True, True, True, True, False])


@thorough
@given(st.data())
def test_a_call_is_packed_as_a_signature_packs_its_first_call(data: st.DataObject) -> None:
    function = data.draw(functions())
    used, made = signature(function), data.draw(st.lists(calls(function), min_size=1, max_size=4))

    for args, kwargs in [*made, *made]:
        assert packed(used, args, kwargs) == packed(signature(function), args, kwargs)


@thorough
@given(st.data())
def test_a_payload_is_unpacked_as_a_signature_unpacks_its_first_one(data: st.DataObject) -> None:
    function = data.draw(functions())
    used, stored = signature(function), data.draw(st.lists(payloads(function), min_size=1, max_size=4))

    for payload in [*stored, *stored]:
        assert unpacked(used, payload) == unpacked(signature(function), payload)


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_each_type_of_value_is_converted_alike_by_a_plan(annotation: Any) -> None:
    def function(*_args: Any) -> None: ...

    function.__annotations__ = {"a": annotation}
    function.__signature__ = Signature([Parameter("a", Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)])  # type: ignore[attr-defined]
    used = signature(function)

    for value in [*VALUES, *VALUES]:
        assert packed(used, (value,), {}) == packed(signature(function), (value,), {})
        assert packed(used, (), {"a": value}) == packed(signature(function), (), {"a": value})
        assert unpacked(used, {"a": value}) == unpacked(signature(function), {"a": value})
        assert unpacked(used, MappingProxyType({"a": value})) == unpacked(signature(function), {"a": value})


def test_arguments_by_name_are_stored_in_the_order_of_the_parameters() -> None:
    used = signature(usual)

    for _ in range(2):
        assert [*used.pack((1,), {"amount": 2.5, "urgent": True, "email": "x"})] == [
            *("user_id", "email", "urgent", "amount")
        ]


def test_a_default_is_passed_as_it_is() -> None:
    default = [1]

    def function(a: int, b: list[int] = default, *, c: str = "c") -> None: ...

    used = signature(function)
    for _ in range(2):
        args, kwargs = used.unpack({"a": 1})
        assert args == (1, default)
        assert args[1] is default
        assert kwargs == {"c": "c"}


def test_a_usual_call_takes_one_frame_in_each_direction() -> None:
    used = signature(usual)
    args = (7, "x", True, 2.5)
    for _ in range(2):
        used.unpack(used.pack(args, {}))  # the first call makes the plan, the second resolves the defaults

    assert frames(lambda: used.unpack(used.pack(args, {}))) == ["pack", "unpack"]
    assert frames(lambda: used.unpack({"user_id": 7, "email": "x", "urgent": False, "amount": 0.0})) == ["unpack"]


@thorough
@given(st.data())
def test_a_flat_call_is_written_as_its_stored_form_is_encoded(data: st.DataObject) -> None:
    function = data.draw(functions())
    used, made = signature(function), data.draw(st.lists(calls(function), min_size=1, max_size=4))

    for args, kwargs in [*made, *made]:
        shown = packed(used, args, kwargs)
        if (flat := used.flat_shape(args, kwargs)) is not None:
            values = (*args, *kwargs.values())
            assert repr(flat.pack(values)) == shown
            assert flat.encode(values) in (None, encoded(flat.pack(values)))


@thorough
@given(st.data())
def test_many_flat_calls_are_written_as_each_of_them(data: st.DataObject) -> None:
    function = data.draw(functions())
    used, made = signature(function), data.draw(st.lists(calls(function), min_size=1, max_size=4))
    flat = list[FlatCall]()
    for args, kwargs in [*made, *made]:
        packed(used, args, kwargs)
        flat.append(FlatCall(used.flat_shape(args, kwargs), (*args, *kwargs.values())))

    for some in [flat, [each for each in flat if each.flat is flat[0].flat]]:
        each_alone = [None if call.flat is None else call.flat.encode(call.values) for call in some]
        assert encode_calls(some) == (None if None in each_alone else each_alone)  # type: ignore[arg-type]


def test_a_call_of_scalars_is_written_flat_from_its_second_time_on() -> None:
    used = signature(usual)
    args, kwargs = (7, 'ü"\n$x'), {"urgent": True, "amount": None}
    values = (*args, *kwargs.values())

    assert used.flat_shape(args, kwargs) is None
    stored = used.pack(args, kwargs)
    flat = used.flat_shape(args, kwargs)

    assert flat is not None
    assert flat.encode(values) == encoded(stored)
    assert used.flat_shape((7, "x"), {"urgent": True, "amount": 2.5}) is None
    used.pack((7, "x"), {"amount": None, "urgent": True})
    assert used.flat_shape((7, "x"), {"amount": None, "urgent": True}) is None  # stored in another order


@pytest.mark.parametrize("count", range(7))
def test_a_call_with_any_number_of_scalars_is_written_flat(count: int) -> None:
    names = [f"p{place}" for place in range(count)]

    def function(*_args: Any) -> None: ...

    function.__annotations__ = dict.fromkeys(names, Any)
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=Any) for name in names]
    function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    used, values = signature(function), (7, "x", None, True, 2.5, False)[:count]
    stored = used.pack(values, {})
    flat = used.flat_shape(values, {})

    assert flat is not None
    assert flat.encode(values) == encoded(stored)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), "\ud800", 10**5_000, 2**9_000, "x" * 3_000], ids=type)
def test_a_value_that_the_codec_refuses_or_that_is_long_is_left_to_it(value: Any) -> None:
    used = signature(anything)
    used.pack((value,), {})
    flat = used.flat_shape((value,), {})

    assert flat is not None
    assert flat.encode((value,)) is None


def test_long_values_among_many_calls_are_left_to_the_codec() -> None:
    used = signature(anything)
    used.pack(("x",), {})
    calls = [FlatCall(used.flat_shape(("x",), {}), ("x" * size,)) for size in (1, 3_000)]

    assert encode_calls(calls[:1]) == [encoded(used.pack(("x",), {}))]  # type: ignore[arg-type]
    assert encode_calls(calls) is None  # type: ignore[arg-type]


def test_a_call_with_a_converted_argument_is_never_flat() -> None:
    used = signature(usual)

    for call in [(7, "x", True, 1), (7, Name("x"), True, None)]:
        for _ in range(2):
            used.pack(call, {})
        assert used.flat_shape(call, {}) is None


def test_plans_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SHAPES", 2)
    used = signature(anything)

    for value in [*VALUES, *VALUES]:
        assert repr(used.unpack(used.pack((value,), {}))) == repr(((value,), {}))
        assert len(vars(used)["_packing"]) <= 2
        assert len(used.flat_shapes) <= 2
        assert len(vars(used)["_unpacking"]) <= 2


def usual(user_id: int, email: str, urgent: bool, amount: float | None) -> None: ...


def anything(value: Any) -> None: ...


class Ctx:
    """Stands in for the worker's context."""


def signature(function: Callable[..., Any]) -> CallSignature:
    return CallSignature(function, context=Ctx)


def packed(used: CallSignature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the stored form of a call as text, which shows types and order, or its problems."""
    try:
        return repr(used.pack(args, kwargs))
    except InvalidRequest as error:
        return repr(error.problems)


def encoded(payload: object) -> bytes | None:
    try:
        return JsonCodec().encode(payload, context=b"")
    except PayloadNotEncodable:
        return None


def unpacked(used: CallSignature, payload: Mapping[str, Any]) -> str:
    try:
        return repr(used.unpack(payload))
    except CallNotReadable as error:
        return str(error)


def frames(call: Callable[[], object]) -> list[str]:
    """Return the names of the functions that *call* calls."""
    names: list[str] = []

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names[1:]
