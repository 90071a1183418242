from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import click

from taskharbor.cli.exits import ExitCode
from taskharbor.cli.options import json_option, url_of_app_option
from taskharbor.cli.values import duration, duration_from, queues

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

    from taskharbor.cli.app import load_app
    from taskharbor.cli.discovery import find_app
    from taskharbor.cli.logs import log_to_stderr
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
