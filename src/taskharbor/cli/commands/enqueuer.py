from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.sqs import queues_option, sqs_transport
from taskharbor.cli.values import duration_from

if TYPE_CHECKING:
    from datetime import timedelta


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

    from taskharbor.cli.logs import log_to_stderr
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
