"""The handlers of a worker, and the middleware around them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.outcome import DEFAULT_POLICY
from taskharbor.core.request import TYPE_PATTERN
from taskharbor.observability.log_capture import capture_level

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
"""A ``def`` for sync handlers, which runs in their thread; an ``async def`` for async ones; or a pair of both."""


@dataclass(frozen=True, slots=True)
class Handler:
    """The callable that a worker runs for a type: the user's function inside all middleware.

    ``capture_level`` is the level from which on its log lines are captured; None: they are not. If it ``is_isolated``,
    each attempt runs in a child process, with at most ``memory_bytes`` of memory unless that is 0.
    """

    call: Callable[[Any, Any], Any]
    is_async: bool
    capture_level: int | None = None
    is_isolated: bool = False
    memory_bytes: int = 0


class HandlerRegistry:
    """The handlers of one worker, and the retry policies of their types."""

    def __init__(
        self,
        middleware: Sequence[Middleware] = (),
        policy: RetryPolicy = DEFAULT_POLICY,
        capture_logs: bool | str | None = None,  # noqa: FBT001  the value of an option
        *,
        isolate: bool = False,
    ) -> None:
        self._middleware, self._policy, self._isolate = tuple(middleware), policy, isolate
        self._capture_level = capture_level(capture_logs)
        self._handlers: dict[str, Handler] = {}
        self.types: frozenset[str] = frozenset()
        self._policies: dict[str, RetryPolicy] = {}

    def register(
        self,
        type: str,
        function: Callable[..., Any],
        policy: RetryPolicy | None = None,
        *,
        capture_logs: bool | str | None = None,
        isolate: bool | None = None,
        memory_bytes: int = 0,
    ) -> None:
        if TYPE_PATTERN.fullmatch(type) is None:  # no job has such a type, and some stores refuse to search for it
            raise UsageError(Problem(field="type", value=ascii(type), rule=f"must match {TYPE_PATTERN.pattern}"))
        level = capture_level(capture_logs, self._capture_level)
        is_isolated = self._isolate if isolate is None else isolate
        if is_isolated and self._middleware:
            rule = "middleware cannot run in another process; use a decorator below @harbor.task"
            raise UsageError(Problem(field="isolate", value=repr(type), rule=rule))
        self._handlers[type] = replace(
            handler(function, self._middleware),
            capture_level=level,
            is_isolated=is_isolated,
            memory_bytes=memory_bytes,
        )
        self.types = frozenset(self._handlers)
        if policy is not None:
            self._policies[type] = policy

    def get(self, type: str) -> Handler | None:
        return self._handlers.get(type)

    def policy(self, type: str) -> RetryPolicy:
        return self._policies.get(type, self._policy)

    @property
    def isolated_types(self) -> frozenset[str]:
        """The types whose attempts run in child processes."""
        return frozenset(type for type, each in self._handlers.items() if each.is_isolated)

    @property
    def captures_logs(self) -> bool:
        """Whether the log lines of any handler are captured."""
        return any(each.capture_level is not None for each in self._handlers.values())


def handler(function: Callable[..., Any], middleware: Sequence[Middleware]) -> Handler:
    """Wrap *function* in *middleware*, the first one outermost.

    *function* takes a job, or a job and a context. If it is an ``async def``, it runs on the event
    loop, otherwise in a thread. All middleware must be of the same kind.
    """
    is_async = _is_async(function)
    layers = [_of_same_kind(each, is_async=is_async) for each in middleware]
    return Handler(reduce(_wrap, reversed(layers), _with_context(function)), is_async)


def _is_async(function: Callable[..., Any]) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004  an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _wrap(inner: Callable[..., Any], layer: Callable[..., Any]) -> Callable[..., Any]:
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
    rule = f"the handler needs middleware that is {missing}; pass a pair (sync, async) to support both"
    raise UsageError(Problem(field="middleware", value=name, rule=rule))


def _with_context(function: Callable[..., Any]) -> Callable[[Job, Context], Any]:
    """Return *function* as a callable of a job and a context."""
    signature = inspect.signature(function)
    if _accepts(signature, 2) and not _accepts(signature, 1):
        return function  # a second parameter with a default is not the context
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        rule = "a handler takes (job) or (job, ctx)"
        raise UsageError(Problem(field="handler", value=name, rule=rule)) from error
    return lambda job, _ctx: function(job)


def _accepts(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
