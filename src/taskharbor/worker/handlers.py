"""What is put around handlers, and how it is folded into one call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.outcome import DEFAULT_POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.model import Job
    from taskharbor.core.retry import RetryPolicy
    from taskharbor.worker.context import Context

SyncCall = Callable[["Job", "Context"], Any]
AsyncCall = Callable[["Job", "Context"], Awaitable[Any]]
SyncMiddleware = Callable[["Job", "Context", SyncCall], Any]
AsyncMiddleware = Callable[["Job", "Context", AsyncCall], Awaitable[Any]]
Middleware = SyncMiddleware | AsyncMiddleware | tuple[SyncMiddleware, AsyncMiddleware]
"""A ``def`` for plain handlers, which runs in their thread; an ``async def`` for async ones; or a pair of both."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What a worker runs for a type: the user's function inside of all middleware."""

    call: Callable[[Any, Any], Any]
    is_async: bool


class HandlerRegistry:
    """The handlers of one worker, and the retry policies of their types."""

    def __init__(self, middleware: Sequence[Middleware] = ()) -> None:
        self._middleware = tuple(middleware)
        self._handlers: dict[str, Handler] = {}
        self._policies: dict[str, RetryPolicy] = {}

    def register(self, type: str, function: Callable[..., Any], policy: RetryPolicy | None = None) -> None:
        self._handlers[type] = handler(function, self._middleware)
        if policy is not None:
            self._policies[type] = policy

    def get(self, type: str) -> Handler | None:
        return self._handlers.get(type)

    def policy(self, type: str) -> RetryPolicy:
        return self._policies.get(type, DEFAULT_POLICY)

    @property
    def types(self) -> frozenset[str]:
        return frozenset(self._handlers)


def handler(function: Callable[..., Any], middleware: Sequence[Middleware]) -> Handler:
    """Fold *middleware* around *function*, the first one outermost.

    *function* takes a job, or a job and a context; what it is (``def`` or ``async def``)
    decides where it runs, and all middleware must have that colour.
    """
    is_async = _is_async(function)
    layers = [_of_same_kind(each, is_async=is_async) for each in middleware]
    return Handler(reduce(_around, reversed(layers), _with_context(function)), is_async)


def _is_async(function: Callable[..., Any]) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _around(inner: Callable[..., Any], layer: Callable[..., Any]) -> Callable[..., Any]:
    return partial(_call, layer, inner)


def _call(layer: Callable[..., Any], inner: Callable[..., Any], job: Job, ctx: Context) -> Any:
    return layer(job, ctx, inner)


def _of_same_kind(middleware: Middleware, *, is_async: bool) -> Callable[..., Any]:
    options = middleware if isinstance(middleware, tuple) else (middleware,)
    for each in options:
        if _is_async(each) is is_async:
            return each
    missing = "async def" if is_async else "def"
    name = getattr(options[0], "__name__", repr(options[0]))
    rule = f"the handler needs one that is {missing}; give a pair (plain, async) to serve both"
    raise UsageError(Problem(field="middleware", value=name, rule=rule))


def _with_context(function: Callable[..., Any]) -> Callable[[Job, Context], Any]:
    """Return *function* as one that takes a job and a context."""
    signature = inspect.signature(function)
    if _takes(signature, 2) and not _takes(signature, 1):
        return function  # a second parameter that has a default is the user's own
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        rule = "a handler takes (job) or (job, ctx)"
        raise UsageError(Problem(field="handler", value=name, rule=rule)) from error
    return lambda job, _ctx: function(job)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
