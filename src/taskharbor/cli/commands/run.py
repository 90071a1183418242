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
    help="Whose jobs to run, and how many of each at once.  [default: default, and those that tasks name]",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    help=f"How many jobs to run at once.  [default: what the queues say, else {CONCURRENCY}]",
)
@click.option(
    "--grace",
    type=duration,
    metavar="TIME",
    default="25s",
    show_default=True,
    help="How long jobs may go on after a signal.",
)
@click.option(
    "--lease",
    type=duration_from("100ms"),
    metavar="TIME",
    default="30s",
    show_default=True,
    help="How long a silent worker keeps a job.",
)
@click.option(
    "--poll",
    type=duration_from("10ms"),
    metavar="TIME",
    default="1s",
    show_default=True,
    help="How often to look where nothing rings.",
)
@click.option(
    "--unknown-types",
    type=click.Choice(["dead-letter", "leave"]),
    default="dead-letter",
    show_default=True,
    help="What becomes of jobs without a handler here, five minutes after they are due.",
)
@click.option("--sqs", is_flag=True, help="Take jobs by the messages that an enqueuer sends.")
@url_of_app_option
@json_option
def worker(*, app: str | None, url: str | None, as_json: bool, sqs: bool, **options: Any) -> None:
    """Run jobs until a signal.

    APP is module:attribute or file.py[:attribute]: a Harbor, a mapping from types to handlers, or
    a function that registers them on the worker it is given. Without an attribute the first of
    app, harbor, register and handlers is taken; without APP, what pyproject.toml names under
    [tool.taskharbor] as app, or tasks.py, app.py, jobs.py or main.py.

    SIGTERM and Ctrl-C let jobs in hand end; those that do not within the grace time are given
    back. A second signal ends the worker now. The log, one line for each attempt, goes to
    stderr; with --json, and errors too, as JSON lines: {"at", "level", "logger", "message"}.
    """
    from contextlib import nullcontext

    from taskharbor.cli.app_loader import find_app, load_app
    from taskharbor.cli.render import log_to_stderr
    from taskharbor.cli.sqs import sqs_transport
    from taskharbor.harbor import Harbor

    loaded = load_app(find_app() if app is None else app)
    log_to_stderr(as_json=as_json)
    pollers = max(8, len(options["queues"] or ()))  # one for each queue, of which tasks may name more
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
    most = concurrency or _in_all(named)
    limits = {name: limit or most for name, limit in named.items()}
    return harbor.worker(
        queues=limits,
        concurrency=most,
        grace=grace,
        lease=lease,
        poll=poll,
        unknown_types=unknown_types,
        transport=transport,
    )


def _in_all(queues: Mapping[str, int | None]) -> int:
    """Return how many jobs may run at once where nobody said: all that the queues allow, if each has a limit."""
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
        log.info("worker %s stops: what it has in hand may take %s more", worker.id, grace)
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
    help="How long to rest at most, where nothing rings and no job becomes due.",
)
@click.option(
    "--unclaimed",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="How many jobs of a queue may be out before some are claimed.",
)
@url_option
@json_option
def enqueuer(*, url: str, as_json: bool, queues: tuple[str, ...], period: timedelta, unclaimed: int) -> None:
    """Send messages for due jobs until a signal.

    Workers that run with --sqs take jobs by these messages. Any number of enqueuers may run at
    once. Credentials, region and endpoint are found as for every AWS tool; TASKHARBOR_SQS_PREFIX
    begins the names of all queues. The log goes to stderr.
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
        made = DueTaskEnqueuer(
            ThreadRuntime(sync_threads=1), driver, transport, queues=queues, max_idle=period, max_unclaimed=unclaimed
        )
        log.info("the enqueuer serves %s", ", ".join(queues))
        run_until_signal(made.start, made.stop, is_over=lambda: False)
        log.info("the enqueuer stopped")


@click.command()
@click.argument("app", required=False)
@click.option("--sqs", is_flag=True, help="Publish the events of dead letters to their SQS queue.")
@url_of_app_option
@json_option
def janitor(*, app: str | None, url: str | None, as_json: bool, sqs: bool) -> None:
    """Keep the store in order until a signal.

    Brings back jobs of workers that died, fires schedules, and removes what is past its retention. Every
    worker does that too; a janitor of its own is for times when none runs.

    APP names a Harbor as for 'taskharbor worker': its publisher gets the events of dead letters, its hooks
    are called, and its codec writes the jobs of schedules. The log goes to stderr.
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
    from taskharbor.worker.hooks import AttemptHooks
    from taskharbor.worker.worker import LEASE

    log = logging.getLogger("taskharbor.janitor")
    runtime = ThreadRuntime(sync_threads=1)
    loops = ServiceLoops(runtime)
    relay = relay_for(harbor.driver, publisher=harbor.publisher, transport=transport, queue=DEAD_EVENTS_QUEUE)
    if relay is not None:
        loops.add("relay", relay.tick)
    made = Janitor(
        runtime,
        harbor.driver,
        lease=LEASE,
        scheduler=harbor.scheduler(),
        relay=None if relay is None else lambda: loops.wake("relay"),
        notify=AttemptHooks(harbor.hooks),
    )
    loops.add("janitor", made.tick)
    log.info("the janitor keeps the store in order")
    run_until_signal(loops.start, loops.stop, is_over=lambda: False)
    log.info("the janitor stopped")


@click.command()
@click.argument("app", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="0 takes a free one.")
@url_or_app_option
@json_option
def api(*, app: str | None, host: str, port: int, url: str | None, as_json: bool) -> None:
    """Serve the HTTP API until a signal.

    Once the store has an API key, every request needs one, a few seconds after it was made. Without any key
    the API is for this machine only: another address is refused, and so is what comes through a proxy. The
    log goes to stderr.

    Payloads are written with the codec of APP, which is named and found as for 'taskharbor worker'.
    Without an app they are plain JSON. A store whose payloads are written with another codec is refused.
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
