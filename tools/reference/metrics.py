"""The metrics that the processes of TaskHarbor export for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from taskharbor import MemoryDriver
from taskharbor.health import ServiceHealth
from taskharbor.health.metrics import LoopMetrics
from taskharbor.observability.prometheus import PrometheusHook
from taskharbor.store_metrics import StoreGauges
from tools.reference.markdown import code, table

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIXES = {"counter": "_total"}


class IdleWorker:
    """A worker, as far as the metrics need one."""

    concurrency = running_jobs = lost_slots = 0


def metrics() -> str:
    hook_registry, store_registry, health_registry = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    PrometheusHook(hook_registry).watch(IdleWorker())
    driver = MemoryDriver()
    StoreGauges(lambda: driver.inspector, store_registry)
    LoopMetrics(ServiceHealth(), health_registry)
    sections = {
        "Of each process": hook_registry,
        "Of a process with `--health-port`": health_registry,
        "Of the store": store_registry,
    }
    return "".join(
        f"## {title}\n\n{table(['metric', 'kind', 'labels', ''], sorted(_rows(registry)))}"
        for title, registry in sections.items()
    )


def _rows(registry: CollectorRegistry) -> Iterator[tuple[str, str, str, str]]:
    collectors: set[Any] = {*registry._names_to_collectors.values()}  # noqa: SLF001  there is no public way
    for collector in collectors:
        for family in collector.describe():
            labels = getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ())
            name = family.name + SUFFIXES.get(family.type, "")
            yield code(name), family.type, ", ".join(map(code, labels)), family.documentation
