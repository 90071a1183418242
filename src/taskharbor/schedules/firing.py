"""Decide what a due schedule does: which fire times get a job, and when it is due next."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Final, Literal

from taskharbor.core.schedule_runs import SkipReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from taskharbor.core.model import JobSummary

    Times = Callable[[datetime], Iterable[datetime]]
    """Yields the fire times later than a given time, in order."""

Missed = Literal["skip", "once", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]

ON_TIME_WINDOW: Final = timedelta(minutes=1)
"""A fire time is missed after this time. It covers a restart, and no cron expression fires more often."""
MAX_CATCH_UP: Final = 1_000
"""The maximum number of jobs for missed fire times; the newest ones get a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringStep:
    """What to do: if *cancels*, cancel the previous job; enqueue one job per *fires*; set *next_at*.

    *skipped* is why the due time itself gets no job.
    """

    fires: tuple[datetime, ...]
    next_at: datetime | None
    cancels: bool = False
    skipped: SkipReason | None = None


def next_firing(
    times: Times,
    *,
    fire: datetime,
    now: datetime,
    previous: JobSummary | None,
    missed: Missed,
    overlap: Overlap,
    window: timedelta,
) -> FiringStep | None:
    """Return what a schedule does *now* for its due time *fire*; None if it waits for its *previous* job."""
    is_busy = previous is not None and not previous.status.is_final
    if is_busy and overlap == "queue":
        return None
    next_at = next(iter(times(now)), None)
    if is_busy and overlap == "skip":
        return FiringStep(fires=(), next_at=next_at, skipped=SkipReason.OVERLAP)
    if overlap in {"skip", "cancel"} and missed == "all":
        missed = "once"  # each would skip or cancel the one before
    since = {"skip": now - ON_TIME_WINDOW + timedelta.resolution, "once": fire, "all": now - window}[missed]
    most = 1 if missed == "once" else MAX_CATCH_UP
    wanted = _newest(times, fire=fire, since=max(since, fire), until=now, most=most)
    if overlap != "queue":
        cancels = is_busy and overlap == "cancel"
        return FiringStep(fires=tuple(wanted), next_at=next_at, cancels=cancels, skipped=_skipped(fire, wanted))
    if fire not in wanted[:1] and missed != "once" and _has_waited(fire, now, previous):
        wanted = [fire, *wanted]
    # One at a time: the next one fires when this job has ended.
    next_at = wanted[1] if wanted[1:] else next_at
    return FiringStep(fires=tuple(wanted[:1]), next_at=next_at, skipped=_skipped(fire, wanted))


def _skipped(fire: datetime, wanted: Sequence[datetime]) -> SkipReason | None:
    return None if fire in wanted else SkipReason.MISSED


def jittered(name: str, fire: datetime, jitter: timedelta) -> datetime:
    """Return *fire* plus a pseudo-random part of *jitter*, the same in every process.

    >>> jittered("nightly", datetime(2030, 1, 1, 2, tzinfo=UTC), timedelta(minutes=10)).isoformat()
    '2030-01-01T02:06:45.715000+00:00'
    """
    digest = hashlib.sha256(f"{name} {fire.astimezone(UTC).isoformat()}".encode()).digest()[:8]
    millisecond = timedelta(milliseconds=1)
    return fire + jitter // millisecond * int.from_bytes(digest) // (1 << 64) * millisecond


def _newest(times: Times, *, fire: datetime, since: datetime, until: datetime, most: int) -> list[datetime]:
    """Return the last *most* fire times from *since* to *until*, in order.

    *fire* counts as a fire time even if *times* omits it: the rules of its zone may have changed. The search
    starts at the end and doubles its span, because only the last few of a year of minutes are wanted.
    """
    span = most * timedelta(minutes=1)
    while True:
        start = max(since, until - span)
        found = list(takewhile(lambda time: time <= until, _from(times, fire, start)))
        if len(found) >= most or start == since:
            return found[-most:]
        span *= 2


def _from(times: Times, fire: datetime, start: datetime) -> Iterable[datetime]:
    return times(start - timedelta.resolution) if start > fire else chain([fire], times(fire))


def _has_waited(fire: datetime, now: datetime, previous: JobSummary | None) -> bool:
    """Return whether *fire* was delayed by the *previous* job, and not by the absence of a scheduler."""
    ended = None if previous is None else previous.completed_at
    return ended is not None and fire < ended and now - ended < ON_TIME_WINDOW
