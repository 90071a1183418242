"""An app whose tasks run in child processes: harmless ones, and some that do what no handler should do."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import mmap
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from taskharbor import Cancel, Context, DeadLetter, Harbor, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Iterator

harbor = Harbor()


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@harbor.lifespan
def resources() -> Iterator[dict[str, int]]:
    if os.environ.get("ISOLATED_APP_BROKEN"):  # noqa: TID251  as below
        message = "no such model"
        raise LookupError(message)
    state = {"pid": os.getpid(), "runs": 0}
    yield state
    if folder := os.environ.get("ISOLATED_APP_FOLDER"):  # noqa: TID251  set by a test for the children
        (Path(folder) / f"left-{os.getpid()}").touch()


@harbor.task(isolate=True)
def pid_of_child() -> int:
    return os.getpid()


@harbor.task(isolate=True)
def state_of_child(ctx: Context) -> list[int]:
    ctx.state["runs"] += 1
    return [ctx.state["pid"], os.getpid(), ctx.state["runs"]]


@harbor.task
def pid_of_worker() -> int:
    return os.getpid()


@harbor.task(isolate=True)
async def pid_of_async_child() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@harbor.task(isolate=True)
def describe(ctx: Context, value: dict[str, int]) -> dict[str, Any]:
    """Return what the child knows of its job."""
    logging.getLogger("shop.images").warning("resized %d images", 3)
    print("printed by the handler")  # noqa: T201  stdout is part of the test
    ctx.progress(2, 5, "half")
    deadline = None if ctx.deadline is None else ctx.deadline.isoformat()
    return {
        "job": str(ctx.job_id),
        "attempt": ctx.attempt,
        "token": str(ctx.token),
        "queue": ctx.job.queue,
        "metadata": dict(ctx.job.metadata),
        "deadline": deadline,
        "value": value,
    }


@harbor.task(isolate=True)
def raise_by_name(name: str) -> None:
    errors: dict[str, BaseException] = {
        "retry": Retry("later", after=1234),
        "snooze": Snooze(after=1234),
        "cancel": Cancel("not needed"),
        "dead": DeadLetter("wrong address"),
        "value": ValueError("3 is too many"),
        "exit": SystemExit(3),
    }
    raise errors[name]


@harbor.task(isolate=True)
def complete_in(ctx: Context, file: str, *, commits: bool) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        ctx.complete_in(connection)
        connection.execute("COMMIT" if commits else "ROLLBACK")


@harbor.task(isolate=True)
def complete_in_postgres(ctx: Context, url: str) -> None:
    """Enqueue another job and complete its own in one transaction."""
    with psycopg.connect(url) as connection:
        pid_of_child.using(connection=connection, queue="later").enqueue()
        ctx.complete_in(connection)


@harbor.task(isolate=True)
def wait_for_stop(ctx: Context, folder: str) -> None:
    """Note that it runs, and wait until it is asked to stop. It ignores the signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(folder) / "running").write_text(str(os.getpid()))
    while not ctx.is_cancelled:
        _pause(0.01)
    (Path(folder) / "asked").touch()
    ctx.raise_if_cancelled()


@harbor.task(isolate=True)
def loop(folder: str) -> None:
    """Compute without an end. It notes how it was interrupted."""
    (Path(folder) / "running").write_text(str(os.getpid()))
    try:
        while True:
            pass
    finally:
        (Path(folder) / "cleaned-up").touch()


@harbor.task(isolate=True)
async def await_forever(folder: str) -> None:
    (Path(folder) / "running").write_text(str(os.getpid()))
    try:
        await asyncio.sleep(3600)
    finally:
        (Path(folder) / "cleaned-up").touch()


@harbor.task(isolate=True)
def hold_the_gil() -> None:
    """Run a loop of C code that does not release the GIL, and does not handle signals."""
    sum(iter(int, 1))


@harbor.task(isolate=True)
def match_without_end() -> None:
    re.fullmatch(r"(a|aa)+$", "a" * 200 + "b")


@harbor.task(memory="256MB")
def allocate(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


@harbor.task(memory="256MB")
def allocate_shared(megabytes: int) -> None:
    """Use memory that no limit of the process counts."""
    descriptor = os.memfd_create("large")
    os.ftruncate(descriptor, megabytes << 20)
    with mmap.mmap(descriptor, megabytes << 20) as memory:
        for position in range(0, megabytes << 20, 4096):
            memory[position] = 1
    _pause(3600)


@harbor.task(isolate=True)
def crash() -> None:
    logging.getLogger("shop").warning("about to crash")
    ctypes.string_at(0)


@harbor.task(isolate=True)
def exit_now(code: int) -> None:
    print("the last words", flush=True)  # noqa: T201  stdout is part of the test
    os._exit(code)


@harbor.task(isolate=True)
def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@harbor.task(isolate=True)
def fork_and_wait(folder: str) -> None:
    """Fork, and wait for the copy without an end. Both ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pid = os.fork()
    (Path(folder) / f"pid-{os.getpid()}").touch()
    while True:
        _pause(3600 if pid else 1800)


@harbor.task(memory="256MB")
def allocate_in_copies(folder: str, copies: int, megabytes: int) -> None:
    """Let each of some copies in sessions of their own use memory, and return when all do."""
    ready, is_ready = os.pipe()
    for _ in range(copies):
        if not os.fork():
            os.setsid()
            memory = b"x" * (megabytes << 20)
            (Path(folder) / f"pid-{os.getpid()}").touch()
            os.write(is_ready, memory[:1])
            _pause(3600)
    for _ in range(copies):
        os.read(ready, 1)
    _pause(3600)


@harbor.task(memory="256MB")
def share_with_copies(megabytes: int, copies: int) -> int:
    """Let copies of the process share its memory, for several polls of it."""
    memory = b"x" * (megabytes << 20)
    pids = []
    for _ in range(copies):
        if not (pid := os.fork()):
            _pause(0.5)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return len(memory)


@harbor.task(isolate=True)
def hang_with_daemons(folder: str) -> None:
    """Start a process in a session of its own, that starts one in another, and hang."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork():
            break
        os.setsid()
    (Path(folder) / f"pid-{os.getpid()}").touch()
    while True:
        _pause(3600)


@harbor.task(isolate=True)
def leave_a_process(folder: str) -> int:
    """Start a process in a session of its own, and leave it."""
    code = "import time; _pause(3600)"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    process.returncode = 0
    (Path(folder) / f"pid-{process.pid}").touch()
    return os.getpid()


@harbor.task(isolate=True)
def fork_and_return(number: int) -> int:
    """Fork, and return in both processes: first in the copy."""
    if pid := os.fork():
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return number
    return -number


@harbor.task(isolate=True)
def parent_of_span() -> list[Any]:
    """Return the trace and the parent of a span that the handler makes, and whether it is sampled."""
    return _new_span()


@harbor.task(isolate=True)
async def parent_of_async_span() -> list[Any]:
    await asyncio.sleep(0)
    return _new_span()


def _new_span() -> list[Any]:
    logging.getLogger("shop.images").warning("resizing")
    span = TracerProvider().get_tracer("shop").start_span("resize")
    parent = trace.get_current_span().get_span_context()
    return [f"{span.get_span_context().trace_id:x}", f"{parent.span_id:x}", span.is_recording()]


@harbor.task(isolate=True)
def print_number(number: int) -> None:
    print(f"number {number}", flush=True)  # noqa: T201  stdout is part of the test


@harbor.task(isolate=True)
def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with suppress(BaseException):
            _pause(3600)


@harbor.task(isolate=True)
def close_all_descriptors() -> None:
    os.closerange(0, 65_536)
    _pause(3600)


@harbor.task(isolate=True)
def write_to_the_link() -> None:
    """Write something else than frames to all descriptors."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            continue
    _pause(3600)


@harbor.task(isolate=True)
def write_a_lot(megabytes: int) -> None:
    block = b"x" * 99 + b"\n"
    for _ in range(megabytes):
        os.write(1, block * 10_000)
    raise ValueError(megabytes)


@harbor.task(isolate=True)
def return_a_lot(megabytes: int) -> str:
    return "x" * (megabytes << 20)


@harbor.task(isolate=True)
def report_progress(ctx: Context, count: int) -> None:
    """Report progress as fast as possible, and wait until it is asked to stop."""
    for done in range(count + 1):
        ctx.progress(done, count)
    while not ctx.is_cancelled:
        _pause(0.01)
