"""How long finished jobs are kept: the defaults and limits of *keep* and *keep_dead*."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypedDict

from taskharbor.core.durations import as_timedelta
from taskharbor.core.errors import Problem, UsageError
from taskharbor.core.text import duration_text

if TYPE_CHECKING:
    from taskharbor.core.durations import Duration

KEEP: Final = timedelta(days=7)
MIN_KEEP: Final = timedelta(seconds=1)
MAX_KEEP: Final = timedelta(days=36_500)


class RetentionOptions(TypedDict):
    """How long SUCCEEDED and CANCELED jobs are kept, and dead letters (None: until a person removes them)."""

    keep: timedelta
    keep_dead: timedelta | None


def check_retention(keep: Duration, keep_dead: Duration | None) -> RetentionOptions:
    """Return both as timedeltas. Raise `UsageError` if one is out of range."""
    return RetentionOptions(
        keep=_checked(keep, "keep"), keep_dead=None if keep_dead is None else _checked(keep_dead, "keep_dead")
    )


def _checked(value: Duration, name: str) -> timedelta:
    duration = as_timedelta(value, name)
    if not MIN_KEEP <= duration <= MAX_KEEP:
        rule = f"must be from {MIN_KEEP.seconds} second to {MAX_KEEP.days:,} days"
        raise UsageError(Problem(field=name, value=duration_text(duration.total_seconds()), rule=rule))
    return duration
