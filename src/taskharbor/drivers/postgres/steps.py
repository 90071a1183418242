"""What a verb asks of the server, one statement after the other, apart from who runs them.

A verb that also runs in a transaction of the user's is written once, as a generator: it yields a
statement with its values, is sent the rows, and returns its answer. Whose connection that is,
and whether it is awaited, is up to the runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from taskharbor.drivers.postgres.connection import Row

    T = TypeVar("T")
    Step = tuple[LiteralString, dict[str, Any]]
    Steps = Generator[Step, list[Row], T]


def run_statements(steps: Steps[T], fetch: Callable[..., list[Row]]) -> T:
    """Run every statement by *fetch*, and return what *steps* return."""
    rows: list[Row] | None = None
    while True:
        try:
            statement, asked = _next(steps, rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        rows = fetch(statement, **asked)


async def arun_statements(steps: Steps[T], fetch: Callable[..., Awaitable[list[Row]]]) -> T:
    """Do as `run_statements` does, and await each statement."""
    rows: list[Row] | None = None
    while True:
        try:
            statement, asked = _next(steps, rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        rows = await fetch(statement, **asked)


def _next(steps: Steps[T], rows: list[Row] | None) -> Step:
    return next(steps) if rows is None else steps.send(rows)
