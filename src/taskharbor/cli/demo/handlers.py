"""What the workers of the demo run: `taskharbor worker taskharbor.cli.demo.handlers`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor import Context, Fixed, Job, RetryPolicy
from taskharbor.cli.demo.effects import EffectLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor import Worker

LUCKY: Final = 3  # the attempt of flaky jobs that works


def register(worker: Worker) -> None:
    worker.register("quick", quick)
    worker.register("slow", slow)
    worker.register("flaky", flaky, policy=RetryPolicy(backoff=Fixed(timedelta(seconds=0.5))))
    worker.register("hopeless", hopeless, policy=RetryPolicy(backoff=Fixed(timedelta(seconds=0.5))))
    worker.register("poison", poison)


def quick(job: Job, ctx: Context) -> str:
    with logged(job, ctx):
        return "done"


async def slow(job: Job, ctx: Context) -> str:
    with logged(job, ctx):
        await asyncio.sleep(job.data["seconds"])  # longer than a lease: the heartbeat holds it
        return "done at last"


def flaky(job: Job, ctx: Context) -> str:
    with logged(job, ctx):
        if job.attempt_count < LUCKY:
            raise TimeoutError("the mail server did not answer")  # noqa: TRY003  as users do
        return "third time lucky"


def hopeless(job: Job, ctx: Context) -> None:
    with logged(job, ctx):
        raise ValueError("this will never work")  # noqa: TRY003  as users do


def poison(job: Job, ctx: Context) -> None:
    with logged(job, ctx):
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # the kernel is a moment late


@contextmanager
def logged(job: Job, ctx: Context) -> Iterator[None]:
    """Write down that this attempt began, and how it ended."""
    note = partial(
        EffectLog(Path(job.data["log"])).write, pid=os.getpid(), job=str(job.id), token=str(ctx.claim.lease.token)
    )
    note("begin")
    try:
        yield
    except BaseException:
        note("failed")
        raise
    note("done")
