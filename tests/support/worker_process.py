r"""A worker or enqueuer in a separate process, which can kill itself at a given store call.

It can also lose the replies of one verb or see jumps of the store's clock, to reach kill points in the recovery code.

python -m tests.support.worker_process \
    '{"url": …, "effects": …, "lease": 1.0, "grace": 1.0, "fatal": ["settle", "after", 1]}'
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.messages import OVERDUE_AFTER
from taskharbor.delivery.sqs import SqsTransport
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.enqueuer import DueTaskEnqueuer
from taskharbor.runtime import ThreadRuntime
from taskharbor.service import run_until_signal
from taskharbor.worker import Worker
from tests.support.effects import Effects
from tests.support.worker_rig import Outage, meddled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.worker import Context
    from tests.support.worker_rig import Meddle

CLOCK_JUMP: Final = timedelta(minutes=1)


def main(config: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.WARNING, format=f"{os.getpid()} %(asctime)s %(message)s")
    driver = open_store(config["url"])
    for meddle in _faults(config):
        driver = meddled(driver, meddle)
    lease = timedelta(seconds=config["lease"])
    transport = SqsTransport(endpoint_url=config["sqs"], region="us-east-1") if "sqs" in config else None
    if config.get("sends") and transport is not None:
        _send(driver, transport, config.get("bundle", 1))
        return
    worker = Worker(
        driver,
        concurrency=config.get("concurrency", 4),
        lease=lease,
        grace=timedelta(seconds=config.get("grace", 1)),
        poll=timedelta(milliseconds=100),
        transport=transport,
        visibility=timedelta(seconds=2),
        receive_wait=timedelta(seconds=1),
        overdue_after=OVERDUE_AFTER if transport is None else timedelta(seconds=4),
    )
    _register(worker, Effects(Path(config["effects"])))
    worker.run()
    driver.close()


def _send(driver: Driver, transport: SqsTransport, bundle: int) -> None:
    enqueuer = DueTaskEnqueuer(
        ThreadRuntime(sync_threads=1),
        driver,
        transport,
        queues=["default"],
        max_idle=timedelta(milliseconds=100),
        lock=timedelta(seconds=2),
        resend_after=timedelta(seconds=2),
        max_resend=timedelta(seconds=4),
        batch=20,  # a batch that is full is a backlog
        bundle=bundle,
    )
    run_until_signal(enqueuer.start, enqueuer.stop, is_over=lambda: False)
    transport.close()
    driver.close()


def open_store(url: str) -> Driver:
    """Open the store at *url*: a PostgreSQL URL or the path of a SQLite file."""
    if url.startswith("postgresql"):
        return PostgresDriver(url, deadline=timedelta(seconds=2))
    return SqliteDriver(url, synchronous="NORMAL")


def _faults(config: dict[str, Any]) -> Iterator[Meddle]:
    if "fatal" in config:  # innermost: it kills between the commit and the lost reply
        yield Fatal(*config["fatal"])
    if "loses_replies_of" in config:
        outage = Outage(config["loses_replies_of"], commits=True)
        outage.begin()
        yield outage
    if config.get("strays"):
        yield ClockJumps()


class ClockJumps:
    """Moves the store's clock forward and back in turn."""

    _is_ahead = False

    def __call__(self, verb: str, call: Callable[[], Any]) -> Any:
        if verb != "now":
            return call()
        self._is_ahead = not self._is_ahead
        return call() + (CLOCK_JUMP if self._is_ahead else timedelta(0))


class Fatal:
    """Kills the process right before or after the n-th call of a verb, like a power cut."""

    def __init__(self, verb: str, when: str, nth: int) -> None:
        self._verb, self._when, self._left = verb, when, nth

    def __call__(self, verb: str, call: Callable[[], Any]) -> Any:
        if verb != self._verb:
            return call()
        left = self._left = self._left - 1  # during this call another thread may make the next one
        if left == 0 and self._when == "before":
            _die()
        answer = call()
        if left == 0:
            _die()
        return answer


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # until the signal is delivered


def _register(worker: Worker, effects: Effects) -> None:
    def sync_handler(job: Job, ctx: Context) -> str:
        effects.write("start", ctx.claim)
        ctx.progress(1)
        threading.Event().wait(job.data)
        effects.write("end", ctx.claim)
        return str(ctx.claim.lease.token)

    async def async_handler(job: Job, ctx: Context) -> str:
        effects.write("start", ctx.claim)
        await asyncio.sleep(job.data)
        effects.write("end", ctx.claim)
        return str(ctx.claim.lease.token)

    def poison(_job: Job, ctx: Context) -> None:
        effects.write("start", ctx.claim)
        _die()

    worker.register("plain", sync_handler)
    worker.register("async", async_handler)
    worker.register("poison", poison)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
