"""The options of probes, and the server of a service that answers them."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.cli.options import InvalidValue, duration_from
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from taskharbor.harbor import Harbor
    from taskharbor.health import ServiceHealth, WatchedService
    from taskharbor.observability.prometheus import PrometheusHook
    from taskharbor.worker import Worker

HOST: Final = "0.0.0.0"  # noqa: S104  the kubelet and Prometheus connect from other addresses
STUCK_AFTER: Final = "1m"
_stuck_after: Final = duration_from("1s")


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """Where a service answers probes; nowhere if *port* is None."""

    port: int | None
    host: str
    stuck_after: timedelta

    @contextmanager
    def serve(self, service: str, harbor: Harbor, *, is_successor: bool = False) -> Iterator[Probes]:
        """Answer probes inside the block, and yield what judges the service.

        If prometheus_client is installed, the hooks of *harbor* count from now on, and ``/metrics`` is answered. With
        *is_successor*, an older process may still have the port: it answers there until it has ended.
        """
        from taskharbor.health import ServiceHealth

        health = ServiceHealth(stuck_after=self.stuck_after)
        if self.port is None:
            yield Probes(health)
            return
        from taskharbor.health.server import HealthServer

        hook, metrics, paths = None, None, "/livez, /readyz"
        if find_spec("prometheus_client"):
            from taskharbor.observability.prometheus import render

            hook = _counting_hook(harbor, health)
            hook.note_store(is_available=False)  # it may have to be waited for
            metrics, paths = partial(render, hook.registry), f"{paths}, /metrics"
        started = HealthServer(health, host=self.host, port=self.port, metrics=metrics, waits=is_successor)
        with closing(started) as server:
            place = server.url or f"port {self.port}, when the process before has ended"
            logging.getLogger(f"taskharbor.{service}").info("probes on %s: %s", place, paths)
            yield Probes(health, hook)


@dataclass(frozen=True, slots=True)
class Probes:
    """What answers the probes of a process, and the hook that counts for its metrics."""

    health: ServiceHealth
    hook: PrometheusHook | None = None

    def watch(self, service: WatchedService, *, worker: Worker | None = None) -> None:
        """Judge *service* from now on, and count the slots of *worker*."""
        if self.hook is not None:
            self.hook.note_store(is_available=True)
            if worker is not None:
                self.hook.watch(worker)
        self.health.watch(service)


def _counting_hook(harbor: Harbor, health: ServiceHealth) -> PrometheusHook:
    from taskharbor.cli.metrics import enable_metrics
    from taskharbor.health.metrics import LoopMetrics

    hook = enable_metrics(harbor)
    LoopMetrics(health, hook.registry)
    return hook


def health_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--health-port`, `--health-host` and `--health-stuck-after`; *command* gets them as ``health``."""

    @wraps(command)
    def with_health(*, health_port: int | None, health_host: str, health_stuck_after: timedelta, **rest: Any) -> None:
        command(health=HealthOptions(health_port, health_host, health_stuck_after), **rest)

    options = [
        click.option(
            "--health-port",
            type=click.IntRange(0, 65_535),
            callback=_given_or_set,
            help="Answer /livez, /readyz and /metrics on this port; 0 for any free one."
            "  [default: TASKHARBOR_HEALTH_PORT, else no port]",
        ),
        click.option(
            "--health-host",
            callback=_given_or_set,
            help=f"The address of the health port.  [default: TASKHARBOR_HEALTH_HOST, else {HOST}]",
        ),
        click.option(
            "--health-stuck-after",
            type=_stuck_after,
            metavar="TIME",
            callback=_given_or_set,
            help="How much longer than by design a loop may take before /livez fails."
            f"  [default: TASKHARBOR_HEALTH_STUCK_AFTER, else {STUCK_AFTER}]",
        ),
    ]
    for option in reversed(options):  # click lists the option that was added last first
        with_health = option(with_health)
    return with_health


def _given_or_set(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Return the given value, else that of the environment, else the default."""
    if value is not None:
        return value
    name = parameter.name or ""
    default = {"health_host": HOST, "health_stuck_after": STUCK_AFTER}.get(name)
    text: str | None = getattr(Settings.from_env(), name) or default
    if text is None:
        return None
    try:
        return parameter.type.convert(text, parameter, ctx)
    except click.BadParameter as error:
        raise InvalidValue(text, f"TASKHARBOR_{name.upper()}: {error.message}") from None
