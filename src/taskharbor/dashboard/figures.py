"""The figures of queues that pages show: rates, capacity, the time to drain, and what a pause would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from taskharbor.core.model import WorkerRecord
from taskharbor.core.results import QueueStats
from taskharbor.core.states import WAITING, Status
from taskharbor.core.statistics import SeriesPoint, bucket_limit
from taskharbor.diagnosis import is_alive

RATE_MINUTES: Final = 10
"""How many whole minutes rates are averaged over."""
MAX_RATE: Final = 60_000.0
"""Jobs a minute that workers of short jobs are expected to end at most: then the store limits them, not the slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """A queue as pages show it. Rates are jobs a minute, None if nothing is known yet.

    ``waiting`` are all jobs that are not running and have not ended: pending, sent, and those that will be retried.
    """

    name: str
    counts: Mapping[Status, int]
    waiting: int
    running: int
    oldest: timedelta | None
    workers: tuple[WorkerRecord, ...]
    capacity: int
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str = ""
    paused_until: datetime | None = None
    rate_in: float | None = None
    rate_out: float | None = None
    depths: tuple[float, ...] = ()

    @property
    def pending(self) -> int:
        """How many jobs wait for their first attempt and were not sent."""
        return self.counts.get(Status.PENDING, 0)

    @property
    def sent(self) -> int:
        """For how many jobs a message was sent."""
        return self.counts.get(Status.ENQUEUED, 0)

    @property
    def dead(self) -> int:
        """How many dead letters it has."""
        return self.counts.get(Status.DEAD, 0)

    @property
    def retrying(self) -> int:
        """How many jobs wait for another attempt."""
        return self.counts.get(Status.FAILED, 0)

    @property
    def state(self) -> str:
        """Whether it is paused, served, without a worker, or idle."""
        if self.paused_at is not None:
            return "paused"
        if self.workers:
            return "serving"
        return "no worker" if self.waiting else "idle"

    @property
    def drains_in(self) -> timedelta | None:
        """How long it takes until nothing waits, if the rates stay; None if unknown or never."""
        if not self.waiting or self.rate_in is None or self.rate_out is None or self.rate_out <= self.rate_in:
            return None
        return timedelta(minutes=self.waiting / (self.rate_out - self.rate_in))

    @property
    def severity(self) -> tuple[int, float, int]:
        """Orders queues by what is worst about them."""
        rank = {"no worker": 3, "paused": 2 if self.waiting else 1, "serving": 1, "idle": 0}[self.state]
        return rank, (self.oldest or timedelta(0)).total_seconds(), self.waiting


def queue_figures(
    queue: QueueStats,
    workers: Iterable[WorkerRecord],
    now: datetime,
    *,
    rates: tuple[float | None, float | None] = (None, None),
    depths: Sequence[float] = (),
) -> QueueFigures:
    """Return the figures of *queue*."""
    serving = tuple(each for each in workers if queue.name in each.queues and is_alive(each, now))
    return QueueFigures(
        name=queue.name,
        counts=queue.counts,
        waiting=sum(queue.counts.get(status, 0) for status in WAITING),
        running=queue.counts.get(Status.PROCESSING, 0),
        oldest=None if queue.oldest_due is None else max(now - queue.oldest_due, timedelta(0)),
        workers=serving,
        capacity=sum(each.concurrency - each.lost_slots for each in serving),
        paused_at=queue.paused_at,
        paused_by=queue.paused_by,
        paused_reason=queue.paused_reason,
        paused_until=queue.paused_until,
        rate_in=rates[0],
        rate_out=rates[1],
        depths=tuple(depths),
    )


def empty_queue(name: str) -> QueueStats:
    return QueueStats(name=name, counts=dict.fromkeys(Status, 0), oldest_due=None, paused_at=None, paused_by=None)


def rate_of(points: Iterable[SeriesPoint], until: datetime, *, minutes: int = RATE_MINUTES) -> float | None:
    """Return the average a minute of the whole minutes before *until*; None if none of them has a value."""
    first, end = until - timedelta(minutes=minutes), until.replace(second=0, microsecond=0)
    seen = [point for point in points if first <= point.at < end]
    if not seen:
        return None
    # A queue that is younger than the span has fewer minutes to average over.
    span = max((end - min(point.at for point in seen)) / timedelta(minutes=1), 1.0)
    return sum(point.value for point in seen) / span


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseForecast:
    """What a pause of *length* does at the present rates."""

    length: timedelta
    backlog: int
    rate: float | None
    drain: timedelta | None


def forecast_pause(
    figures: QueueFigures, length: timedelta, *, run_time: timedelta | None = None
) -> PauseForecast | None:
    """Return what waits at the end of a pause, and how long it then takes to drain; None if rates are unknown.

    A queue that keeps up ends as many jobs as arrive, which says nothing about how fast it could drain: then the slots
    of its workers and the mean *run_time* of its jobs do.
    """
    if figures.rate_in is None:
        return None
    backlog = figures.waiting + figures.rate_in * length / timedelta(minutes=1)
    rate = drain_rate(figures, run_time)
    drain = (
        timedelta(minutes=backlog / (rate - figures.rate_in)) if rate is not None and rate > figures.rate_in else None
    )
    return PauseForecast(length=length, backlog=round(backlog), rate=rate, drain=drain)


def drain_rate(figures: QueueFigures, run_time: timedelta | None) -> float | None:
    """Return how many jobs a minute the queue can end."""
    is_behind = figures.rate_in is not None and figures.waiting > max(figures.rate_in / 10, figures.capacity)
    if is_behind or run_time is None or not figures.capacity:
        return figures.rate_out
    possible = figures.capacity * timedelta(minutes=1) / max(run_time, timedelta(milliseconds=1))
    return max(min(possible, MAX_RATE), figures.rate_out or 0.0)


def mean_of(points: Iterable[SeriesPoint]) -> timedelta | None:
    """Estimate the mean of the histograms of *points*: each entry counts as the middle of its bucket."""
    total, count = timedelta(0), 0
    for point in points:
        for bucket, number in enumerate(point.buckets):
            lower = bucket_limit(bucket - 1) if bucket else timedelta(0)
            total += (lower + bucket_limit(bucket)) / 2 * number
            count += number
    return total / count if count else None
