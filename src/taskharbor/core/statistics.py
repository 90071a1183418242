"""Statistics by minute: what is measured, the buckets of durations, and the rules of a read.

Counts are kept for each step, so that a long series reads few rows. All reads are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import InvalidRequest, Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BUCKETS: Final = 24
MAX_POINTS: Final = 2_000
MAX_ROWS: Final = 20_000
"""The stored rows that one read may sum up: more would take the store over 50 ms."""
FINE_FOR: Final = timedelta(hours=6)
"""How long counts by minute are kept, and the depths of every minute. After that, those of each `COARSE_STEP`."""
ROLL_UP: Final = "roll-up"
"""The duty that updates counts and statistics."""
ROLL_UP_PERIOD: Final = timedelta(seconds=5)
MINUTE: Final = timedelta(minutes=1)
COARSE_STEP: Final = timedelta(minutes=15)
HOUR: Final = timedelta(hours=1)
STEPS: Final = (MINUTE, COARSE_STEP, HOUR)
MAX_VERSION_CHARS: Final = 100
SUCCEEDED: Final = "SUCCEEDED"
"""The outcome of successful attempts, which have no row among the attempts of a job."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Metric(StrEnum):
    """What a series shows."""

    WAITING = "waiting"
    RUNNING = "running"
    OLDEST_AGE = "oldest_age"
    """For how many seconds the oldest waiting job had been due."""
    ARRIVED = "arrived"
    """Jobs that were enqueued or requeued, by the minute of the roll-up that counted them."""
    ENDED = "ended"
    ATTEMPTS = "attempts"
    WAIT = "wait"
    """From the due time to the claim, of each recorded attempt."""
    RUN = "run"
    """How long the handler ran, of each recorded attempt."""


class GroupBy(StrEnum):
    """What each point of a series is for. The status of an attempt is its outcome."""

    NONE = "none"
    QUEUE = "queue"
    TYPE = "type"
    STATUS = "status"


DEPTHS: Final = frozenset({Metric.WAITING, Metric.RUNNING, Metric.OLDEST_AGE})
"""Metrics that are measured at each roll-up. Of several minutes in one step, the highest value is returned."""
SPANS: Final = frozenset({Metric.WAIT, Metric.RUN})
"""Metrics that are histograms."""
GROUPS: Final[Mapping[Metric, tuple[GroupBy, ...]]] = MappingProxyType(
    {
        **dict.fromkeys((*DEPTHS, Metric.ARRIVED), (GroupBy.NONE, GroupBy.QUEUE)),
        Metric.ENDED: (GroupBy.NONE, GroupBy.QUEUE, GroupBy.STATUS),
        Metric.ATTEMPTS: tuple(GroupBy),
        **dict.fromkeys(SPANS, (GroupBy.NONE, GroupBy.QUEUE, GroupBy.TYPE)),
    }
)


def bucket_of(duration: timedelta) -> int:
    """Return the bucket of *duration*: the first whose limit is longer, or the last one.

    >>> [bucket_of(timedelta(milliseconds=n)) for n in (0, 0.9, 1, 2, 3, 4)]
    [0, 0, 1, 2, 2, 3]
    """
    return min(max(duration // _MILLISECOND, 0).bit_length(), BUCKETS - 1)


def bucket_limit(bucket: int) -> timedelta:
    """Return the duration that all of *bucket* are shorter than; the last one holds longer ones, too."""
    return (1 << bucket) * _MILLISECOND


def quantile(buckets: Sequence[int], fraction: float) -> timedelta | None:
    """Estimate the duration that *fraction* of a histogram's entries do not exceed; None if it is empty.

    Within a bucket, entries are taken as evenly spread.
    """
    total = sum(buckets)
    if not total:
        return None
    left = fraction * total
    for bucket, count in enumerate(buckets):
        if count and left <= count:
            lower = bucket_limit(bucket - 1) if bucket else timedelta(0)
            return lower + (bucket_limit(bucket) - lower) * (max(left, 0) / count)
        left -= count
    return bucket_limit(BUCKETS - 1)


@dataclass(frozen=True, slots=True)
class StatisticTally:
    """An addition to the counts of one minute. The key is an outcome (ATTEMPTS), or the number of a bucket."""

    minute: datetime
    metric: Metric
    queue: str
    type: str
    key: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    """A series to read: from *since*, rounded down to a whole *step*, to *until* (exclusive)."""

    metric: Metric
    since: datetime
    until: datetime
    by: GroupBy = GroupBy.NONE
    step: timedelta = MINUTE
    queue: str | None = None
    type: str | None = None
    max_rows: int = MAX_ROWS

    def check(self) -> None:
        """Raise `InvalidRequest` if the series does not exist, or has too many points whatever is stored."""
        if self.step not in STEPS:
            raise _invalid("step", f"{self.step.total_seconds() / 60:g}", "must be 1, 15 or 60 minutes")
        if self.by not in GROUPS[self.metric]:
            raise _invalid("by", self.by, f"{self.metric} is grouped by {_either(GROUPS[self.metric])}")
        if self.type is not None and GroupBy.TYPE not in GROUPS[self.metric]:
            raise _invalid("type", repr(self.type), f"{self.metric} is not measured by type")
        if not self.since < self.until:
            raise _invalid("until", self.until.isoformat(), "must be after since")
        if (self.until - self.start) / self.step > MAX_POINTS:
            raise _too_long(self)

    @property
    def start(self) -> datetime:
        """The beginning of the first step."""
        return begin_of(self.since, self.step)


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One step of a series, and of one group. ``buckets`` is the histogram of wait and run times."""

    at: datetime
    group: str
    value: float
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadHour:
    """How many jobs of a group of dead letters died within an hour."""

    queue: str
    type: str
    fingerprint: str
    hour: datetime
    count: int


@dataclass(frozen=True, slots=True)
class AppVersion:
    """A version of the application, and when its workers were first and last seen (to about a minute)."""

    version: str
    first_seen: datetime
    last_seen: datetime


def begin_of(when: datetime, step: timedelta) -> datetime:
    """Return the beginning of the step that *when* is in."""
    return when - (when - _EPOCH) % step


def series_points(query: SeriesQuery, rows: Iterable[tuple[datetime, str, str, float, int]]) -> list[SeriesPoint]:
    """Make points of (step, group, bucket or nothing, value, number of stored rows), ordered by step and group.

    Raise `InvalidRequest` if the store has read too many rows, or there are too many points.
    """
    found: dict[tuple[datetime, str], list[float]] = {}
    total = 0
    is_span = query.metric in SPANS
    for at, group, key, value, size in rows:
        total += size
        values = found.setdefault((at, group), [0] * (BUCKETS if is_span else 1))
        values[int(key) if is_span else 0] += value
    if total > query.max_rows or len(found) > MAX_POINTS:
        raise _too_long(query)
    return [
        SeriesPoint(at, group, sum(values), tuple(map(int, values)) if is_span else ())
        for (at, group), values in sorted(found.items())
    ]


def version_at(versions: Iterable[AppVersion], when: datetime) -> str | None:
    """Return the newest of *versions* that had been seen by *when*."""
    seen = [(each.first_seen, each.version) for each in versions if each.first_seen <= when]
    return max(seen)[1] if seen else None


def check_version(version: str | None) -> str | None:
    """Return *version*. Raise `UsageError` if a store may not keep it unchanged, or it is no short text."""
    if version is not None and not (0 < len(version) <= MAX_VERSION_CHARS and version.isprintable()):
        rule = f"must have 1 to {MAX_VERSION_CHARS} printable characters"
        raise UsageError(Problem(field="version", value=ascii(version[: 2 * MAX_VERSION_CHARS]), rule=rule))
    return version


def _too_long(query: SeriesQuery) -> InvalidRequest:
    rule = f"the series has more than {MAX_POINTS:,} points or sums up more than {query.max_rows:,} rows; choose"
    rule += " a later since, a longer step, another by, or one queue"
    return _invalid("since", query.since.isoformat(), rule)


def _either(groups: Iterable[GroupBy]) -> str:
    *others, last = groups
    return f"{', '.join(others)} or {last}"


def _invalid(field: str, value: str, rule: str) -> InvalidRequest:
    return InvalidRequest([Problem(field=field, value=value, rule=rule)])
