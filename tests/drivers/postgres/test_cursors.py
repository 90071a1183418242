"""Cursors that a connection keeps for the statements it runs often."""

from __future__ import annotations

import gc
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.server import MAX_CURSORS, MAX_KEPT_CHARS, MAX_KEPT_ITEMS
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.drivers.postgres.server import ServerConnection

TEXT: Final = b"SELECT %(value)s::text"
TEXTS: Final = b"SELECT unnest(%(value)s::text[])"
ROW: Final = b"SELECT ROW(%(value)s::text)"  # as a claim returns; only its cursor is in a reference cycle


@pytest.fixture(scope="module")
def db() -> Iterator[ServerConnection]:
    with closing(PostgresDriver(emptied())) as driver, driver._connections.connection() as db:  # noqa: SLF001  the subject of these tests
        yield db


def cursor_after(db: ServerConnection, query: bytes, value: Any) -> psycopg.Cursor | None:
    db.fetch(query, {"value": value})
    return db._cursors.get(query)  # noqa: SLF001  what is kept is not visible otherwise


@pytest.fixture
def only_explicit_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("only_explicit_collections")
def test_a_repeated_statement_leaves_nothing_to_the_garbage_collector(db: ServerConnection) -> None:
    db.fetch(ROW, {"value": "x"})
    gc.collect()

    for _ in range(50):
        db.fetch(ROW, {"value": "x"})

    assert gc.collect() < 50  # a cursor that is not kept leaves several objects


def test_statements_that_take_turns_keep_their_own_cursors(db: ServerConnection) -> None:
    kept = [cursor_after(db, TEXT, "x"), cursor_after(db, TEXTS, ["x", "y"])]

    assert [db.fetch(TEXT, {"value": "z"}), db.fetch(TEXTS, {"value": ["v", "w"]})] == [[("z",)], [("v",), ("w",)]]
    assert [db._cursors[TEXT], db._cursors[TEXTS]] == kept  # noqa: SLF001


def test_a_kept_cursor_has_none_of_the_rows_it_returned(db: ServerConnection) -> None:
    cursor = cursor_after(db, TEXTS, ["x"])

    assert cursor is not None
    assert cursor.pgresult is not None
    assert cursor.pgresult.ntuples == 0


@pytest.mark.parametrize(
    ("query", "value"),
    [
        (TEXT, "x" * (MAX_KEPT_CHARS + 1)),
        (TEXTS, ["x", None, "x" * (MAX_KEPT_CHARS + 1)]),
        (TEXTS, ["x"] * (MAX_KEPT_ITEMS + 1)),
    ],
    ids=["text", "text in a list", "list"],
)
def test_the_cursor_of_a_large_parameter_is_not_kept(db: ServerConnection, query: bytes, value: Any) -> None:
    assert cursor_after(db, query, value) is None


def test_a_connection_keeps_few_cursors_those_that_were_used_last(db: ServerConnection) -> None:
    queries = [f"SELECT {number}, %(value)s::text".encode() for number in range(MAX_CURSORS)]
    for query in (TEXT, *queries[:-1], TEXT, queries[-1]):
        db.fetch(query, {"value": "x"})

    assert list(db._cursors) == [*queries[:-1], TEXT, queries[-1]][-MAX_CURSORS:]  # noqa: SLF001


def test_the_cursor_of_a_failed_statement_is_not_kept(db: ServerConnection) -> None:
    with pytest.raises(psycopg.errors.UndefinedFunction):
        db.fetch(b"SELECT no_such(%(value)s::text)", {"value": "x"})
    assert cursor_after(db, TEXT, "x") is not None
    with pytest.raises(psycopg.errors.DivisionByZero):
        db.fetch(b"SELECT 1 / %(value)s::int", {"value": 0})

    assert b"SELECT 1 / %(value)s::int" not in db._cursors  # noqa: SLF001
    assert db.fetch(TEXT, {"value": "y"}) == [("y",)]
