"""Warn when a job is enqueued beside an open transaction of the caller instead of inside it.

Such a job runs although the transaction is rolled back, or before its rows can be seen. This module is used in
development and by the test harness only, so it may be slow: it looks at the variables of the callers. No framework is
imported. Objects of SQLAlchemy are recognized by their class names, and Django is asked only if it was imported.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from taskharbor.client import Client


class UnjoinedTransaction(UserWarning):
    """A job was enqueued while a transaction of the caller was open, and is not part of it."""


def watched(client: Client) -> Client:
    """Return *client*, with a check before each call that stores jobs in a transaction of their own."""
    return cast("Client", _WatchedClient(client))


def warn_if_unjoined() -> None:
    """Issue an `UnjoinedTransaction` warning if a caller has an open transaction.

    Python shows it once for each line of the application that enqueues.
    """
    depth, frame = _first_outside()
    found = _open_in_callers(frame) or _open_in_django()
    if found is not None:
        warnings.warn(_MESSAGE.format(*found), UnjoinedTransaction, stacklevel=depth)


_MESSAGE: Final = (
    "a job was enqueued while {} has an open transaction: it is stored even if that is rolled back, and may run before"
    " that is committed; to store it in the transaction, write task.using(connection={}).enqueue(…)"
)


class _WatchedClient:
    """A client whose calls are checked. Jobs of a joined transaction do not come this way."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name in _CHECKED:
            warn_if_unjoined()
        return getattr(self._client, name)


_CHECKED: Final = frozenset({"enqueue", "aenqueue", "enqueue_many", "aenqueue_many", "enqueue_calls", "aenqueue_calls"})
_PACKAGE: Final = str(Path(__file__).parent) + os.sep
_SESSIONS: Final = frozenset(
    {
        "sqlalchemy.orm.session.Session",
        "sqlalchemy.orm.scoping.scoped_session",
        "sqlalchemy.engine.base.Connection",
        "sqlalchemy.ext.asyncio.session.AsyncSession",
        "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
        "sqlalchemy.ext.asyncio.engine.AsyncConnection",
    }
)


def _first_outside() -> tuple[int, FrameType | None]:
    """Return the innermost caller outside of this package, and its stack level as `warnings.warn` counts it."""
    depth, frame = 1, sys._getframe(1)  # noqa: SLF001  there is no public way to the callers
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    return depth, frame


def _open_in_callers(frame: FrameType | None) -> tuple[str, str] | None:
    """Return what holds an open transaction among the variables of *frame* and its callers, and its name there.

    Only SQLAlchemy's: a session does not know the thread that uses it, but a variable of a caller is in use here.
    """
    if "sqlalchemy" not in sys.modules:
        return None
    while frame is not None:
        for name, value in _variables(frame):
            if _is_open(value):
                return f"the {type(value).__name__} {name!r}", name
        frame = frame.f_back
    return None


def _variables(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield the local variables of *frame*, and the attributes of its ``self``."""
    if frame.f_code.co_filename.startswith(_PACKAGE) or _module(frame).startswith("sqlalchemy."):
        return
    local = frame.f_locals
    yield from local.items()
    attributes = getattr(local.get("self"), "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((f"self.{name}", value) for name, value in attributes.items())


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_open(value: object) -> bool:
    kind = type(value)
    if not any(f"{each.__module__}.{each.__qualname__}" in _SESSIONS for each in kind.__mro__):
        return False
    return bool(cast("Any", value).in_transaction())


def _open_in_django() -> tuple[str, str] | None:
    """Return the connection of Django that is inside ``atomic()`` in this thread, except that of its ``TestCase``."""
    database, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    if database is None or conf is None or not conf.settings.configured:
        return None
    for connection in database.connections.all(initialized_only=True):
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            alias = connection.alias
            return f"Django's connection {alias!r}", "connection" if alias == "default" else f"connections[{alias!r}]"
    return None
