"""What handlers share while a worker runs: made ready before its first job, and given back after its last."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.runtime import finished

if TYPE_CHECKING:
    from taskharbor.runtime import Runtime

Lifespan = Callable[[], Iterator[Any] | AsyncIterator[Any]]
"""A function that yields once: before that it makes ready what it yields, after that it gives it back."""
LONGEST: Final = timedelta(seconds=60)


def check_lifespan(function: Callable[..., Any]) -> None:
    """Raise `UsageError` where *function* cannot be a lifespan."""
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        rule = "write a function that yields: what it makes ready, once"
        raise UsageError(Problem(field="lifespan", value=_name(function), rule=rule))


class Span:
    """One run of a lifespan. An async one runs on the event loop of the handlers."""

    def __init__(self, runtime: Runtime, function: Lifespan) -> None:
        self._runtime = runtime
        self._made = function()
        self._name = _name(function)

    def enter(self) -> Any:
        """Run it up to its yield, and return what that gives."""
        try:
            return self._next()
        except (StopIteration, StopAsyncIteration):
            raise UsageError(Problem(field="lifespan", value=self._name, rule="it must yield once")) from None

    def leave(self) -> None:
        """Run it to its end."""
        try:
            self._next()
        except (StopIteration, StopAsyncIteration):
            return
        raise UsageError(Problem(field="lifespan", value=self._name, rule="it must yield only once"))

    def _next(self) -> Any:
        if isinstance(self._made, Iterator):
            return next(self._made)
        return finished(self._runtime, _awaited(self._made), timeout=LONGEST)


async def _awaited(made: AsyncIterator[Any]) -> Any:
    return await anext(made)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
