"""Lifespans: set up what handlers share before the first job, and tear it down after the last."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.text import duration_text
from taskharbor.runtime import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskharbor.runtime import Runtime

Lifespan = Callable[[], Iterator[Any] | AsyncIterator[Any]]
"""A generator function that yields once: it sets up the value before the yield, and tears it down after it."""
_LOG: Final = logging.getLogger("taskharbor.worker")
LIFESPAN_TIMEOUT: Final = timedelta(seconds=60)
FINISHED: Final = object()
_VARIADIC: Final = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


def check_lifespan(function: Callable[..., Any] | None) -> None:
    """Raise `UsageError` if *function* cannot be a lifespan. None means that there is none."""
    if function is None:
        return
    if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        rule = "must be a generator function that yields once, without @contextmanager"
        raise UsageError(Problem(field="lifespan", value=_name(function), rule=rule))
    if any(each.default is each.empty and each.kind not in _VARIADIC for each in _parameters(function)):
        raise UsageError(Problem(field="lifespan", value=_name(function), rule="must have no required parameters"))


class LifespanRun:
    """One run of a lifespan. An async one runs on the event loop of the handlers."""

    def __init__(self, runtime: Runtime, function: Lifespan) -> None:
        self._runtime = runtime
        self._generator = function()
        self._name = _name(function)

    def enter(self) -> Any:
        """Run the lifespan to its yield, and return the yielded value."""
        try:
            return yielded(self._next(), self._name)
        except BaseException:
            self._runtime.close()  # stop the event loop that an async lifespan has started
            raise

    def leave(self) -> None:
        """Run the lifespan to its end, or until its timeout. All jobs are settled or released by then.

        So an error is only logged. A sync lifespan runs in a thread of its own, which may be left behind.
        """
        if not isinstance(self._generator, Iterator):
            self._leave()
        elif not self._runtime.serve("lifespan", self._leave).join(LIFESPAN_TIMEOUT):
            limit = duration_text(LIFESPAN_TIMEOUT.total_seconds())
            _LOG.error("lifespan %s did not end within %s of its yield", self._name, limit)

    def _leave(self) -> None:
        try:
            ended(self._next(), self._name)
        except BaseException:  # noqa: BLE001  user code; one that awaits what it has cancelled raises CancelledError
            _LOG.exception("lifespan %s failed after its yield", self._name)

    def _next(self) -> Any:
        if isinstance(self._generator, Iterator):
            return next(self._generator, FINISHED)
        return run_coroutine(self._runtime, astep(self._generator), timeout=LIFESPAN_TIMEOUT)


async def astep(generator: AsyncIterator[Any]) -> Any:
    """Run an async lifespan to its yield, and return the yielded value; FINISHED at its end."""
    return await anext(generator, FINISHED)


def yielded(value: Any, name: str) -> Any:
    """Return the yielded value; raise `UsageError` if the lifespan ended without a yield."""
    if value is FINISHED:
        raise UsageError(Problem(field="lifespan", value=name, rule="it must yield once"))
    return value


def ended(value: Any, name: str) -> None:
    """Raise `UsageError` if the lifespan yielded a second time."""
    if value is not FINISHED:
        raise UsageError(Problem(field="lifespan", value=name, rule="it must yield only once"))


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    return inspect.signature(function).parameters.values()


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
