"""What is kept of an error that a handler raised."""

from __future__ import annotations

import hashlib
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskharbor.core.text import make_storable

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as data: it is stored and shown, and never turned back into a class.

    ``fingerprint`` is equal for errors of one kind from one place in the code,
    whatever their message says, so that a thousand dead letters make one group.
    """

    type: str = ""
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""

    def __post_init__(self) -> None:
        for name in ("type", "message", "traceback"):
            object.__setattr__(self, name, make_storable(getattr(self, name)))

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe *error*, whatever its ``__str__`` does: recording a failure must not fail."""
        name = _type_name(error)
        return cls(
            type=make_storable(name, limit=200),
            message=_first(lambda: str(error), lambda: f"(a {name} that cannot be printed)"),
            traceback=_first(
                lambda: "".join(traceback.format_exception(error)),
                lambda: "".join(traceback.format_tb(error.__traceback__)),  # ours to print even when the error is not
            ),
            fingerprint=_fingerprint(name, error),
        )

    @property
    def is_timeout(self) -> bool:
        """The handler ran longer than its job may."""
        return self.type == _TIMED_OUT

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.type, self.message)))


_TIMED_OUT: Final = "taskharbor.JobTimedOut"


def _first(*ways: Callable[[], str]) -> str:
    """Return what the first way gives that works, made storable; nothing, where none does."""
    for way in ways:
        with suppress(Exception, SystemExit):  # the error is a user's object: its methods may raise anything
            return make_storable(way())
    return ""


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    # Stored, and hashed below: it must not change when a module of ours is renamed.
    module = "taskharbor" if _is_ours(kind.__module__) else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and f"{module}.".startswith("taskharbor.")


def _fingerprint(name: str, error: BaseException) -> str:
    """Hash the kind of error and the functions it passed through, each once.

    Not the lines, which change with every deploy, nor the depth of a recursion, nor functions of
    TaskHarbor itself: an upgrade must not split a group of dead letters.
    """
    places = [
        f"{module}.{frame.f_code.co_qualname}"
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if not _is_ours(module := frame.f_globals.get("__name__"))
    ]
    return hashlib.sha256("\n".join([name, *dict.fromkeys(places)]).encode(errors="replace")).hexdigest()[:16]
