"""Series, types, versions and groups of dead letters, in the JSON forms of the HTTP API and ``--json``."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.statistics import HOUR, MINUTE, SPANS, GroupBy, Metric, SeriesQuery, quantile, version_at
from taskharbor.diagnosis import is_alive
from taskharbor.views import group_view, iso_time, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from taskharbor.core.statistics import AppVersion, SeriesPoint
    from taskharbor.drivers.base import Inspector
    from taskharbor.views import View

MAX_VERSIONS: Final = 1_000
GROUP_HOURS: Final = timedelta(days=8)
"""How far back the deaths of a group are returned by hour."""
_PERCENTS: Final = (50, 95, 99)


def read_series(
    inspector: Inspector,
    metric: Metric = Metric.ENDED,
    *,
    by: GroupBy = GroupBy.NONE,
    step: int = 1,
    since: datetime | None = None,
    until: datetime | None = None,
    queue: str | None = None,
    type: str | None = None,
) -> View:
    """Return a series of *step* minutes each, of the last hour unless *since* and *until* say otherwise."""
    end = until or inspector.now()
    query = SeriesQuery(
        metric=metric,
        by=by,
        step=step * MINUTE,
        since=since or end - HOUR,
        until=end,
        queue=queue,
        type=type,
    )
    return series_view(query, inspector.series(query))


def series_view(query: SeriesQuery, points: Iterable[SeriesPoint]) -> View:
    return {
        "metric": query.metric.value,
        "by": query.by.value,
        "step": query.step // MINUTE,
        "since": iso_time(query.start),
        "until": iso_time(query.until),
        "points": [_point_view(query, point) for point in points],
    }


def _point_view(query: SeriesQuery, point: SeriesPoint) -> View:
    view: View = {"at": iso_time(point.at), "group": point.group or None, "value": point.value}
    if query.metric in SPANS:
        view["buckets"] = list(point.buckets)
        view |= {f"p{percent}_seconds": seconds(quantile(point.buckets, percent / 100)) for percent in _PERCENTS}
    return view


def read_types(inspector: Inspector) -> list[View]:
    """Return the types that live workers handle, or that had attempts within an hour, by name."""
    now = inspector.now()
    handlers = Counter(name for each in inspector.workers() if is_alive(each, now) for name in each.types)
    query = SeriesQuery(metric=Metric.ATTEMPTS, by=GroupBy.TYPE, step=15 * MINUTE, since=now - HOUR, until=now)
    attempts: Counter[str] = Counter()
    for point in inspector.series(query):
        attempts[point.group] += int(point.value)
    return [
        {"type": name, "workers": handlers[name], "attempts_last_hour": attempts[name]}
        for name in sorted({*handlers, *attempts})
    ]


def read_versions(inspector: Inspector) -> list[View]:
    """Return the versions of the application whose workers were seen, the last one to appear first."""
    return [version_view(each) for each in inspector.versions(limit=MAX_VERSIONS)]


def version_view(version: AppVersion) -> View:
    return {
        "version": version.version,
        "first_seen": iso_time(version.first_seen),
        "last_seen": iso_time(version.last_seen),
    }


def read_groups(inspector: Inspector, *, limit: int, queue: str | None) -> list[View]:
    """Return groups of dead letters with their deaths by hour.

    ``first_version`` is the newest version of the application that had been seen at the first death.
    """
    groups = inspector.dead_letter_groups(limit=limit, queue=queue)
    if not groups:
        return []
    versions = inspector.versions(limit=MAX_VERSIONS)
    hours: defaultdict[tuple[str, str, str], list[View]] = defaultdict(list)
    for each in inspector.dead_hours(groups, since=inspector.now() - GROUP_HOURS):
        hours[each.queue, each.type, each.fingerprint].append({"hour": iso_time(each.hour), "count": each.count})
    return [
        group_view(each)
        | {
            "hours": hours[each.queue, each.type, each.fingerprint],
            "first_version": version_at(versions, each.first_at),
        }
        for each in groups
    ]
