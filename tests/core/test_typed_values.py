"""Converting annotated values: the stored form, round trips and refusals."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import annotated_types
import pydantic
import pytest

from taskharbor.core.codec import JsonCodec
from taskharbor.core.conversion import TypeMismatch
from taskharbor.core.errors import UsageError
from taskharbor.core.typed_values import converter_for

UserId = NewType("UserId", int)
T = TypeVar("T")


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


@dataclass(slots=True)
class Spot(Point):
    label: str = ""


@dataclass
class Box(Generic[T]):
    item: T
    rest: list[T] = field(default_factory=list)


@dataclass
class Scaled:
    number: int
    factor: InitVar[int] = 2


class Range(NamedTuple):
    low: int
    high: int = 9


Pair = namedtuple("Pair", "left right")  # noqa: PYI024  without annotations


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


class Flags(TypedDict, total=False):
    loud: bool


class Call(Flags):
    number: str


class Person(pydantic.BaseModel):
    name: str
    born: date
    tags: set[str] = set()


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    born: date

    @pydantic.computed_field
    def year(self) -> int:
        return self.born.year


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Worker(Person):
    salary: int = 0


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
    (Strict, Strict(born=date(1815, 12, 10))),
    (Spot, Spot(1, 2.0, "here")),
    (Point | Spot, Spot(1, 2.0, "here")),
    (Box[tuple[int, ...]], Box[Any]((1, 2), [(3,)])),
    (Box[Box[int]], Box(Box(1))),
    (Range, Range(1)),
    (list[Range], [Range(1, 2)]),
    (Pair, Pair(1, "b")),
    (Literal[Color.RED], Color.RED),
    (Color | str, "blue"),
    (Call, {"number": "1"}),
    (Any, {"whatever": 1}),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=lambda each: repr(each)[:40])
def test_a_stored_value_round_trips_with_its_type(annotation: Any, value: object) -> None:
    shape, codec = converter_for(annotation), JsonCodec()

    stored = codec.encode(shape.pack(value, "$"), context=b"")
    back = shape.unpack(codec.decode(stored, context=b""), "$")

    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "refusal"),
    [
        (int, "7", "$: must be int, not str"),
        (int, True, "$: must be int, not bool"),
        (str, None, "$: must be str, not None"),
        (float, "1", "$: must be float, not str"),
        (date, datetime(2030, 1, 1, tzinfo=UTC), "$: must be date, not datetime"),
        (Literal["a", "b"], "c", "$: must be one of 'a', 'b'"),
        (Literal[1], True, "$: must be one of 1"),
        (int | None, "x", "$: must be int | None, not str"),
        (list[int], [1, "2"], "$[1]: must be int, not str"),
        (list[int], "12", "$: must be list, not str"),
        (tuple[int, str], (1,), "$: must have 2 items, not 1"),
        (dict[str, int], {"a": "b"}, "$['a']: must be int, not str"),
        (dict[str, int], {1: 1}, "$ key: must be str, not int"),
        (Color, "red", "$: must be Color, not str"),
        (Point, {"x": 1}, "$: must be Point, not dict"),
        (Point, Point("1"), "$.x: must be int, not str"),  # type: ignore[arg-type]
        (Tree, Tree("a", [Tree("b", [Tree(3)])]), "$.children[0].children[0].name: must be str, not int"),  # type: ignore[arg-type]
        (Point | None, Point("1"), "$.x: must be int, not str"),  # type: ignore[arg-type]
        (Address, {"street": 1}, "$.street: must be str, not int"),
        (Person, {"name": "Ada"}, "$: must be Person, not dict"),
        (Point, Spot(1), "$: must be Point itself, not Spot: it would be read back as Point"),
        (
            Person,
            Worker(name="Ada", born=date(1815, 12, 10)),
            "$: must be Person itself, not Worker: it would be read back as Person",
        ),
        (Box[int], Box[Any](1, ["2"]), "$.rest[0]: must be int, not str"),
        (Range, Range("1"), "$.low: must be int, not str"),  # type: ignore[arg-type]
        (Range, (1, 2), "$: must be Range, not tuple"),
        (Literal[Color.RED], "red", "$: must be one of <Color.RED: 'red'>"),
        (float, 10**400, "$: is too large for a float"),
        (timedelta, timedelta.max, "$: exceeds the range of timedelta"),
        (timedelta, timedelta(days=900_000, microseconds=1), "$: too long to be stored to the microsecond"),
        (
            list[int] | set[int],
            {1},
            "$: would be read back as list: in list[int] | set[int] name set first, or give it a field of its own",
        ),
        (
            Login,
            Login(user="Ada", password=pydantic.SecretStr("hunter2")),
            "$.password: would not be read back unchanged: check how its model dumps it as JSON",
        ),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_a_mismatch_is_refused_with_its_path_when_packing(annotation: Any, value: object, refusal: str) -> None:
    with pytest.raises(TypeMismatch) as refused:
        converter_for(annotation).pack(value, "$")

    assert str(refused.value) == refusal


@pytest.mark.parametrize(
    ("annotation", "stored", "refusal"),
    [
        (Color, "blue", "$: must be the value of a Color: 'red'"),
        (Point, {"y": 1}, "$.x: missing: Point requires it"),
        (Point, {"x": 1, "z": 2}, "$.z: Point has no such field"),
        (Point, [1, 2], "$: must be an object with the fields of Point, not list"),
        (Positive, {"number": -1}, "$: not a valid Positive: must be above zero"),
        (Address, {}, "$.street: missing: Address requires it"),
        (timedelta, "1h", "$: must be float, not str"),
        (timedelta, 1e300, "$: exceeds the range of timedelta"),
        (Strict, {"born": 7}, "$.born: not a valid Strict: Input should be a valid date"),
        (tuple[int, ...], {"a": 1}, "$: must be list, not dict"),
        (dict[int, str], {"1": "a"}, "$: must be a list of .key, value. pairs, since its keys are not str"),
        (dict[int, str], [[1]], "$: must be a list of .key, value. pairs, since its keys are not str"),
        (set[Any], [[1]], "$: an item cannot be in a set, since it is not hashable"),
        (Person, {"name": "Ada", "born": "long ago"}, "$.born: not a valid Person: Input should be a valid date .*"),
    ],
    ids=lambda each: repr(each)[:40],
)
def test_a_mismatch_is_refused_with_its_path_when_unpacking(annotation: Any, stored: object, refusal: str) -> None:
    with pytest.raises(TypeMismatch, match=refusal.replace("$", r"\$").replace("|", r"\|")):
        converter_for(annotation).unpack(stored, "$")


def test_equal_sets_are_stored_equally() -> None:
    shape = converter_for(set[str])

    assert shape.pack({"b", "a", "c"}, "$") == ["a", "b", "c"]


def test_a_dataclass_is_stored_as_json() -> None:
    stored = converter_for(dict[str, Tree]).pack({"oak": Tree("a", [Tree("b")])}, "$")

    assert json.dumps(stored) == '{"oak": {"name": "a", "children": [{"name": "b", "children": []}]}}'


def test_a_model_is_stored_by_alias_if_it_can_be_validated_so() -> None:
    class Aliased(pydantic.BaseModel):
        first_name: str = pydantic.Field(alias="firstName")

    class WrittenSo(pydantic.BaseModel):
        age: int = pydantic.Field(serialization_alias="years")

    aliased, written_so = Aliased(firstName="Ada"), WrittenSo(age=36)

    assert converter_for(Aliased).pack(aliased, "$") == {"firstName": "Ada"}
    assert converter_for(Aliased).unpack({"firstName": "Ada"}, "$") == aliased
    assert converter_for(WrittenSo).pack(written_so, "$") == {"age": 36}
    assert converter_for(WrittenSo).unpack({"age": 36}, "$") == written_so


def test_the_second_of_two_union_members_with_equal_fields_is_refused() -> None:
    @dataclass
    class Cat:
        name: str
        lives: int = 9

    @dataclass
    class Dog:
        name: str

    with pytest.raises(
        TypeMismatch, match=r"would be read back as Cat: in .* name Dog first, or give it a field of its own"
    ):
        converter_for(Cat | Dog).pack(Dog("Rex"), "$")
    assert converter_for(Dog | Cat).unpack(converter_for(Dog | Cat).pack(Dog("Rex"), "$"), "$") == Dog("Rex")
    assert converter_for(Dog | Cat).unpack(converter_for(Dog | Cat).pack(Cat("Tom"), "$"), "$") == Cat("Tom")


def test_a_dataclass_with_an_init_var_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Scaled.factor is an InitVar: .* make it a field"):
        converter_for(Scaled).pack(Scaled(1, 5), "$")


def test_a_local_class_may_refer_to_itself_but_not_to_others() -> None:
    @dataclass
    class Inner:
        number: int
        below: Inner | None = None

    @dataclass
    class Outer:
        inner: Inner

    shape = converter_for(Inner)

    assert shape.unpack(shape.pack(Inner(1, Inner(2)), "$"), "$") == Inner(1, Inner(2))
    with pytest.raises(UsageError, match=r"annotation of .*Outer is unresolved: name 'Inner' is not defined; define"):
        converter_for(Outer).pack(Outer(Inner(1)), "$")


def test_a_model_changed_to_an_invalid_value_is_refused_when_packing() -> None:
    person = Person(name="Ada", born=date(1815, 12, 10))
    person.name = 7  # type: ignore[assignment]

    with pytest.raises(TypeMismatch, match="name: not a valid Person: Input should be a valid string"):
        converter_for(Person).pack(person, "$")


@dataclass
class Ticket:
    seats: Annotated[int, pydantic.Field(gt=0, le=9)]
    rows: list[Annotated[str, pydantic.StringConstraints(min_length=1)]] = field(default_factory=list)


class Seat(TypedDict):
    row: NotRequired[Annotated[int, pydantic.Field(gt=0)]]


@pytest.mark.parametrize(
    ("annotation", "value", "refusal"),
    [
        (Annotated[int, pydantic.Field(gt=3)], 3, "$: Input should be greater than 3"),
        (Annotated[int, annotated_types.Gt(3)], 3, "$: Input should be greater than 3"),
        (Annotated[int, pydantic.Field(gt=3)], "4", "$: must be int, not str"),
        (list[Annotated[str, pydantic.Field(max_length=2)]], ["ab", "abc"], "$[1]: String should have at most 2 char"),
        (Ticket, Ticket(10), "$.seats: Input should be less than or equal to 9"),
        (Ticket, Ticket(1, ["a", ""]), "$.rows[1]: String should have at least 1 character"),
        (Seat, {"row": 0}, "$.row: Input should be greater than 0"),
    ],
)
def test_a_value_outside_its_constraints_is_refused_in_all_directions(
    annotation: Any, value: Any, refusal: str
) -> None:
    converter = converter_for(annotation)
    stored = vars(value) if isinstance(value, Ticket) else value

    for convert, given in ((converter.pack, value), (converter.unpack, stored), (converter.read, stored)):
        with pytest.raises(TypeMismatch) as caught:
            convert(given, "$")
        assert str(caught.value).startswith(refusal)


def test_a_value_within_its_constraints_is_stored_as_pydantic_changes_it() -> None:
    name = converter_for(Annotated[str, pydantic.StringConstraints(strip_whitespace=True, to_lower=True)])

    assert name.pack(" Ada ", "$") == "ada"
    assert name.unpack(" Ada ", "$") == "ada"


def test_metadata_that_is_no_constraint_is_ignored() -> None:
    assert converter_for(Annotated[int, "the number of seats"]).pack(7, "$") == 7


def test_constraints_are_refused_if_pydantic_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)

    with pytest.raises(UsageError, match=r"annotation is .*Gt.*: only pydantic enforces.*pip install pydantic"):
        converter_for(Annotated[int, annotated_types.Gt(3)])


def test_constraints_that_do_not_fit_the_type_are_refused() -> None:
    class Unknown: ...

    with pytest.raises(UsageError, match=r"annotation is .*: pydantic cannot enforce its constraints: "):
        converter_for(Annotated[Unknown, pydantic.Field(gt=3)])
