"""Misbehaving handlers, which must not affect the next job."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from taskharbor.core.states import Status
from tests.support.worker_rig import LIMIT_SECONDS, ended, enqueue, running_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver


BRIEF: Final = timedelta(milliseconds=500)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("raised by __str__")

    __repr__ = __str__


class _Explosive(Exception):
    def __str__(self) -> NoReturn:
        raise KeyboardInterrupt

    __repr__ = __str__


class _OddlyMade(Exception):
    def __init__(self, *, must: str, be: str) -> None:
        super().__init__()
        self.given = must, be


def _cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


RAISED: Final[dict[str, BaseException]] = {
    "unprintable": _Unprintable(),
    "explosive": _Explosive(),
    "oddly made": _OddlyMade(must="be", be="named"),
    "nul and surrogate": ValueError("\x00\udc80" * 100_000),
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "CancelledError": asyncio.CancelledError(),
    "GeneratorExit": GeneratorExit(),
    "StopIteration": StopIteration(),
    "group": BaseExceptionGroup("several", [SystemExit(), ValueError()]),
}
RETURNED: Final[dict[str, Any]] = {
    "object": object,
    "generator": lambda: (n for n in range(3)),
    "lock": threading.Lock,
    "cyclic": _cyclic,
    "deep": _deep,
    "not a number": lambda: float("nan"),
    "surrogate": lambda: "\udc80",
    "huge": lambda: "x" * 50_000_000,
}


def _good(_job: Job) -> str:
    return "good"


async def _good_async(_job: Job) -> str:
    await asyncio.sleep(0)
    return "good"


def _survive(driver: Driver, bad: dict[str, Any], **fields: Any) -> dict[str, Job]:
    """Run each bad handler and then good ones, one at a time; return the jobs of the bad ones."""
    handlers = {"good": _good, "good.async": _good_async}
    jobs = {}
    with running_worker(driver, handlers, concurrency=1) as worker:
        for name, handler in bad.items():
            worker.register("bad", handler)
            jobs[name] = ended(driver, enqueue(driver, "bad", max_attempts=1, **fields))
            good = [enqueue(driver, job_type) for job_type in ("good", "good.async")]
            assert {ended(driver, job_id).status for job_id in good} == {Status.SUCCEEDED}, name
    return jobs


def _job_of(driver: Driver, bad: Any, **fields: Any) -> Job:
    return _survive(driver, {"it": bad}, **fields)["it"]


def _raising(error: BaseException, *, is_async: bool) -> Any:
    def run(_job: Job) -> None:
        raise error

    async def run_async(_job: Job) -> None:
        raise error

    return run_async if is_async else run


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_whatever_a_handler_raises_fails_its_own_attempt_and_no_other(driver: Driver, is_async: bool) -> None:
    jobs = _survive(driver, {name: _raising(error, is_async=is_async) for name, error in RAISED.items()})

    assert {name: (job.status, job.attempt_count) for name, job in jobs.items()} == dict.fromkeys(
        RAISED, (Status.DEAD, 1)
    )


def test_a_result_that_cannot_be_stored_is_a_dead_letter_that_says_so(driver: Driver) -> None:
    jobs = _survive(driver, {name: lambda _job, make=make: make() for name, make in RETURNED.items()})

    assert {name: job.status for name, job in jobs.items()} == dict.fromkeys(RETURNED, Status.DEAD)
    assert all("its result cannot be stored" in (job.dead_reason or "") for job in jobs.values())


def test_a_codec_that_breaks_on_a_result_fails_that_job_only(driver: Driver) -> None:
    class Picky:
        name = "json"  # what the jobs here are enqueued with

        def encode(self, value: object, *, context: bytes) -> Any:  # noqa: ARG002  a codec's signature
            if value == "bad":
                raise RuntimeError("refused by a test")
            return "text" if value == "odd" else b"fine"

        def decode(self, data: bytes, *, context: bytes) -> Any:  # noqa: ARG002  as above
            return data

        def digest(self, value: object) -> bytes:
            return repr(value).encode()

    handlers = {"bad": lambda _job: "bad", "odd": lambda _job: "odd", "good": _good}
    with running_worker(driver, handlers, concurrency=1, codec=Picky()):
        bad, odd, good = enqueue(driver, "bad"), enqueue(driver, "odd"), enqueue(driver, "good")

        assert ended(driver, bad).dead_reason == "its result cannot be stored: RuntimeError"
        assert ended(driver, odd).dead_reason == "its result cannot be stored: $: its codec returned a str, not bytes"
        assert ended(driver, good).result == b"fine"


def test_a_thread_left_behind_by_a_handler_does_no_harm(driver: Driver) -> None:
    may_end = threading.Event()

    def leak(_job: Job) -> None:
        threading.Thread(target=may_end.wait, args=(LIMIT_SECONDS,), daemon=True).start()

    job = _job_of(driver, leak)
    may_end.set()

    assert job.status is Status.SUCCEEDED


def test_a_leftover_asyncio_task_that_raises_system_exit_does_no_harm(driver: Driver) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def bad(_job: Job) -> None:
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        with pytest.raises(SystemExit):
            task.result()

    assert _job_of(driver, bad).status is Status.SUCCEEDED


def test_a_handler_that_stops_the_event_loop_does_no_harm(driver: Driver) -> None:
    async def bad(_job: Job) -> None:
        asyncio.get_running_loop().stop()

    assert _job_of(driver, bad).status is Status.SUCCEEDED


async def _swallows(_job: Job) -> str:
    try:
        await asyncio.sleep(LIMIT_SECONDS)
    except asyncio.CancelledError:
        return "not stopped"
    return "not canceled"


async def _blocks(_job: Job) -> str:
    until = time.monotonic() + 2 * BRIEF.total_seconds()
    while time.monotonic() < until:
        threading.Event().wait(0.01)
    return "not stopped"


@pytest.mark.parametrize("bad", [_swallows, _blocks])
def test_an_async_handler_that_returns_after_its_timeout_is_recorded_as_timed_out(
    bad: Callable[[Job], Awaitable[str]], driver: Driver
) -> None:
    job = _job_of(driver, bad, timeout=BRIEF)

    assert (job.status, job.result) == (Status.DEAD, None)
    assert "ran longer than its timeout" in (job.last_error or "")


def test_a_handler_whose_own_task_was_cancelled_has_failed(driver: Driver) -> None:
    async def bad(_job: Job) -> None:
        task = asyncio.create_task(asyncio.sleep(LIMIT_SECONDS))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    job = _job_of(driver, bad)

    assert job.status is Status.DEAD
    assert "this worker did not cancel it" in (job.last_error or "")


def test_a_hook_that_raises_even_system_exit_changes_nothing(driver: Driver) -> None:
    def hook(_event: object) -> None:
        raise SystemExit(3)

    with running_worker(driver, {"good": _good}, hooks=[hook]):
        for _ in range(3):
            assert ended(driver, enqueue(driver, "good")).status is Status.SUCCEEDED
