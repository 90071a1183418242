from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from taskharbor.cli.main import ExitCode
from taskharbor.cli.options import (
    duration,
    duration_from,
    json_option,
    queues,
    url_of_app_option,
    url_option,
    url_or_app_option,
)
from taskharbor.cli.sqs import queues_option, sqs_transport

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from taskharbor.delivery.transport import Transport
    from taskharbor.harbor import Harbor
    from taskharbor.worker import Worker

CONCURRENCY: Final = 16


@click.command()
@click.argument("app", required=False)
@click.option(
    "-q",
    "--queues",
    type=queues,
    metavar="NAME[:N],…",
    help="Queues, and how many jobs of each to run concurrently.  [default: default, and those of the tasks]",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"How many jobs to run concurrently.  [default: sum of the queue limits, else {CONCURRENCY}]",
)
@click.option(
    "--grace",
    type=duration,
    metavar="TIME",
    default="25s",
    show_default=True,
    help="How long running jobs may continue after a signal.",
)
@click.option(
    "--lease",
    type=duration_from("100ms"),
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long a worker keeps a job without a heartbeat.",
)
@click.option(
    "--poll",
    type=duration_from("10ms"),
    metavar="TIME",
    default="1s",
    show_default=True,
    help="How often to poll when no notification arrives.",
)
@click.option(
    "--unknown-types",
    type=click.Choice(["dead-letter", "leave"]),
    default="dead-letter",
    show_default=True,
    help="What to do with jobs without a handler, five minutes after they are due.",
)
@click.option("--sqs", is_flag=True, help="Receive jobs as SQS messages, which an enqueuer sends.")
@url_of_app_option
@json_option
def worker(*, app: str | None, url: str | None, as_json: bool, sqs: bool, **options: Any) -> None:
    """Run jobs until a signal.

    APP is module:attribute or file.py[:attribute]: a Harbor, a mapping from types to handlers, or
    a function that takes a worker and registers handlers on it. Without an attribute, the first of
    app, harbor, register and handlers is used. Without APP, the app of [tool.taskharbor] in
    pyproject.toml is used, or tasks.py, app.py, jobs.py or main.py.

    After SIGTERM or Ctrl-C, running jobs may finish within the grace time; the others are released.
    A second signal ends the worker immediately. The log, with one line per attempt, goes to stderr;
    with --json, log and errors are JSON lines: {"at", "level", "logger", "message"}.
    """
    from contextlib import nullcontext

    from taskharbor.cli.app_loader import find_app, load_app
    from taskharbor.cli.render import log_to_stderr
    from taskharbor.cli.sqs import sqs_transport
    from taskharbor.harbor import Harbor

    loaded = load_app(find_app() if app is None else app)
    log_to_stderr(as_json=as_json)
    pollers = max(8, len(options["queues"] or ()))  # one per queue; tasks may name more queues
    with loaded.harbor or Harbor() as harbor, sqs_transport(pollers=pollers) if sqs else nullcontext() as transport:
        if url is not None:
            harbor.use_store(url)
        made = _worker(harbor, transport, **options)
        loaded(made)
        _run_worker(made, options["grace"])


def _worker(
    harbor: Harbor,
    transport: Transport | None,
    *,
    queues: Mapping[str, int | None] | None,
    concurrency: int | None,
    grace: timedelta,
    lease: timedelta,
    poll: timedelta,
    unknown_types: Literal["dead-letter", "leave"],
) -> Worker:
    named = queues or dict.fromkeys(harbor.queues)
    total = concurrency or _default_concurrency(named)
    limits = {name: limit or total for name, limit in named.items()}
    return harbor.worker(
        queues=limits,
        concurrency=total,
        grace=grace,
        lease=lease,
        poll=poll,
        unknown_types=unknown_types,
        transport=transport,
    )


def _default_concurrency(queues: Mapping[str, int | None]) -> int:
    """Return the default concurrency: the sum of the limits if every queue has one."""
    limits = [limit for limit in queues.values() if limit is not None]
    return sum(limits) if len(limits) == len(queues) else max([CONCURRENCY, *limits])


def _run_worker(worker: Worker, grace: timedelta) -> None:
    import logging

    from taskharbor.service import run_until_signal

    log = logging.getLogger("taskharbor.worker")

    def start() -> None:
        worker.start()
        log.info("worker %s runs %s", worker.id, ", ".join(worker.types))

    def stop() -> None:
        log.info("worker %s stopping: waiting up to %g s for running jobs", worker.id, grace.total_seconds())
        worker.stop()
        log.info("worker %s stopped", worker.id)

    run_until_signal(start, stop, is_over=lambda: worker.is_over)
    worker.codec_check.raise_refusal()
    if worker.is_exhausted:
        raise click.exceptions.Exit(ExitCode.SLOTS_LOST)


@click.command()
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
@url_option
@json_option
def enqueuer(*, url: str, as_json: bool, queues: tuple[str, ...], period: timedelta, unclaimed: int) -> None:
    """Send messages for due jobs until a signal.

    Workers with --sqs receive these messages. Any number of enqueuers may run at the same time.
    Credentials, region and endpoint come from the standard AWS configuration.
    TASKHARBOR_SQS_PREFIX is the prefix of all queue names. The log goes to stderr.
    """
    import logging

    from taskharbor.cli.render import log_to_stderr
    from taskharbor.drivers.connect import connect
    from taskharbor.enqueuer import DueTaskEnqueuer
    from taskharbor.runtime import ThreadRuntime
    from taskharbor.service import run_until_signal

    log = logging.getLogger("taskharbor.enqueuer")
    log_to_stderr(as_json=as_json)
    with closing(connect(url)) as driver, sqs_transport() as transport:
        service = DueTaskEnqueuer(
            ThreadRuntime(sync_threads=1), driver, transport, queues=queues, max_idle=period, max_unclaimed=unclaimed
        )
        log.info("enqueuer serves %s", ", ".join(queues))
        run_until_signal(service.start, service.stop, is_over=lambda: False)
        log.info("enqueuer stopped")


@click.command()
@click.argument("app", required=False)
@click.option("--sqs", is_flag=True, help="Publish dead-letter events to their SQS queue.")
@url_of_app_option
@json_option
def janitor(*, app: str | None, url: str | None, as_json: bool, sqs: bool) -> None:
    """Run maintenance of the store until a signal.

    Reclaims jobs of dead workers, fires schedules, and removes data past its retention. Every worker does
    this too; run a janitor if there are times without workers.

    APP is a Harbor, named as for 'taskharbor worker': its publisher receives dead-letter events, its hooks
    are called, and its codec encodes the payloads of scheduled jobs. The log goes to stderr.
    """
    from contextlib import nullcontext

    from taskharbor.cli.app_loader import load_app
    from taskharbor.cli.render import log_to_stderr
    from taskharbor.cli.sqs import sqs_transport
    from taskharbor.harbor import Harbor

    loaded = None if app is None else load_app(app).harbor
    log_to_stderr(as_json=as_json)
    with loaded or Harbor() as harbor, sqs_transport() if sqs else nullcontext() as transport:
        if url is not None:
            harbor.use_store(url)
        _run_janitor(harbor, transport)


def _run_janitor(harbor: Harbor, transport: Transport | None) -> None:
    import logging

    from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
    from taskharbor.janitor import Janitor
    from taskharbor.outbox import relay_for
    from taskharbor.runtime import ThreadRuntime
    from taskharbor.service import ServiceLoops, run_until_signal
    from taskharbor.worker.config import LEASE
    from taskharbor.worker.hooks import HookCaller

    log = logging.getLogger("taskharbor.janitor")
    runtime = ThreadRuntime(sync_threads=1)
    loops = ServiceLoops(runtime)
    relay = relay_for(harbor.driver, publisher=harbor.publisher, transport=transport, queue=DEAD_EVENTS_QUEUE)
    if relay is not None:
        loops.add("outbox-relay", relay.tick)
    service = Janitor(
        runtime,
        harbor.driver,
        lease=LEASE,
        scheduler=harbor.scheduler(),
        relay=None if relay is None else lambda: loops.wake("outbox-relay"),
        notify=HookCaller(harbor.hooks),
    )
    loops.add("janitor", service.tick)
    log.info("janitor started")
    run_until_signal(loops.start, loops.stop, is_over=lambda: False)
    log.info("janitor stopped")


@click.command()
@click.argument("app", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="The port; 0 for any free one."
)
@url_or_app_option
@json_option
def api(*, app: str | None, host: str, port: int, url: str | None, as_json: bool) -> None:
    """Serve the HTTP API until a signal.

    Once the store has an API key, every request needs one; a new key takes effect within a few seconds.
    Without any key, the API serves this machine only: it rejects other addresses and requests that come
    through a proxy. The log goes to stderr.

    The codec of APP, which is named and found as for 'taskharbor worker', encodes payloads. Without an app
    they are JSON. A store whose payloads have another codec is rejected.
    """
    from importlib.util import find_spec

    from taskharbor.cli.errors import NotInstalled
    from taskharbor.cli.render import log_to_stderr

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise NotInstalled("FastAPI", "api")
    from taskharbor.api.server import serve
    from taskharbor.cli.app_loader import open_harbor

    log_to_stderr(as_json=as_json)
    with open_harbor(app, url) as harbor:
        serve(harbor, host=host, port=port)
