"""The actions of a system's script, run in that system's environment: `python SCRIPT ACTION [ARGUMENTS]`.

    setup                    make the tables in an empty database
    enqueue COUNT            one by one, from one caller
    callers COUNT CALLERS    one by one, from so many callers at once
    bulk COUNT               in chunks of a thousand; from 32 callers if the system has no bulk enqueue
    paced RATE SECONDS       one by one, at this rate, each with the time at which it was enqueued
    worker                   run jobs until a signal

An action that enqueues prints its seconds. Only the standard library is imported here.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from ticks import tick

URL = os.environ.get("BENCH_URL", "")
SETTING = os.environ.get("BENCH_SETTING", "tuned")
HANDLERS = os.environ.get("BENCH_HANDLERS", "async")
HANDLER_SECONDS = float(os.environ.get("BENCH_HANDLER_SECONDS", "0"))
TUNED = SETTING == "tuned"
CHUNK = 1_000
CALLERS = 32

Enqueue = Callable[[dict[str, Any]], Awaitable[object]]
EnqueueSync = Callable[[dict[str, Any]], object]


def payload(number: int) -> dict[str, Any]:
    """Four parameters, as a small job of a user has them."""
    return {"n": number, "user": f"u{number}", "kind": "email", "ts": None}


def chunks(count: int) -> list[range]:
    return [range(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


async def handle(enqueued_at: float | None) -> None:
    """Do the work of an async handler."""
    tick(enqueued_at)
    if HANDLER_SECONDS:
        await asyncio.sleep(HANDLER_SECONDS)


def handle_sync(enqueued_at: float | None) -> None:
    """Do the work of a sync handler."""
    tick(enqueued_at)
    if HANDLER_SECONDS:
        time.sleep(HANDLER_SECONDS)


async def timed(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def one_by_one(enqueue: Enqueue, numbers: Iterable[int]) -> None:
    for number in numbers:
        await enqueue(payload(number))


async def from_callers(enqueue: Enqueue, count: int, callers: int) -> None:
    await asyncio.gather(*(one_by_one(enqueue, range(first, count, callers)) for first in range(callers)))


async def at_rate(enqueue: Enqueue, rate: float, seconds: float) -> None:
    start = time.time()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - time.time()))
        await enqueue({**payload(number), "ts": time.time()})


async def enqueue_as(action: str, arguments: list[float], enqueue: Enqueue) -> float:
    """Perform one of the actions that enqueue jobs singly, and return its seconds."""
    match action, arguments:
        case "enqueue", [count]:
            return await timed(one_by_one(enqueue, range(int(count))))
        case "callers", [count, callers]:
            return await timed(from_callers(enqueue, int(count), int(callers)))
        case "bulk", [count]:
            return await timed(from_callers(enqueue, int(count), CALLERS))
        case "paced", [rate, seconds]:
            return await timed(at_rate(enqueue, rate, seconds))
    raise SystemExit(f"unknown action {action!r}")


def enqueue_sync_as(action: str, arguments: list[float], enqueue: EnqueueSync) -> float:
    """Do the same with an *enqueue* that blocks; callers are threads."""
    start = time.perf_counter()

    def each(numbers: Iterable[int]) -> None:
        for number in numbers:
            enqueue(payload(number))

    match action, arguments:
        case "enqueue", [count]:
            each(range(int(count)))
        case "callers" | "bulk", [count, *given]:
            callers = int(given[0]) if given else CALLERS
            with ThreadPoolExecutor(callers) as threads:
                list(threads.map(each, (range(first, int(count), callers) for first in range(callers))))
        case "paced", [rate, seconds]:

            async def one(job: dict[str, Any]) -> None:
                enqueue(job)

            asyncio.run(at_rate(one, rate, seconds))
        case _:
            raise SystemExit(f"unknown action {action!r}")
    return time.perf_counter() - start


def become(module: str, *arguments: str) -> NoReturn:
    """Become the command line of a system, as its users start a worker."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def run(actions: dict[str, Callable[..., object]], otherwise: Callable[[str, list[float]], object]) -> None:
    """Perform the action of the command line; *otherwise* takes those that are not in *actions*."""
    action, *rest = sys.argv[1:]
    arguments = [float(word) for word in rest]
    result = actions[action](*arguments) if action in actions else otherwise(action, arguments)
    if result is not None:
        print(result)
