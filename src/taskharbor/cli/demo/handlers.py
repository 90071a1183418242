"""The handlers of the demo (`taskharbor worker taskharbor.cli.demo.handlers`), and the log that they write."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from taskharbor import Context, Fixed, Job, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor import Worker

What = Literal["begin", "done", "failed", "died"]
SUCCEEDING_ATTEMPT: Final = 3  # of flaky jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A log entry: a handler began, finished or failed, or a process died. All processes share the clock of ``at``."""

    what: What
    pid: int
    at: float
    job: str = ""
    token: str = ""


class EffectLog:
    """A log file that several processes append to, one write per line, so that a kill leaves no partial line."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, what: What, *, pid: int, job: str = "", token: str = "") -> None:
        effect = Effect(what=what, pid=pid, at=time.monotonic(), job=job, token=token)
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, json.dumps(asdict(effect)).encode() + b"\n")
        finally:
            os.close(descriptor)

    def read(self) -> list[Effect]:
        return [Effect(**json.loads(line)) for line in self.file.read_text().splitlines()]


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
        await asyncio.sleep(job.data["seconds"])  # longer than a lease; the heartbeat extends it
        return "done at last"


def flaky(job: Job, ctx: Context) -> str:
    with logged(job, ctx):
        if job.attempt_count < SUCCEEDING_ATTEMPT:
            raise TimeoutError("the mail server did not answer")  # noqa: TRY003  as in users' code
        return "done at the third attempt"


def hopeless(job: Job, ctx: Context) -> None:
    with logged(job, ctx):
        raise ValueError("this always fails")  # noqa: TRY003  as in users' code


def poison(job: Job, ctx: Context) -> None:
    with logged(job, ctx):
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # until the signal is delivered


@contextmanager
def logged(job: Job, ctx: Context) -> Iterator[None]:
    """Log when this attempt begins and how it ends."""
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
