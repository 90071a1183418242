"""Liveness and readiness of a service, and the HTTP server that reports them."""

from taskharbor.health.checks import Check, ServiceHealth, WatchedService

__all__ = ["Check", "ServiceHealth", "WatchedService"]
