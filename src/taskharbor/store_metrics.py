"""Prometheus gauges of a store, read from its aggregates when they are scraped. Needs the extra ``prometheus``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from taskharbor.core.errors import TaskHarborError
from taskharbor.core.states import Status
from taskharbor.diagnosis import is_alive
from taskharbor.observability.prometheus.labels import MAX_QUEUES, BoundedLabels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry

    from taskharbor.drivers.base import Inspector

MAX_PENDING: Final = 10_000
"""How many unpublished events are counted."""


class StoreGauges(Collector):
    """Exports the depth of queues, dead letters, workers and unpublished events of one store.

    Every process would export the same values, so only the API and ``janitor --metrics`` have this. Queues beyond the
    first 200 are summed as ``other``. If the store is unavailable, ``taskharbor_store_up`` is 0 and all others are
    missing: an old value would look like a current one.
    """

    def __init__(self, inspector: Callable[[], Inspector], registry: CollectorRegistry) -> None:
        self._inspector = inspector
        self._queues = BoundedLabels(MAX_QUEUES)
        registry.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges without values, which the registry needs for their names."""
        yield from self._families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        began_at, families = time.monotonic(), self._families()
        try:
            self._read(families)
        except TaskHarborError:
            families = {"store_up": self._families()["store_up"]}
            families["store_up"].add_metric([], 0)
        else:
            families["store_up"].add_metric([], 1)
            families["store_read_seconds"].add_metric([], time.monotonic() - began_at)
        yield from families.values()

    def _read(self, families: dict[str, GaugeMetricFamily]) -> None:
        inspector = self._inspector()
        now = inspector.now()
        jobs: dict[tuple[str, Status], int] = {}
        oldest: dict[str, float] = {}
        paused: dict[str, int] = {}
        for stats in inspector.queues():
            queue = self._queues.get(stats.name)
            for status, count in stats.counts.items():
                jobs[queue, status] = jobs.get((queue, status), 0) + count
            waited = 0.0 if stats.oldest_due is None else (now - stats.oldest_due).total_seconds()
            oldest[queue] = max(oldest.get(queue, 0.0), waited)
            paused[queue] = paused.get(queue, 0) + (stats.paused_at is not None)
        for (queue, status), count in jobs.items():
            families["jobs"].add_metric([queue, status], count)
            if status is Status.DEAD:
                families["dead_letters"].add_metric([queue], count)
        for queue, seconds in oldest.items():
            families["queue_oldest_due_seconds"].add_metric([queue], seconds)
            families["queue_paused"].add_metric([queue], paused[queue])
        workers = inspector.workers()
        families["workers"].add_metric([], sum(is_alive(each, now) for each in workers))
        families["outbox_pending"].add_metric([], inspector.outbox_pending(limit=MAX_PENDING))

    def _families(self) -> dict[str, GaugeMetricFamily]:
        return {
            name: GaugeMetricFamily(f"taskharbor_{name}", documentation, labels=labels)
            for name, (documentation, labels) in _GAUGES.items()
        }


_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "jobs": ("Jobs in the store, a few seconds old.", ("queue", "status")),
    "dead_letters": ("Dead letters in the store, a few seconds old.", ("queue",)),
    "queue_oldest_due_seconds": ("For how long the first waiting job has been due; 0 if none is.", ("queue",)),
    "queue_paused": ("How many queues of this name are paused: 1 or 0; more only for other.", ("queue",)),
    "workers": ("Workers with a recent heartbeat.", ()),
    "outbox_pending": ("Dead-letter events that are neither published nor given up, up to 10,000.", ()),
    "store_up": ("Whether the store answered this scrape: 1 or 0.", ()),
    "store_read_seconds": ("How long it took to read the gauges of the store.", ()),
}
