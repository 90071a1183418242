"""Prometheus metrics of one process, made of its hook events. Needs the extra ``prometheus``."""

from __future__ import annotations

from taskharbor.observability.prometheus.hook import PrometheusHook, hook_among, render

__all__ = ["PrometheusHook", "hook_among", "render"]
