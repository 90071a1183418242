"""Storing and reading back calls of functions."""

from __future__ import annotations

from collections.abc import Iterable  # noqa: TC003  annotations are resolved
from dataclasses import dataclass
from datetime import time  # noqa: TC003  annotations are resolved
from fractions import Fraction  # noqa: TC003  annotations are resolved
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.codec import JsonCodec, can_store
from taskharbor.core.errors import CallNotReadable, InvalidRequest, UsageError
from taskharbor.core.signatures import CallSignature
from taskharbor.core.typed_values import UnresolvedAnnotation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class Ctx:
    """Stands in for the worker's context."""


@dataclass
class Tree:
    children: list[Tree]


def arguments(function: Callable[..., Any]) -> CallSignature:
    return CallSignature(function, context=Ctx)


def mixed(first: int, /, second: str = "b", *rest: float, named: bool, other: int = 5, **more: str) -> str:
    return repr((first, second, rest, named, other, more))


@pytest.mark.parametrize(
    ("args", "kwargs", "stored"),
    [
        ((1,), {"named": True}, {"first": 1, "named": True}),
        ((1, "x"), {"named": True, "other": 6}, {"first": 1, "second": "x", "named": True, "other": 6}),
        ((1, "x", 0.5, 1.5), {"named": False}, {"first": 1, "second": "x", "rest": [0.5, 1.5], "named": False}),
        ((1,), {"named": True, "z": "y"}, {"first": 1, "named": True, "more": {"z": "y"}}),
        ((1,), {"second": "x", "named": True}, {"first": 1, "second": "x", "named": True}),
    ],
)
def test_a_call_is_stored_by_parameter_name_and_round_trips(
    args: tuple[Any, ...], kwargs: dict[str, Any], stored: dict[str, Any]
) -> None:
    packed = arguments(mixed).pack(args, kwargs)
    again_args, again_kwargs = arguments(mixed).unpack(packed)

    assert packed == stored
    assert mixed(*again_args, **again_kwargs) == mixed(*args, **kwargs)


def test_an_argument_left_to_its_default_is_not_stored() -> None:
    assert arguments(mixed).pack((1,), {"named": True}) == {"first": 1, "named": True}


def test_arguments_after_a_defaulted_one_keep_their_position() -> None:
    def middle(a: int, b: int = 2, *rest: int) -> tuple[int, ...]:
        return (a, b, *rest)

    args, kwargs = arguments(middle).unpack({"a": 1, "rest": [3]})

    assert middle(*args, **kwargs) == (1, 2, 3)


@pytest.mark.parametrize(
    ("args", "kwargs", "refusal"),
    [
        ((), {"named": True}, "missing a required argument: 'first'"),
        (("1",), {"named": True}, "first .*must be int, not str"),
        ((1, "a", "b"), {"named": True}, r"rest\[0\] .*must be float"),
        ((1,), {"named": True, "more": 3}, r"more\['more'\] .*must be str"),
    ],
)
def test_a_call_that_does_not_match_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InvalidRequest, match=refusal):
        arguments(mixed).pack(args, kwargs)


@pytest.mark.parametrize(
    ("stored", "refusal"),
    [
        ([1], "'mixed': the payload must be an object"),
        ({"named": True}, "'mixed': first: missing, and it has no default"),
        ({"first": 1, "named": True, "gone": 2}, "'mixed': gone: no such parameter"),
        ({"first": "1", "named": True}, "'mixed': first: must be int, not str"),
        (
            {"first": 1, "named": True, "more": {"named": "x"}},
            r"'mixed': more\['named'\]: a parameter has this name",
        ),
        ({"first": 1, "named": True, "more": {"second": "x"}}, r"'mixed': more\['second'\]: a parameter has this name"),
    ],
)
def test_a_stored_call_that_no_longer_matches_is_refused(stored: object, refusal: str) -> None:
    with pytest.raises(CallNotReadable, match=refusal):
        arguments(mixed).unpack(stored)


def test_a_first_parameter_annotated_with_the_context_is_passed_by_the_worker() -> None:
    def task(ctx: Ctx, number: int) -> None: ...

    assert arguments(task).takes_context
    assert arguments(task).pack((7,), {}) == {"number": 7}
    assert arguments(task).unpack({"number": 7}) == ((7,), {})


def test_a_parameter_without_an_annotation_is_refused_by_name() -> None:
    def untyped(number) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  that is the point

    with pytest.raises(UsageError, match="parameter 'number' is not annotated: annotate it"):
        arguments(untyped)


def test_a_context_that_is_not_the_first_parameter_is_refused_by_name() -> None:
    def second(number: int, ctx: Ctx) -> None: ...

    def named(*, ctx: Ctx) -> None: ...

    def perhaps(ctx: Ctx | None = None) -> None: ...

    for each in (second, named, perhaps):
        with pytest.raises(UsageError, match=r"parameter 'ctx' is annotated Ctx: only the first parameter"):
            arguments(each).pack((), {})


def test_a_non_function_or_generator_is_refused_at_definition() -> None:
    class Kind:
        number: int

        def method(self) -> None: ...

    def plain() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for each, refusal in (
        (partial(mixed, 1), r"task is an object of type partial: write a function with 'def'"),
        (7, r"task is an object of type int: write a function"),
        (Kind, r"task is 'Kind': write a function"),
        (Kind.method, r"parameter 'self' is not annotated: a task cannot be a method"),
        (plain, r"task is 'plain': it is a generator, and a job has one result"),
        (later, r"task is 'later': it is a generator, and a job has one result"),
    ):
        with pytest.raises(UsageError, match=refusal):
            arguments(each)  # type: ignore[arg-type]


def test_a_value_that_contains_itself_is_refused() -> None:
    def grow(tree: Tree) -> None: ...

    tree = Tree([])
    tree.children.append(tree)

    with pytest.raises(InvalidRequest, match="nested too deeply or contains itself"):
        arguments(grow).pack((tree,), {})


def test_names_imported_for_type_checking_only_are_refused_on_use() -> None:
    def hidden(number: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  that is the point

    with pytest.raises(UsageError, match="name 'Nowhere' is not defined"):
        arguments(hidden).pack((7,), {})


def test_results_are_checked_and_round_trip() -> None:
    def pair() -> tuple[int, str]: ...  # type: ignore[empty-body]

    stored = arguments(pair).pack_result((1, "a"))

    assert stored == [1, "a"]
    assert arguments(pair).unpack_result(stored) == (1, "a")
    with pytest.raises(InvalidRequest, match=r"result .*must have 2 items"):
        arguments(pair).pack_result((1,))
    with pytest.raises(CallNotReadable, match=r"result\[1\]: must be str"):
        arguments(pair).unpack_result([1, 2])


@dataclass
class Upload:
    name: str
    chunks: list[tuple[int, Path]]
    next: Upload | None = None


def test_a_class_that_the_codec_cannot_store_is_refused_with_its_place() -> None:
    def where(path: Path) -> None: ...

    def nested(upload: Upload) -> None: ...

    def many(*, times: dict[str, time]) -> None: ...

    def either(value: int | Fraction) -> None: ...

    def answer() -> Path: ...  # type: ignore[empty-body]

    for function, refusal in (
        (where, "parameter 'path' is annotated Path: Path cannot be stored: annotate it with a type that can"),
        (nested, "parameter 'upload.chunks[0][1]' is annotated Path: "),
        (many, "parameter 'times[…]' is annotated time: "),
        (either, "parameter 'value' is annotated Fraction: "),
        (answer, "result is annotated Path: "),
    ):
        with pytest.raises(UsageError) as caught:
            arguments(function).check(JsonCodec().stores)
        assert str(caught.value).startswith(refusal)
        assert "types that can be stored are None, bool, int, float, str, bytes, date, datetime" in str(caught.value)


def test_every_class_is_accepted_if_the_codec_can_store_it() -> None:
    class Anything(JsonCodec):
        def encode(self, value: object, *, context: bytes) -> bytes:
            return super().encode(str(value), context=context)

    class Paths(Anything):
        def stores(self, kind: type) -> bool:
            return kind is Path

    def where(path: Path, upload: Upload) -> None: ...

    def when(at: time) -> None: ...

    for codec in (Anything(), Paths()):
        arguments(where).check(partial(can_store, codec))
    arguments(when).check(partial(can_store, Anything()))
    with pytest.raises(UsageError, match="parameter 'at' is annotated time"):
        arguments(when).check(partial(can_store, Paths()))


def test_annotations_of_all_storable_kinds_are_accepted_at_definition() -> None:
    def task(
        ctx: Ctx, numbers: Iterable[int], tree: Tree, anything: Any, thing: object, *rest: float, **more: str
    ) -> None: ...

    arguments(task).check(JsonCodec().stores)


def test_a_name_that_is_not_defined_yet_has_an_error_of_its_own() -> None:
    def later(number: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  that is the point

    with pytest.raises(UnresolvedAnnotation, match="name 'Nowhere' is not defined"):
        arguments(later).check(JsonCodec().stores)
