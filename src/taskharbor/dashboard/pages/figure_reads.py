"""Reads of queues with their rates, for the pages that show queues."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Final

from taskharbor.core.statistics import HOUR, MINUTE, GroupBy, Metric, SeriesPoint, begin_of
from taskharbor.dashboard.charts import fill, steps_of
from taskharbor.dashboard.figures import QueueFigures, empty_queue, queue_figures, rate_of
from taskharbor.dashboard.queries import Reads

MAX_RATED_QUEUES: Final = 30
"""With more queues, the series of all of them would have too many points for one read."""


async def all_queues(reads: Reads) -> list[QueueFigures]:
    """Return all queues with their rates and the depths of the last hour, the worst first."""
    now, queues, workers = await reads.now(), await reads.queues(), await reads.workers()
    until = begin_of(now, MINUTE) + MINUTE
    depths: dict[str, list[SeriesPoint]] = {}
    if len(queues) <= MAX_RATED_QUEUES:
        depths = by_group(await reads.series(Metric.WAITING, since=until - HOUR, until=until, by=GroupBy.QUEUE))
    steps = steps_of(until - HOUR, until, MINUTE)
    found = []
    for each in queues:
        points = {point.at: point.value for point in depths.get(each.name, ())}
        # The present minute has no depth before its first roll-up, which does not mean that nothing waits.
        known = steps if steps[-1] in points else steps[:-1]
        found.append(queue_figures(each, workers, now, depths=[value or 0.0 for value in fill(known, points)]))
    return sorted(found, key=lambda figures: figures.severity, reverse=True)


async def one_queue(reads: Reads, name: str) -> QueueFigures:
    """Return one queue with its rates."""
    now, queues, workers = await reads.now(), await reads.queues(), await reads.workers()
    stats = next((each for each in queues if each.name == name), None) or empty_queue(name)
    return queue_figures(stats, workers, now, rates=await queue_rates(reads, name, now))


async def queue_rates(reads: Reads, name: str, now: datetime) -> tuple[float | None, float | None]:
    """Return how many jobs arrive and end a minute."""
    until = begin_of(now, MINUTE) + MINUTE
    since = until - timedelta(minutes=15)
    arrived = await reads.series(Metric.ARRIVED, since=since, until=until, queue=name)
    ended = await reads.series(Metric.ENDED, since=since, until=until, queue=name)
    return rate_of(arrived, now), rate_of(ended, now)


def by_group(points: list[SeriesPoint]) -> dict[str, list[SeriesPoint]]:
    found: defaultdict[str, list[SeriesPoint]] = defaultdict(list)
    for point in points:
        found[point.group].append(point)
    return found
