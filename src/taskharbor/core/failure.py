"""The stored form of an exception that a handler raised."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from taskharbor.core.text import make_storable

if TYPE_CHECKING:
    from types import TracebackType

Redact = Callable[[str], str]
"""Returns a text of a handler's error without its secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception as data, to store and display; never turned back into an exception.

    ``fingerprint`` is equal for errors of the same type from the same place in the code, whatever
    their message, so that similar dead letters can be grouped.
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
        """Return the failure of *error*. Never raises, even if its ``__str__`` does: recording must not fail."""
        name = _type_name(error)
        return cls(
            type=make_storable(name, limit=200),
            message=_first(lambda: str(error), lambda: f"(a {name} that cannot be printed)"),
            traceback=_first(
                lambda: "".join(traceback.format_exception(type(error), error, user_frames(error))),
                lambda: "".join(traceback.format_tb(user_frames(error))),  # works even if the error cannot be printed
            ),
            fingerprint=_fingerprint(name, error),
        )

    def redacted(self, redact: Redact) -> Failure:
        """Return the same failure with its message and traceback as *redact* returns them."""
        message, trace = redacted_text(redact, self.message), redacted_text(redact, self.traceback)
        return replace(self, message=message, traceback=trace)

    @property
    def is_timeout(self) -> bool:
        """Whether the handler ran longer than the job's timeout."""
        return self.type == _TIMED_OUT

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.type, self.message)))


def redacted_text(redact: Redact, text: str) -> str:
    """Return the text to store and log. If *redact* raises, that is no part of the text: recording must not fail."""
    try:
        return str(redact(text)) if text else ""
    except BaseException as error:  # noqa: BLE001  user code; one that calls sys.exit() must not stop the recording
        return f"(not shown: redact raised {type(error).__name__})"


_TIMED_OUT: Final = "taskharbor.JobTimedOut"


def _first(*builders: Callable[[], str]) -> str:
    """Return the first text that can be built, made storable; empty if none can."""
    for build in builders:
        with suppress(Exception, SystemExit):  # a user's exception class may raise anything
            return make_storable(build())
    return ""


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    # The name is stored and hashed, so it must not change when a TaskHarbor module is renamed.
    module = "taskharbor" if _is_ours(kind.__module__) else kind.__module__
    return f"{module}.{kind.__qualname__}"


def user_frames(error: BaseException) -> TracebackType | None:
    """Return the traceback from the first frame outside TaskHarbor, or all of it if there is none."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_globals.get("__name__")):
        frames = frames.tb_next
    return frames or error.__traceback__


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and f"{module}.".startswith("taskharbor.")


def _fingerprint(name: str, error: BaseException) -> str:
    """Hash the error type and the functions of its traceback, each once.

    Line numbers are left out because they change with every deploy. Recursion depth and TaskHarbor's
    own functions are left out so that an upgrade does not split a group of dead letters.
    """
    places = [
        f"{module}.{frame.f_code.co_qualname}"
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if not _is_ours(module := frame.f_globals.get("__name__"))
    ]
    return hashlib.sha256("\n".join([name, *dict.fromkeys(places)]).encode(errors="replace")).hexdigest()[:16]
