"""Turns on the Prometheus metrics of a service."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from taskharbor.cli.errors import NotInstalled

if TYPE_CHECKING:
    from taskharbor.harbor import Harbor
    from taskharbor.observability.prometheus import PrometheusHook


class NoPort(click.UsageError):
    """Metrics were asked for that nothing would answer."""

    def __init__(self) -> None:
        super().__init__("--metrics needs --health-port, which answers them")


def enable_metrics(harbor: Harbor) -> PrometheusHook:
    """Return the hook that counts for Prometheus: the app's own, or a new one with a registry of its own.

    Call it before *harbor* makes its client and workers: only those that are made later have a new hook.
    """
    if find_spec("prometheus_client") is None:
        raise NotInstalled("prometheus_client", "prometheus")
    from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry

    from taskharbor.observability.prometheus import PrometheusHook, hook_among

    hook = hook_among(harbor.hooks)
    if hook is None:
        registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        hook = PrometheusHook(registry)
        harbor.hooks = (*harbor.hooks, hook)
    return hook


def export_store(harbor: Harbor, *, has_port: bool) -> None:
    """Add the gauges of the store to the metrics of this process. See `enable_metrics`.

    Without a port, only an app that has a hook of its own can answer them.
    """
    known = harbor.hooks
    registry = enable_metrics(harbor).registry
    if not has_port and harbor.hooks != known:
        raise NoPort
    from taskharbor.store_metrics import StoreGauges

    StoreGauges(lambda: harbor.driver.inspector, registry)
