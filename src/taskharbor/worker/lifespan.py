"""What handlers share while a worker runs: made ready before its first job, and given back after its last."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.runtime import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskharbor.runtime import Runtime

Lifespan = Callable[[], Iterator[Any] | AsyncIterator[Any]]
"""A function that yields once: before that it makes ready what it yields, after that it gives it back."""
_LOG: Final = logging.getLogger("taskharbor.worker")
LIFESPAN_TIMEOUT: Final = timedelta(seconds=60)
FINISHED: Final = object()
_ANY_NUMBER: Final = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def check_lifespan(function: Callable[..., Any]) -> None:
    """Raise `UsageError` where *function* cannot be a lifespan."""
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        rule = "write a function that yields: what it makes ready, once; it needs no @contextmanager"
        raise UsageError(Problem(field="lifespan", value=_name(function), rule=rule))
    if any(each.default is each.empty and each.kind not in _ANY_NUMBER for each in _parameters(function)):
        raise UsageError(Problem(field="lifespan", value=_name(function), rule="it is called without arguments"))


class LifespanRun:
    """One run of a lifespan. An async one runs on the event loop of the handlers."""

    def __init__(self, runtime: Runtime, function: Lifespan) -> None:
        self._runtime = runtime
        self._made = function()
        self._name = _name(function)

    def enter(self) -> Any:
        """Run it up to its yield, and return what that gives."""
        try:
            return yielded(self._next(), self._name)
        except BaseException:
            self._runtime.close()  # nobody will work with the event loop that an async one has started
            raise

    def leave(self) -> None:
        """Run it to its end. Every job is settled or released by then, so an error is logged and changes nothing."""
        try:
            ended(self._next(), self._name)
        except Exception:  # noqa: BLE001  a user's code
            _LOG.exception("the lifespan did not end well")

    def _next(self) -> Any:
        if isinstance(self._made, Iterator):
            return next(self._made, FINISHED)
        return run_coroutine(self._runtime, astep(self._made), timeout=LIFESPAN_TIMEOUT)


async def astep(made: AsyncIterator[Any]) -> Any:
    """Run an async lifespan up to its yield, and return what that gives; OVER at its end."""
    return await anext(made, FINISHED)


def yielded(value: Any, name: str) -> Any:
    """Return what a lifespan gave, if it gave something."""
    if value is FINISHED:
        raise UsageError(Problem(field="lifespan", value=name, rule="it must yield once"))
    return value


def ended(value: Any, name: str) -> None:
    """Raise `UsageError` where a lifespan gave something when it should have ended."""
    if value is not FINISHED:
        raise UsageError(Problem(field="lifespan", value=name, rule="it must yield only once"))


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
