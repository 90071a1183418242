from __future__ import annotations

from contextlib import closing

import click

from taskharbor.cli.options import json_option, url_option


@click.command()
@url_option
@json_option
def janitor(*, url: str, as_json: bool) -> None:
    """Keep the store in order until a signal.

    Brings back jobs of workers that died, fires schedules, and removes what is past its retention. Every
    worker does that too; a janitor of its own is for times when none runs. The log goes to stderr.
    """
    import logging

    from taskharbor.cli.logs import log_to_stderr
    from taskharbor.drivers.connect import connect
    from taskharbor.janitor import Janitor
    from taskharbor.runtime import ThreadRuntime
    from taskharbor.schedules import Scheduler
    from taskharbor.service import tick_until_signal
    from taskharbor.worker.worker import LEASE

    log_to_stderr(as_json=as_json)
    runtime = ThreadRuntime(plain=1)
    with closing(connect(url)) as driver:
        logging.getLogger("taskharbor.janitor").info("the janitor keeps the store in order")
        tick_until_signal(runtime, "janitor", Janitor(runtime, driver, lease=LEASE, scheduler=Scheduler(driver)).tick)
        logging.getLogger("taskharbor.janitor").info("the janitor stopped")
