"""Statistics by minute, and versions of the application."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from taskharbor.core.states import Status
from taskharbor.core.statistics import (
    COARSE_STEP,
    DEPTHS,
    FINE_FOR,
    MINUTE,
    SPANS,
    STEPS,
    AppVersion,
    DeadHour,
    GroupBy,
    Metric,
    begin_of,
    series_points,
)
from taskharbor.drivers.memory.tables import Depth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.results import DeadLetterGroup
    from taskharbor.core.statistics import SeriesPoint, SeriesQuery, StatisticTally
    from taskharbor.drivers.memory.tables import Tables


def roll_up(tables: Tables, now: datetime, *, keep: timedelta) -> int:
    """Measure the depths, add the tallies to the statistics, and return the number of minutes that were removed."""
    rows, since, fine = tables.rows, now - keep, now - FINE_FOR
    _measure(tables, now)
    for (metric, minute, queue, type_, key), count in rows.tallies.items():
        for step in STEPS:
            rows.statistics[step, metric, begin_of(minute, step), queue, type_, key] += count
    rows.tallies.clear()
    old = [entry for entry in rows.finished if entry[0] < since]
    for entry in old:
        del rows.finished[entry]
    kept = {MINUTE: max(fine, since)}
    rows.statistics = Counter(
        {entry: count for entry, count in rows.statistics.items() if entry[2] >= kept.get(entry[0], since)}
    )
    rows.depths = {
        (minute, queue): depth
        for (minute, queue), depth in rows.depths.items()
        if minute >= since and (minute >= fine or minute == begin_of(minute, COARSE_STEP))
    }
    rows.dead_hours = Counter({entry: count for entry, count in rows.dead_hours.items() if entry[3] >= since})
    rows.versions = {name: each for name, each in rows.versions.items() if each.last_seen >= since}
    return len({minute for minute, _, _ in old})


def _measure(tables: Tables, now: datetime) -> None:
    rows, minute = tables.rows, begin_of(now, MINUTE)
    living = {queue for (queue, status), count in rows.counts.items() if count and not status.is_final}
    ended = {queue for metric, _, queue, _, _ in rows.tallies if metric is Metric.ENDED}
    for queue in living | ended | set(rows.arrived):
        due = [rows.jobs[job_id].scheduled_for for job_id in rows.waiting.get(queue, ())]
        oldest = min((time for time in due if time <= now), default=None)
        rows.depths[minute, queue] = Depth(
            waiting=len(due),
            running=rows.counts[queue, Status.PROCESSING],
            oldest_age=None if oldest is None else now - oldest,
        )
    for queue, arrived in rows.arrived.items():
        rows.tallies[Metric.ARRIVED, minute, queue, "", ""] += arrived
    rows.arrived.clear()


def record(tables: Tables, now: datetime, tallies: Sequence[StatisticTally], *, version: str | None) -> None:
    for each in tallies:
        tables.rows.tallies[each.metric, each.minute, each.queue, each.type, each.key] += each.count
    if version is not None:
        known = tables.rows.versions.get(version)
        tables.rows.versions[version] = AppVersion(version, known.first_seen if known else now, now)


def series(tables: Tables, query: SeriesQuery) -> list[SeriesPoint]:
    query.check()
    return series_points(query, _depths(tables, query) if query.metric in DEPTHS else _counts(tables, query))


def _counts(tables: Tables, query: SeriesQuery) -> Iterator[tuple[datetime, str, str, float, int]]:
    for (step, metric, minute, queue, type_, key), count in tables.rows.statistics.items():
        if (
            metric is query.metric
            and step == query.step
            and query.start <= minute < query.until
            and query.queue in {None, queue}
            and query.type in {None, type_}
        ):
            groups = {GroupBy.NONE: "", GroupBy.QUEUE: queue, GroupBy.TYPE: type_, GroupBy.STATUS: key}
            yield minute, groups[query.by], key if metric in SPANS else "", count, 1


def _depths(tables: Tables, query: SeriesQuery) -> Iterator[tuple[datetime, str, str, float, int]]:
    minutes: defaultdict[tuple[datetime, str], list[Depth]] = defaultdict(list)
    for (minute, queue), depth in tables.rows.depths.items():
        if query.start <= minute < query.until and query.queue in {None, queue}:
            minutes[minute, queue if query.by is GroupBy.QUEUE else ""].append(depth)
    steps: defaultdict[tuple[datetime, str], list[tuple[float, int]]] = defaultdict(list)
    for (minute, group), depths in minutes.items():
        ages = [depth.oldest_age.total_seconds() for depth in depths if depth.oldest_age is not None]
        if query.metric is not Metric.OLDEST_AGE or ages:
            value = {
                Metric.WAITING: sum(depth.waiting for depth in depths),
                Metric.RUNNING: sum(depth.running for depth in depths),
                Metric.OLDEST_AGE: max(ages, default=0),
            }[query.metric]
            steps[begin_of(minute, query.step), group].append((value, len(depths)))
    for (at, group), values in steps.items():
        yield at, group, "", max(value for value, _ in values), sum(size for _, size in values)


def dead_hours(tables: Tables, groups: Sequence[DeadLetterGroup], *, since: datetime) -> list[DeadHour]:
    wanted = {(each.queue, each.type, each.fingerprint) for each in groups}
    found = [DeadHour(*entry, count) for entry, count in tables.rows.dead_hours.items() if entry[:3] in wanted]
    return sorted((each for each in found if each.hour >= since), key=lambda each: each.hour)


def versions(tables: Tables, *, limit: int) -> list[AppVersion]:
    found = sorted(tables.rows.versions.values(), key=lambda each: (each.first_seen, each.version), reverse=True)
    return found[:limit]
