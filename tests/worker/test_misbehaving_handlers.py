"""Handlers that do what none should: the next job must not notice."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from taskharbor.core.states import Status
from tests.support.worker_rig import LIMIT, ended, enqueue, running_worker

if TYPE_CHECKING:
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


class _Explosive(Exception):
    def __str__(self) -> NoReturn:
        raise KeyboardInterrupt

    __repr__ = __str__


class _OddlyMade(Exception):
    def __init__(self, *, must: str, be: str) -> None:
        super().__init__()
        self.given = must, be


def _knot() -> list[Any]:
    knot: list[Any] = []
    knot.append(knot)
    return knot


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
    "knot": _knot,
    "deep": _deep,
    "not a number": lambda: float("nan"),
    "surrogate": lambda: "\udc80",
    "huge": lambda: "x" * 50_000_000,
}


def _tame(_job: Job) -> str:
    return "tame"


async def _tame_async(_job: Job) -> str:
    await asyncio.sleep(0)
    return "tame"


def _survive(driver: Driver, wild: dict[str, Any], **fields: Any) -> dict[str, Job]:
    """Run each wild handler and then tame ones, one at a time, and return what became of the former."""
    handlers = {"tame": _tame, "tame.async": _tame_async}
    jobs = {}
    with running_worker(driver, handlers, concurrency=1) as worker:
        for name, handler in wild.items():
            worker.register("wild", handler)
            jobs[name] = ended(driver, enqueue(driver, "wild", max_attempts=1, **fields))
            tame = [enqueue(driver, job_type) for job_type in ("tame", "tame.async")]
            assert {ended(driver, job_id).status for job_id in tame} == {Status.SUCCEEDED}, name
    return jobs


def _survives(driver: Driver, wild: Any, **fields: Any) -> Job:
    return _survive(driver, {"it": wild}, **fields)["it"]


def _raising(error: BaseException, *, is_async: bool) -> Any:
    def plain(_job: Job) -> None:
        raise error

    async def waiting(_job: Job) -> None:
        raise error

    return waiting if is_async else plain


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
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

        def encode(self, value: object, *, context: bytes) -> bytes:  # noqa: ARG002  a codec's signature
            if value == "wild":
                raise RuntimeError("I do not like it")
            return b"fine"

        def decode(self, data: bytes, *, context: bytes) -> Any:  # noqa: ARG002  as above
            return data

        def digest(self, value: object) -> bytes:
            return repr(value).encode()

    with running_worker(driver, {"wild": lambda _job: "wild", "tame": _tame}, concurrency=1, codec=Picky()):
        wild, tame = enqueue(driver, "wild"), enqueue(driver, "tame")

        assert ended(driver, wild).dead_reason == "its result cannot be stored: RuntimeError"
        assert ended(driver, tame).result == b"fine"


def test_a_thread_that_a_handler_leaves_behind_harms_nobody(driver: Driver) -> None:
    may_end = threading.Event()

    def leak(_job: Job) -> None:
        threading.Thread(target=may_end.wait, args=(LIMIT,), daemon=True).start()

    job = _survives(driver, leak)
    may_end.set()

    assert job.status is Status.SUCCEEDED


def test_a_task_that_a_handler_leaves_behind_and_that_tries_to_end_the_process_harms_nobody(driver: Driver) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def wild(_job: Job) -> None:
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        with pytest.raises(SystemExit):
            task.result()

    assert _survives(driver, wild).status is Status.SUCCEEDED


def test_a_handler_that_stops_the_event_loop_harms_nobody(driver: Driver) -> None:
    async def wild(_job: Job) -> None:
        asyncio.get_running_loop().stop()

    assert _survives(driver, wild).status is Status.SUCCEEDED


def test_a_handler_that_swallows_its_cancellation_ends_as_it_likes(driver: Driver) -> None:
    async def wild(_job: Job) -> str:
        try:
            await asyncio.sleep(LIMIT)
        except asyncio.CancelledError:
            return "I go on"
        return "nobody came"

    job = _survives(driver, wild, timeout=timedelta(milliseconds=50))

    assert (job.status, job.result) == (Status.SUCCEEDED, b'"I go on"')


def test_a_handler_whose_own_task_was_cancelled_has_failed(driver: Driver) -> None:
    async def wild(_job: Job) -> None:
        task = asyncio.create_task(asyncio.sleep(LIMIT))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    job = _survives(driver, wild)

    assert job.status is Status.DEAD
    assert "this worker did not cancel it" in (job.last_error or "")


def test_a_hook_that_raises_even_system_exit_changes_nothing(driver: Driver) -> None:
    def hook(_fact: object) -> None:
        raise SystemExit(3)

    with running_worker(driver, {"tame": _tame}, hooks=[hook]):
        for _ in range(3):
            assert ended(driver, enqueue(driver, "tame")).status is Status.SUCCEEDED
