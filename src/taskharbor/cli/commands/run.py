from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from taskharbor._version import __version__
from taskharbor.cli.dashboard import dashboard_options
from taskharbor.cli.health import health_options
from taskharbor.cli.options import (
    duration_from,
    given_options,
    json_option,
    log_options,
    retention_options,
    startup_options,
    url_of_app_option,
)
from taskharbor.cli.sqs import harbor_with_queues, queues_option, sqs_transport
from taskharbor.core.messages import MAX_BUNDLE

if TYPE_CHECKING:
    from datetime import timedelta

    from taskharbor.cli.dashboard import DashboardOptions
    from taskharbor.cli.health import HealthOptions, Probes
    from taskharbor.core.retention import RetentionOptions
    from taskharbor.delivery.transport import Transport
    from taskharbor.harbor import Harbor


@click.command()
@click.argument("app", required=False)
@queues_option
@click.option(
    "--period",
    type=duration_from("10ms"),
    metavar="TIME",
    default="1s",
    show_default=True,
    help="The maximum idle time without notifications and due jobs.",
)
@click.option(
    "--unclaimed",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="How many sent jobs of a queue may be unclaimed before sending pauses.",
)
@click.option(
    "--bundle",
    type=click.IntRange(1, MAX_BUNDLE),
    default=1,
    show_default=True,
    help="How many jobs a message may name while a backlog is due. Upgrade all workers before you raise it.",
)
@health_options
@startup_options
@url_of_app_option
@log_options
@json_option
def enqueuer(
    *,
    app: str | None,
    url: str | None,
    as_json: bool,
    log_level: str | None,
    queues: tuple[str, ...] | None,
    period: timedelta,
    unclaimed: int,
    bundle: int,
    health: HealthOptions,
    migrate: bool,
    wait: bool,
) -> None:
    """Send messages for due jobs until a signal.

    APP is a Harbor, named as for 'taskharbor worker': it has the store and the queues of its tasks.
    Without APP and -q, it is found as 'taskharbor worker' finds it.

    Workers with --sqs receive these messages. Any number of enqueuers may run at the same time.
    With --bundle, fewer messages are sent, received and deleted for many due jobs. A few due jobs are
    sent one by one.
    Credentials, region and endpoint come from the standard AWS configuration.
    TASKHARBOR_SQS_PREFIX is the prefix of all queue names. The log goes to stderr.
    """
    import logging

    from taskharbor.cli.log_output import log_to_stderr
    from taskharbor.cli.startup import prepare_store, store_name
    from taskharbor.enqueuer import DueTaskEnqueuer
    from taskharbor.runtime import ThreadRuntime
    from taskharbor.service import run_until_signal

    log = logging.getLogger("taskharbor.enqueuer")
    loaded = harbor_with_queues(app, queues)
    names = queues or tuple(loaded.queues)
    log_to_stderr(as_json=as_json, level=log_level)
    with loaded as harbor, health.serve("enqueuer", harbor) as probes, sqs_transport() as transport:
        if url is not None:
            harbor.use_store(url)
        prepare_store(harbor, "enqueuer", migrate=migrate, wait=wait)
        transport.open()  # otherwise nothing would report a missing region until a job is due
        runtime = ThreadRuntime(sync_threads=1)
        service = DueTaskEnqueuer(
            runtime,
            harbor.driver,
            transport,
            queues=names,
            max_idle=period,
            max_unclaimed=unclaimed,
            bundle=bundle,
            hooks=harbor.hooks,
        )
        probes.watch(service.watched)
        started = "enqueuer started: taskharbor %s; store %s; queues %s"
        log.info(started, __version__, store_name(harbor), ", ".join(names))
        run_until_signal(service.start, service.stop, is_over=lambda: False)
        log.info("enqueuer stopped")


@click.command()
@click.argument("app", required=False)
@click.option("--sqs", is_flag=True, help="Publish dead-letter events to their SQS queue.")
@click.option("--metrics", is_flag=True, help="Export the gauges of the store, as 'taskharbor api' does.")
@retention_options
@health_options
@startup_options
@url_of_app_option
@log_options
@json_option
def janitor(
    *,
    app: str | None,
    url: str | None,
    as_json: bool,
    log_level: str | None,
    sqs: bool,
    metrics: bool,
    health: HealthOptions,
    migrate: bool,
    wait: bool,
    **retention: timedelta | None,
) -> None:
    """Run maintenance of the store until a signal.

    Reclaims jobs of dead workers, fires schedules, and removes data past its retention. Every worker does
    this too; run a janitor if there are times without workers.

    APP is a Harbor, named and found as for 'taskharbor worker': its publisher receives dead-letter events,
    its hooks are called, and its codec encodes the payloads of scheduled jobs. Its schedules are not
    declared: that needs a worker, which has handlers. The log goes to stderr.
    """
    from contextlib import nullcontext

    from taskharbor.cli.app_loader import harbor_for
    from taskharbor.cli.log_output import log_to_stderr
    from taskharbor.cli.metrics import export_store
    from taskharbor.cli.sqs import sqs_transport
    from taskharbor.cli.startup import prepare_store

    loaded = harbor_for(app)
    log_to_stderr(as_json=as_json, level=log_level)
    with (
        loaded as harbor,
        health.serve("janitor", harbor) as probes,
        sqs_transport() if sqs else nullcontext() as transport,
    ):
        if url is not None:
            harbor.use_store(url)
        if metrics:
            export_store(harbor, has_port=health.port is not None)
        prepare_store(harbor, "janitor", migrate=migrate, wait=wait)
        _run_janitor(harbor, transport, harbor.retention | given_options(retention), probes)


def _run_janitor(harbor: Harbor, transport: Transport | None, retention: RetentionOptions, probes: Probes) -> None:
    import logging

    from taskharbor.cli.startup import store_name
    from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
    from taskharbor.janitor import MAX_TICK, Janitor
    from taskharbor.observability.hook_caller import HookCaller
    from taskharbor.outbox import OUTBOX_LOCK, relay_for
    from taskharbor.runtime import ThreadRuntime
    from taskharbor.service import ServiceLoops, run_until_signal
    from taskharbor.worker.config import LEASE

    log = logging.getLogger("taskharbor.janitor")
    runtime = ThreadRuntime(sync_threads=1)
    call_hooks = HookCaller(harbor.hooks, log)
    loops = ServiceLoops(runtime, call_hooks=call_hooks)
    relay = relay_for(
        harbor.driver,
        loops.failures,
        call_hooks,
        publisher=harbor.publisher,
        transport=transport,
        queue=DEAD_EVENTS_QUEUE,
    )
    if relay is not None:
        loops.add("outbox-relay", relay.tick, may_take=OUTBOX_LOCK)
    service = Janitor(
        runtime,
        harbor.driver,
        lease=LEASE,
        failures=loops.failures,
        scheduler=harbor.scheduler(),
        relay=None if relay is None else lambda: loops.wake("outbox-relay"),
        hooks=harbor.hooks,
        **retention,
    )
    loops.add("janitor", service.tick, may_take=MAX_TICK)
    probes.watch(service.watched_in(loops))
    log.info("janitor started: taskharbor %s; store %s", __version__, store_name(harbor))
    run_until_signal(loops.start, loops.stop, is_over=lambda: False)
    log.info("janitor stopped")


@click.command()
@click.argument("app", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="The port; 0 for any free one."
)
@click.option(
    "--unknown-types",
    type=click.Choice(["refuse", "accept"]),
    default="refuse",
    show_default=True,
    help="What to do with new jobs of types that no task of the app has.",
)
@click.option("--root-path", metavar="PATH", default="", help="The prefix of the path that a proxy removes.")
@click.option(
    "--forwarded-allow-ips",
    metavar="ADDRESSES",
    help="The proxies whose X-Forwarded headers are believed: addresses or networks, separated by commas, or '*'. "
    "By default those of FORWARDED_ALLOW_IPS, else 127.0.0.1.",
)
@dashboard_options
@startup_options
@url_of_app_option
@log_options
@json_option
def api(
    *,
    app: str | None,
    host: str,
    port: int,
    unknown_types: Literal["refuse", "accept"],
    root_path: str,
    forwarded_allow_ips: str | None,
    dashboard: DashboardOptions,
    url: str | None,
    as_json: bool,
    log_level: str | None,
    migrate: bool,
    wait: bool,
) -> None:
    """Serve the HTTP API until a signal.

    Once the store has an API key, every request needs one; a new key takes effect within a few seconds.
    Without any key, the API serves this machine only: it rejects other addresses and requests that come
    through a proxy. The log goes to stderr, with the address of the dashboard, if that is installed.

    APP is named and found as for 'taskharbor worker'. New jobs get the options of its tasks, their payloads
    must match the parameters, and its codec encodes them. Without an app, any type and payload are accepted,
    and payloads are JSON; a store whose payloads have another codec is rejected.
    """
    from importlib.util import find_spec

    from taskharbor.cli.errors import NotInstalled
    from taskharbor.cli.log_output import log_to_stderr
    from taskharbor.cli.metrics import enable_metrics

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise NotInstalled("FastAPI", "api")
    from taskharbor.api.server import serve
    from taskharbor.cli.app_loader import open_harbor
    from taskharbor.cli.startup import prepare_store
    from taskharbor.settings import Settings

    log_to_stderr(as_json=as_json, level=log_level)
    with open_harbor(app, url, creates=True) as harbor:
        registry = enable_metrics(harbor).registry if find_spec("prometheus_client") else None
        prepare_store(harbor, "api", migrate=migrate, wait=wait)
        serve(
            harbor,
            host=host,
            port=port,
            unknown_types=unknown_types,
            registry=registry,
            read_only=dashboard.read_only,
            parts=dashboard.parts(),
            root_path=root_path.rstrip("/"),
            forwarded_allow_ips=forwarded_allow_ips or Settings.from_env().forwarded_allow_ips,
        )
