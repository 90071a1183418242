"""Calls the user's hooks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskharbor.core.hooks import Hook, HookEvent


class HookCaller:
    """Calls hooks in order. It is false without hooks, so that callers build no events then.

    An error that a hook raises is logged and has no other effect. In a thread of a service even `SystemExit` is: set
    *catches* to `Exception` in the user's own threads, which a `KeyboardInterrupt` must end.
    """

    def __init__(
        self, hooks: Sequence[Hook], log: logging.Logger, *, catches: type[BaseException] = BaseException
    ) -> None:
        self._hooks = tuple(hooks)
        self._log = log
        self._catches = catches

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def wants(self, kind: type[HookEvent]) -> bool:
        """Return whether any hook gets events of this *kind*. A hook may have a set of `ignored_events`."""
        return any(kind not in getattr(hook, "ignored_events", ()) for hook in self._hooks)

    def __call__(self, event: HookEvent) -> None:
        for hook in self._hooks:
            try:
                hook(event)
            except self._catches:
                self._log.exception("hook failed on %s; the job is not affected", type(event).__name__)

    def all(self, events: Iterable[HookEvent]) -> None:
        """Call the hooks for each of *events*."""
        for event in events:
            self(event)


NO_HOOKS: Final = HookCaller((), logging.getLogger("taskharbor"))
