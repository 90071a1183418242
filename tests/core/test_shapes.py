"""Values by their annotations: what is stored, what comes back, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import pydantic
import pytest

from taskharbor.core.codec import JsonCodec
from taskharbor.core.shapes import Misfit, shape_of

UserId = NewType("UserId", int)


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass
class Point:
    x: int
    y: float = 0.5


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("must be above zero")


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


class Person(pydantic.BaseModel):
    name: str
    born: date
    tags: set[str] = set()


ROUND_TRIPS: list[tuple[Any, object]] = [
    (int, 7),
    (str, "hé"),
    (bool, True),
    (None, None),
    (float, 1.5),
    (bytes, b"\x00"),
    (Decimal, Decimal("9.90")),
    (UUID, UUID(int=7)),
    (datetime, datetime(2030, 1, 1, tzinfo=UTC)),
    (date, date(2030, 1, 1)),
    (timedelta, timedelta(days=2, microseconds=3)),
    (UserId, 7),
    (Annotated[int, "positive"], 7),
    (Literal["a", 1], "a"),
    (int | None, None),
    (int | str, "x"),
    (list[int], [1, 2]),
    (list, ["any", 1]),
    (Sequence[int], [1]),
    (tuple[int, ...], (1, 2)),
    (tuple[int, str], (1, "a")),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[str, Point], {"a": Point(1)}),
    (dict[int, str], {1: "a"}),
    (Mapping[str, int], {"a": 1}),
    (dict, {"a": [1]}),
    (Color, Color.RED),
    (Level, Level.LOW),
    (Point, Point(1, 2.0)),
    (Tree, Tree("a", [Tree("b")])),
    (list[Tree | None], [None, Tree("a")]),
    (Address, {"street": "Main"}),
    (Person, Person(name="Ada", born=date(1815, 12, 10), tags={"x"})),
    (list[Person], [Person(name="Ada", born=date(1815, 12, 10))]),
    (Any, {"whatever": 1}),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=lambda each: repr(each)[:40])
def test_what_is_stored_comes_back_equal_and_of_the_same_type(annotation: Any, value: object) -> None:
    shape, codec = shape_of(annotation), JsonCodec()

    stored = codec.encode(shape.pack(value, "$"), context=b"")
    back = shape.unpack(codec.decode(stored, context=b""), "$")

    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "refusal"),
    [
        (int, "7", "$: must be int, and is str"),
        (int, True, "$: must be int, and is bool"),
        (str, None, "$: must be str, and is None"),
        (float, "1", "$: must be float, and is str"),
        (date, datetime(2030, 1, 1, tzinfo=UTC), "$: must be date, and is datetime"),
        (Literal["a", "b"], "c", "$: must be one of 'a', 'b'"),
        (Literal[1], True, "$: must be one of 1"),
        (int | None, "x", "$: must be int | None, and is str"),
        (list[int], [1, "2"], "$[1]: must be int, and is str"),
        (list[int], "12", "$: must be list, and is str"),
        (tuple[int, str], (1,), "$: must have 2 items, and has 1"),
        (dict[str, int], {"a": "b"}, "$['a']: must be int, and is str"),
        (dict[str, int], {1: 1}, "$ key: must be str, and is int"),
        (Color, "red", "$: must be Color, and is str"),
        (Point, {"x": 1}, "$: must be Point, and is dict"),
        (Point, Point("1"), "$.x: must be int, and is str"),  # type: ignore[arg-type]
        (Tree, Tree("a", [Tree("b", [Tree(3)])]), "$.children[0].children[0].name: must be str, and is int"),  # type: ignore[arg-type]
        (Point | None, Point("1"), "$.x: must be int, and is str"),  # type: ignore[arg-type]
        (Address, {"street": 1}, "$.street: must be str, and is int"),
        (Person, {"name": "Ada"}, "$: must be Person, and is dict"),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_what_does_not_fit_is_refused_on_the_way_in_with_its_path(annotation: Any, value: object, refusal: str) -> None:
    with pytest.raises(Misfit) as refused:
        shape_of(annotation).pack(value, "$")

    assert str(refused.value) == refusal


@pytest.mark.parametrize(
    ("annotation", "stored", "refusal"),
    [
        (Color, "blue", "$: must be the value of a Color: 'red'"),
        (Point, {"y": 1}, "$.x: is missing: Point needs it"),
        (Point, {"x": 1, "z": 2}, "$.z: Point has no such field"),
        (Point, [1, 2], "$: must be an object with the fields of Point, and is list"),
        (Positive, {"number": -1}, "$: is no Positive: must be above zero"),
        (Address, {}, "$.street: is missing: Address needs it"),
        (timedelta, "1h", "$: must be float, and is str"),
        (tuple[int, ...], {"a": 1}, "$: must be list, and is dict"),
        (dict[int, str], {"1": "a"}, "$: must be list, and is dict"),
        (Person, {"name": "Ada", "born": "long ago"}, "$: is no Person: born: Input should be a valid date .*"),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_what_does_not_fit_is_refused_on_the_way_out_with_its_path(
    annotation: Any, stored: object, refusal: str
) -> None:
    with pytest.raises(Misfit, match=refusal.replace("$", r"\$").replace("|", r"\|")):
        shape_of(annotation).unpack(stored, "$")


def test_a_set_is_stored_the_same_whatever_its_order_in_memory() -> None:
    shape = shape_of(set[str])

    assert shape.pack({"b", "a", "c"}, "$") == ["a", "b", "c"]


def test_what_is_stored_of_a_dataclass_is_plain_json() -> None:
    stored = shape_of(dict[str, Tree]).pack({"oak": Tree("a", [Tree("b")])}, "$")

    assert json.dumps(stored) == '{"oak": {"name": "a", "children": [{"name": "b", "children": []}]}}'


def test_a_model_that_was_changed_for_the_worse_is_refused_at_the_enqueue() -> None:
    person = Person(name="Ada", born=date(1815, 12, 10))
    person.name = 7  # type: ignore[assignment]

    with pytest.raises(Misfit, match="is no Person: name: Input should be a valid string"):
        shape_of(Person).pack(person, "$")
