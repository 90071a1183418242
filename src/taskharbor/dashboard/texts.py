"""The words and icons of the dashboard: states of jobs, durations, counts and ages."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

MINUTE_SECONDS: Final = 60
HOUR_SECONDS: Final = 3_600
DAY_SECONDS: Final = 86_400
UNKNOWN: Final = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class StateText:
    """How a state is shown: its word, the name of its icon, and the CSS class of its color."""

    word: str
    icon: str

    @property
    def css(self) -> str:
        """The CSS class of the state's color."""
        return f"s-{self.icon}"


STATES: Final[Mapping[Status, StateText]] = MappingProxyType(
    {
        Status.PENDING: StateText("Waiting", "clock"),
        Status.ENQUEUED: StateText("Sent", "envelope"),
        Status.PROCESSING: StateText("Running", "play"),
        Status.FAILED: StateText("Will retry", "retry"),
        Status.SUCCEEDED: StateText("Succeeded", "check"),
        Status.DEAD: StateText("Dead", "cross"),
        Status.CANCELED: StateText("Canceled", "barred"),
    }
)


SCOPE_TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "jobs:read": "see jobs, queues, workers, schedules and statistics",
        "jobs:control": "cancel, requeue and reschedule jobs; bulk operations",
        "jobs:write": "create jobs, change their payloads",
        "payload:read": "see payloads and results; each look is recorded",
        "queues:control": "pause and resume queues",
        "schedules:write": "create, run, pause, resume and delete schedules",
        "metrics:read": "read /metrics",
        "admin": "all of these, and keys, the audit log and purges",
    }
)
"""What each scope of a key allows, in the order of the form."""


def span(seconds: float | timedelta | None) -> str:
    """Return a duration for a person.

    >>> [span(each) for each in (0.0124, 3.14, 61, 840, 4000, 200000)]
    ['12 ms', '3.1 s', '1 min', '14 min', '1.1 h', '2.3 d']
    """
    if seconds is None:
        return UNKNOWN
    value = seconds if isinstance(seconds, int | float) else seconds.total_seconds()
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < MINUTE_SECONDS:
        return f"{value:.1f} s".replace(".0 s", " s")
    if value < HOUR_SECONDS:
        return f"{value / MINUTE_SECONDS:.0f} min"
    if value < DAY_SECONDS:
        return f"{value / HOUR_SECONDS:.1f} h".replace(".0 h", " h")
    return f"{value / DAY_SECONDS:.1f} d".replace(".0 d", " d")


def ago(when: datetime | None, now: datetime) -> str:
    """Return how long ago *when* was, or how far ahead it is.

    >>> from datetime import datetime, timedelta
    >>> noon = datetime(2030, 1, 1, 12)
    >>> ago(noon, noon + timedelta(seconds=41)), ago(noon, noon - timedelta(seconds=41)), ago(noon, noon)
    ('41 s ago', 'in 41 s', 'now')
    """
    if when is None:
        return UNKNOWN
    seconds = (now - when).total_seconds()
    if abs(seconds) < 1:
        return "now"
    whole = round(abs(seconds)) if abs(seconds) < MINUTE_SECONDS else abs(seconds)
    return f"{span(whole)} ago" if seconds > 0 else f"in {span(whole)}"


def utc(when: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return UNKNOWN if when is None else f"{when:%Y-%m-%d %H:%M:%S}"


def number(value: float | None, *, is_capped: bool = False) -> str:
    """Return a number with separators; with a plus sign if there may be more.

    >>> number(3410), number(10000, is_capped=True)
    ('3,410', '10,000+')
    """
    return UNKNOWN if value is None else f"{value:,.0f}{'+' if is_capped else ''}"


def short_name(actor: str | None) -> str:
    """Return the name of an actor without the id of their key.

    >>> short_name("key:0a1b2c3d4e5f ana"), short_name("ana")
    ('ana', 'ana')
    """
    return UNKNOWN if actor is None else (actor.partition(" ")[2] if actor.startswith("key:") else actor) or actor


def capitalize_first(text: str) -> str:
    """Return *text* with a capital first letter and no period at its end."""
    return text[:1].upper() + text[1:].removesuffix(".")
