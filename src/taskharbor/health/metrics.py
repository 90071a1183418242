"""Prometheus metrics of the loops of a service. Needs the extra ``prometheus``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry, Metric

    from taskharbor.health.checks import ServiceHealth


class LoopMetrics(Collector):
    """Exports when the loops of a service were last active, how often they failed, and how many are stuck.

    Loops of one kind are one label value: those of all queues are ``source``.
    """

    def __init__(self, health: ServiceHealth, registry: CollectorRegistry) -> None:
        self._health = health
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values, which the registry needs for their names."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        last_tick, errors, stuck = self._families()
        now = time.time()
        for loop, seconds in self._health.idle_seconds().items():
            last_tick.add_metric([loop], now - seconds)
        for loop, count in self._health.errors().items():
            errors.add_metric([loop], count)
        stuck.add_metric([], sum(bool(check.problem) for check in self._health.live()))
        yield from (last_tick, errors, stuck)

    def _families(self) -> tuple[GaugeMetricFamily, CounterMetricFamily, GaugeMetricFamily]:
        last_tick = "When the last tick of a loop began or ended, in seconds since 1970."
        errors = "Ticks of a loop that raised an error."
        stuck = "Loops of this process that are stuck, as /livez reports."
        return (
            GaugeMetricFamily("taskharbor_loop_last_tick_timestamp_seconds", last_tick, labels=["loop"]),
            CounterMetricFamily("taskharbor_loop_errors", errors, labels=["loop"]),
            GaugeMetricFamily("taskharbor_loops_stuck", stuck),
        )
