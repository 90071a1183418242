"""Prometheus gauges of the loops of a service. Needs the extra ``prometheus``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

    from taskharbor.health.checks import ServiceHealth


class LoopGauges(Collector):
    """Exports when the loops of a service were last active, and how many of them are stuck.

    Loops of one kind are one label value: those of all queues are ``source``.
    """

    def __init__(self, health: ServiceHealth, registry: CollectorRegistry) -> None:
        self._health = health
        registry.register(self)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges without values, which the registry needs for their names."""
        yield from self._families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        last_tick, stuck = self._families()
        now = time.time()
        for loop, seconds in self._health.idle_seconds().items():
            last_tick.add_metric([loop], now - seconds)
        stuck.add_metric([], sum(bool(check.problem) for check in self._health.live()))
        yield last_tick
        yield stuck

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        last_tick = "When the last tick of a loop began or ended, in seconds since 1970."
        stuck = "Loops of this process that are stuck, as /livez reports."
        return (
            GaugeMetricFamily("taskharbor_loop_last_tick_timestamp_seconds", last_tick, labels=["loop"]),
            GaugeMetricFamily("taskharbor_loops_stuck", stuck),
        )
