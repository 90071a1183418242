"""Calls that other programs write as JSON are stored as calls from Python are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from taskharbor.core.codec import JsonCodec
from taskharbor.core.errors import InvalidRequest
from taskharbor.core.signatures import CallSignature

if TYPE_CHECKING:
    from collections.abc import Callable

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Ctx:
    """Stands in for the worker's context."""


class Color(Enum):
    RED = "red"


@dataclass
class Order:
    id: UUID
    price: Decimal
    lines: list[Order] | None = None


class Point(NamedTuple):
    x: int
    at: date = date(2030, 1, 1)


class Note(TypedDict):
    text: str
    on: date


class Person(BaseModel):
    name: str
    born: date


def signature(annotation: Any) -> CallSignature:
    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    return CallSignature(task, context=Ctx)


def send(to: str, copies: int = 1, *extra: int, at: datetime | None = None, **more: str) -> None: ...


def mail() -> CallSignature:
    return CallSignature(send, context=Ctx)


CASES: list[tuple[Any, Any, Any]] = [
    (datetime, "2030-01-01T12:00:00Z", NOON),
    (datetime, {"$datetime": "2030-01-01T12:00:00+00:00"}, NOON),  # as a stored payload is shown
    (date, "2030-01-01", date(2030, 1, 1)),
    (UUID, ID, UUID(ID)),
    (Decimal, "12.50", Decimal("12.50")),
    (Decimal, 12, Decimal(12)),
    (bytes, "aGVsbG8=", b"hello"),
    (timedelta, 90, timedelta(seconds=90)),
    (Color, "red", Color.RED),
    (float, 1, 1.0),
    (list[UUID], [ID], [UUID(ID)]),
    (tuple[int, date], [1, "2030-01-01"], (1, date(2030, 1, 1))),
    (set[date], ["2030-01-01"], {date(2030, 1, 1)}),
    (dict[str, Decimal], {"a.b": "1.0"}, {"a.b": Decimal("1.0")}),
    (dict[UUID, int], [[ID, 1]], {UUID(ID): 1}),
    (datetime | None, None, None),
    (datetime | str, "2030-01-01T12:00:00Z", NOON),
    (datetime | str, "soon", "soon"),
    (str | datetime, "2030-01-01T12:00:00Z", "2030-01-01T12:00:00Z"),
    (Order, {"id": ID, "price": "1", "lines": [{"id": ID, "price": 2}]},
     Order(UUID(ID), Decimal(1), [Order(UUID(ID), Decimal(2))])),
    (Point, {"x": 1, "at": "2030-01-02"}, Point(1, date(2030, 1, 2))),
    (Note, {"text": "a", "on": "2030-01-01"}, {"text": "a", "on": date(2030, 1, 1)}),
    (Person, {"name": "Ada", "born": "1815-12-10"}, Person(name="Ada", born=date(1815, 12, 10))),
    (Annotated[Decimal, Field(gt=3)], "4.5", Decimal("4.5")),
    (Annotated[list[date], Field(max_length=1)], ["2030-01-01"], [date(2030, 1, 1)]),
    (Any, {"$datetime": "2030-01-01"}, {"$datetime": "2030-01-01"}),  # without an annotation it is what it is
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "written", "value"), CASES, ids=lambda each: repr(each)[:40])
def test_what_json_lacks_is_read_from_text_as_the_annotation_says(annotation: Any, written: Any, value: Any) -> None:
    task = signature(annotation)

    stored = JsonCodec().encode(task.pack_json({"value": written}), context=b"")

    assert task.unpack(JsonCodec().decode(stored, context=b"")) == ((value,), {})
    assert task.pack_json({"value": written}) == task.pack((value,), {})


@pytest.mark.parametrize(
    ("annotation", "written", "field", "rule"),
    [
        (datetime, "soon", "payload.value", 'must be a time in ISO 8601, such as "2030-01-01T12:00:00Z"'),
        (datetime, 7, "payload.value", 'must be a time in ISO 8601, such as "2030-01-01T12:00:00Z", not int'),
        (Decimal, 12.5, "payload.value", 'must be a decimal number in a string, such as "12.50", not float'),
        (Decimal, "NaN", "payload.value", 'must be a decimal number in a string, such as "12.50"'),
        (bytes, "ä", "payload.value", 'must be bytes in base64, such as "aGVsbG8="'),
        (int, "7", "payload.value", "must be int, not str"),
        (list[UUID], [ID, "x"], "payload.value[1]", f'must be a UUID, such as "{ID}"'),
        (dict[str, int], {"a.b": "1"}, "payload.value['a.b']", "must be int, not str"),
        (Order, {"id": ID, "price": "1", "a b": 1}, "payload.value['a b']", "Order has no such field"),
        (Annotated[Decimal, Field(gt=3)], "2.5", "payload.value", "Input should be greater than 3"),
        (
            list[Person],
            [{"name": "Ada", "born": 0.5}],
            "payload.value[0].born",
            "not a valid Person: Datetimes provided to dates should have zero time - e.g. be exact dates",
        ),
        (Order, {"id": ID}, "payload.value.price", "missing: Order requires it"),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_a_value_that_the_annotation_does_not_take_is_refused_with_its_path(
    annotation: Any, written: Any, field: str, rule: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        signature(annotation).pack_json({"value": written})

    assert [(each.field, each.rule) for each in refused.value.problems] == [(field, rule)]


def test_all_problems_of_a_call_are_reported() -> None:
    with pytest.raises(InvalidRequest) as refused:
        mail().pack_json({"copeis": 2, "at": "soon", "extra": ["a"], "x y": 1})

    assert str(refused.value) == (
        "payload.copeis is unknown: task 'send' has no such parameter; did you mean 'copies'?; "
        "payload['x y'] is unknown: task 'send' has no such parameter; it takes to, copies, extra, at, more; "
        "payload.to is missing: required by task 'send'; "
        "payload.extra[0] is invalid: must be int, not str; "
        'payload.at is invalid: must be a time in ISO 8601, such as "2030-01-01T12:00:00Z"'
    )


@pytest.mark.parametrize("payload", [None, [], "to", 7])
def test_a_call_that_is_no_object_is_refused(payload: object) -> None:
    with pytest.raises(InvalidRequest, match="must be an object with the parameters of task 'send'"):
        mail().pack_json(payload)


def test_a_keyword_that_is_a_parameter_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a parameter has this name"):
        mail().pack_json({"to": "ada", "more": {"at": "x"}})


def test_arguments_left_out_are_not_stored() -> None:
    assert mail().pack_json({"to": "ada"}) == {"to": "ada"}


def test_a_value_nested_deeper_than_the_stack_is_refused() -> None:
    deep: dict[str, Any] = {"id": ID, "price": "1"}
    for _ in range(2_000):
        deep = {"id": ID, "price": "1", "lines": [deep]}

    with pytest.raises(InvalidRequest, match="nested too deeply"):
        signature(Order).pack_json({"value": deep})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
    max_leaves=6,
)
WRITTEN = st.sampled_from([written for _, written, _ in CASES])
TASKS: list[Callable[[], CallSignature]] = [mail, *(lambda each=each: signature(each) for each, _, _ in CASES)]


@settings(max_examples=600, deadline=None)
@given(
    task=st.sampled_from(TASKS),
    payload=st.dictionaries(
        st.sampled_from(["value", "to", "copies", "extra", "at", "more"]),
        WRITTEN | JSON | st.lists(WRITTEN, max_size=2),
    ),
)
def test_a_worker_can_read_every_call_that_is_accepted(
    task: Callable[[], CallSignature], payload: dict[str, Any]
) -> None:
    try:
        packed = task().pack_json(payload)
    except InvalidRequest:
        return

    task().unpack(JsonCodec().decode(JsonCodec().encode(packed, context=b""), context=b""))
