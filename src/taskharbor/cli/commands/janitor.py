from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.options import json_option, url_of_app_option

if TYPE_CHECKING:
    from taskharbor.delivery.transport import Transport
    from taskharbor.harbor import Harbor


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

    from taskharbor.cli.app import load_app
    from taskharbor.cli.logs import log_to_stderr
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

    from taskharbor.deadletters import relay_for
    from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE
    from taskharbor.janitor import Janitor
    from taskharbor.runtime import ThreadRuntime
    from taskharbor.service import ServiceLoops, run_until_signal
    from taskharbor.worker.telling import AttemptHooks
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
        tell=AttemptHooks(harbor.hooks),
    )
    loops.add("janitor", made.tick)
    log.info("the janitor keeps the store in order")
    run_until_signal(loops.start, loops.stop, is_over=lambda: False)
    log.info("the janitor stopped")
