"""Middleware around handlers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.core.outcome import DeadLetter
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from tests.support.worker_rig import drained, enqueue, stored, worker_for

if TYPE_CHECKING:
    from taskharbor import Harbor
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.worker import Context


def _sync(name: str, log: list[Any]) -> Any:
    def middleware(job: Job, ctx: Context, call_next: Any) -> Any:
        log.append((f"{name} in", threading.get_ident()))
        result = call_next(job, ctx)
        log.append((f"{name} out", threading.get_ident()))
        return result

    return middleware


def _async(name: str, log: list[Any]) -> Any:
    async def middleware(job: Job, ctx: Context, call_next: Any) -> Any:
        log.append((f"{name} in", threading.get_ident()))
        result = await call_next(job, ctx)
        log.append((f"{name} out", threading.get_ident()))
        return result

    return middleware


class _AsyncObject:
    async def __call__(self, job: Job, ctx: Context, call_next: Any) -> Any:
        return await call_next(job, ctx)


async def _async_handler(_job: Job) -> None: ...


def test_the_first_middleware_is_the_outermost(driver: Driver) -> None:
    log: list[Any] = []
    enqueue(driver, "greet")

    drained(driver, {"greet": lambda _job: None}, middleware=[_sync("first", log), _sync("second", log)])

    assert [step for step, _ in log] == ["first in", "second in", "second out", "first out"]


def test_a_middleware_may_change_the_arguments_of_every_call(quick: Harbor) -> None:
    names: list[str] = []

    def in_capitals(job: Job, ctx: Context, call_next: Any) -> Any:
        job.data["name"] = job.data["name"].upper()
        return call_next(job, ctx)

    @quick.task
    def greet(name: str) -> None:
        names.append(name)

    quick.wrap(in_capitals)
    for _ in range(5):
        greet.enqueue("ada")
    quick.worker().drain()

    assert names == 5 * ["ADA"]


def test_the_middleware_of_a_harbor_is_outside_of_that_of_its_worker(quick: Harbor) -> None:
    log: list[Any] = []

    @quick.task
    def greet() -> None: ...

    quick.wrap(_sync("harbor", log))
    greet.enqueue()
    quick.worker(middleware=[_sync("worker", log)]).drain()

    assert [step for step, _ in log] == ["harbor in", "worker in", "worker out", "harbor out"]


def test_sync_middleware_runs_in_the_thread_of_its_handler(driver: Driver) -> None:
    log: list[Any] = []
    enqueue(driver, "greet")

    drained(driver, {"greet": lambda _: log.append(("handler", threading.get_ident()))}, middleware=[_sync("m", log)])

    assert [step for step, _ in log] == ["m in", "handler", "m out"]
    assert len({thread for _, thread in log} - {threading.get_ident()}) == 1


def test_async_middleware_is_awaited_around_its_handler(driver: Driver) -> None:
    log: list[Any] = []

    async def greet(_job: Job) -> None:
        log.append(("handler", threading.get_ident()))

    enqueue(driver, "greet")

    drained(driver, {"greet": greet}, middleware=[_async("m", log)])

    assert [step for step, _ in log] == ["m in", "handler", "m out"]
    assert len({thread for _, thread in log}) == 1


def test_a_middleware_pair_supports_sync_and_async_handlers(driver: Driver) -> None:
    log: list[Any] = []
    pair = (_sync("sync", log), _async("async", log))
    enqueue(driver, "one")
    enqueue(driver, "two")

    drained(driver, {"one": lambda _job: None, "two": _async_handler}, middleware=[pair], concurrency=1)

    assert sorted(step for step, _ in log) == ["async in", "async out", "sync in", "sync out"]


@pytest.mark.parametrize(
    ("handler", "middleware"),
    [(_async_handler, _sync("m", [])), (print, _async("m", [])), (print, _AsyncObject())],
    ids=["sync around async", "async around sync", "async object around sync"],
)
def test_middleware_of_the_wrong_kind_is_refused_at_registration(handler: Any, middleware: Any) -> None:
    with pytest.raises(UsageError, match=r"pass a pair \(sync, async\) to support both"):
        worker_for(MemoryDriver(), {"greet": handler}, middleware=[middleware])


def test_an_object_may_be_async_middleware(driver: Driver) -> None:
    job_id = enqueue(driver, "greet")

    drained(driver, {"greet": _async_handler}, middleware=[_AsyncObject()])

    assert stored(driver, job_id).status is Status.SUCCEEDED


def test_what_middleware_raises_ends_the_attempt_as_if_the_handler_had_raised_it(driver: Driver) -> None:
    def refuse(_job: Job, _ctx: Context, _call_next: Any) -> None:
        raise DeadLetter("not on my watch")

    ran: list[Job] = []
    job_id = enqueue(driver, "greet")

    drained(driver, {"greet": ran.append}, middleware=[refuse])

    assert ran == []
    assert stored(driver, job_id).dead_reason == "not on my watch"


def test_middleware_may_change_what_is_returned(driver: Driver) -> None:
    def shout(job: Job, ctx: Context, call_next: Any) -> Any:
        return call_next(job, ctx).upper()

    job_id = enqueue(driver, "greet")

    drained(driver, {"greet": lambda _job: "hello"}, middleware=[shout])

    assert stored(driver, job_id).result == b'"HELLO"'
