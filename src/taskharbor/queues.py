"""Queues for operators: counts, the workers that serve them, their capacity, and how fast jobs arrive and end."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.errors import InvalidRequest, SchemaOutOfDate
from taskharbor.core.results import QueueStats
from taskharbor.core.states import WAITING
from taskharbor.core.statistics import MINUTE, ROLL_UP, ROLL_UP_PERIOD, GroupBy, Metric, SeriesQuery, begin_of
from taskharbor.diagnosis import is_alive
from taskharbor.views import iso_time, queue_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.model import WorkerRecord
    from taskharbor.drivers.base import Inspector
    from taskharbor.views import View

RATE_MINUTES: Final = 5
"""Rates are means over so many whole minutes."""
MAX_COUNT_AGE: Final = timedelta(seconds=15)
"""Counts that are older are out of date: a live worker or janitor updates them every five seconds."""


def read_queues(inspector: Inspector) -> list[View]:
    """Return every queue that has jobs or is paused, by name."""
    return describe_queues(inspector, inspector.queues())


def read_queue(inspector: Inspector, name: str) -> View | None:
    """Return one queue, or None if it has no jobs and is not paused."""
    found = [each for each in inspector.queues() if each.name == name]
    return describe_queues(inspector, found, only=name)[0] if found else None


def empty_queue(name: str) -> QueueStats:
    """Return the statistics of a queue that has no jobs and is not paused."""
    return QueueStats(name=name, counts={}, oldest_due=None, paused_at=None, paused_by=None)


def counted_at(duties: Mapping[str, datetime]) -> datetime | None:
    """Return when counts and statistics were last updated, by the store's *duties*; None if that was never done."""
    return None if ROLL_UP not in duties else duties[ROLL_UP] - ROLL_UP_PERIOD


def describe_queues(inspector: Inspector, queues: Sequence[QueueStats], *, only: str | None = None) -> list[View]:
    """Return the JSON forms of *queues*; *only* is the name of the queue if there is one."""
    now = inspector.now()
    workers = [each for each in inspector.workers() if is_alive(each, now)]
    arrived, ended = (_rates(inspector, metric, now, only) for metric in (Metric.ARRIVED, Metric.ENDED))
    at = iso_time(counted_at(inspector.duties()))
    return [
        _view(each, now, workers, _rate(arrived, each.name), _rate(ended, each.name)) | {"counted_at": at}
        for each in queues
    ]


def _view(
    queue: QueueStats, now: datetime, workers: Sequence[WorkerRecord], arrived: float | None, ended: float | None
) -> View:
    serving = [each for each in workers if queue.name in each.queues]
    waiting = sum(queue.counts.get(status, 0) for status in WAITING)
    net = 0.0 if arrived is None or ended is None else ended - arrived
    return queue_view(queue, now=now) | {
        "workers": len(serving),
        "capacity": sum(max(each.concurrency - each.lost_slots, 0) for each in serving),
        "arrived_per_minute": arrived,
        "ended_per_minute": ended,
        "drained_in_seconds": waiting / net * MINUTE.total_seconds() if waiting and net > 0 else None,
    }


def _rates(inspector: Inspector, metric: Metric, now: datetime, queue: str | None) -> Mapping[str, float] | None:
    """Return the jobs per minute of each queue; None if the store cannot return them.

    It cannot if its schema is out of date, or if there are more than 400 queues, whose series has too many points.
    """
    until = begin_of(now, MINUTE)
    since = until - RATE_MINUTES * MINUTE
    query = SeriesQuery(metric=metric, by=GroupBy.QUEUE, step=MINUTE, since=since, until=until, queue=queue)
    totals: Counter[str] = Counter()
    try:
        for point in inspector.series(query):
            totals[point.group] += int(point.value)
    except (InvalidRequest, SchemaOutOfDate):
        return None
    return {name: total / RATE_MINUTES for name, total in totals.items()}


def _rate(rates: Mapping[str, float] | None, name: str) -> float | None:
    return None if rates is None else rates.get(name, 0.0)
