"""The thread runtime: handler threads, the event loop and the clock."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import closing
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn

import pytest

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.janitor import ClockGuard
from taskharbor.runtime import MIN_TO_THREADS, START_BATCH, ThreadRuntime, run_coroutine, start_all
from taskharbor.testing.clock import ManualClock
from tests.support.async_observer import AsyncObservations

LIMIT_SECONDS = 10.0
THREADS = 8


def idle() -> None:
    """Add no more work."""


def test_sync_work_items_that_wait_for_each_other_run_concurrently() -> None:
    with closing(ThreadRuntime(sync_threads=THREADS)) as runtime:
        for _ in range(50):
            meeting = threading.Barrier(THREADS + 1)
            for _ in range(THREADS):
                runtime.run_sync(lambda meeting=meeting: meeting.wait(LIMIT_SECONDS), idle)  # type: ignore[misc]

            meeting.wait(LIMIT_SECONDS)


def test_blocked_sync_work_does_not_block_later_work() -> None:
    may_end, ended = threading.Event(), SimpleQueue[int]()
    with closing(ThreadRuntime(sync_threads=2)) as runtime:
        runtime.run_sync(lambda: ended.put(-1) if may_end.wait(LIMIT_SECONDS) else None, idle)
        for number in range(THREADS):
            runtime.run_sync(partial(ended.put, number), idle)

        assert [ended.get(timeout=LIMIT_SECONDS) for _ in range(THREADS)] == list(range(THREADS))

        may_end.set()
        assert ended.get(timeout=LIMIT_SECONDS) == -1


def test_work_whose_thread_could_not_start_does_not_run_later(monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleQueue[str]()

    def refuse(_thread: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with closing(ThreadRuntime(sync_threads=2)) as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                runtime.run_sync(lambda: done.put("refused"), idle)

        runtime.run_sync(lambda: done.put("run"), idle)

        assert done.get(timeout=LIMIT_SECONDS) == "run"


def test_coroutines_submitted_together_have_separate_contexts() -> None:
    color: ContextVar[str] = ContextVar("color", default="none")
    seen = SimpleQueue[tuple[str, str]]()

    async def paint(name: str) -> None:
        before = color.get()
        color.set(name)
        seen.put((name, before))

    with closing(ThreadRuntime(sync_threads=1)) as runtime:
        color.set("the caller's")
        runtime.run_async([(paint(name), name) for name in ("red", "green", "blue")], AsyncObservations())

        results = [seen.get(timeout=LIMIT_SECONDS) for _ in range(3)]

        assert results == [(name, "the caller's") for name in ("red", "green", "blue")]


def test_as_many_calls_of_to_thread_run_at_once_as_handlers() -> None:
    handlers = MIN_TO_THREADS + 8
    barrier, done = threading.Barrier(handlers, timeout=LIMIT_SECONDS), SimpleQueue[int]()

    async def call() -> None:
        done.put(await asyncio.to_thread(barrier.wait))

    with closing(ThreadRuntime(sync_threads=handlers)) as runtime:
        runtime.run_async([(call(), number) for number in range(handlers)], AsyncObservations())

        assert {done.get(timeout=LIMIT_SECONDS) for _ in range(handlers)} == set(range(handlers))


def test_coroutines_begin_in_the_cycle_in_which_they_are_started_and_as_tasks() -> None:
    seen: list[str] = []
    observed = AsyncObservations()

    async def begin(name: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(f"{name} begins")
        await asyncio.sleep(0)
        seen.append(f"{name} continues")

    loop = asyncio.new_event_loop()
    with closing(loop):
        loop.call_soon(start_all, loop, [(begin(name), name) for name in ("a", "b")], observed)
        loop.call_soon(seen.append, "next")
        loop.call_later(0, loop.call_soon, loop.stop)
        loop.run_forever()

    assert seen[:3] == ["a begins", "b begins", "next"]
    assert sorted(seen[3:]) == ["a continues", "b continues"]
    assert [*observed.cancels] == ["a", "b"]


def test_long_first_steps_let_the_event_loop_do_other_work_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, now = list[str](), itertools.count()
    monkeypatch.setattr("taskharbor.runtime.seconds_since_boot", lambda: next(now))

    async def work() -> None:
        seen.append("step")

    loop = asyncio.new_event_loop()
    with closing(loop):
        loop.call_soon(start_all, loop, [(work(), None) for _ in range(2 * START_BATCH)], AsyncObservations())
        loop.call_soon(seen.append, "other work")
        for _ in range(2):
            loop.call_soon(loop.stop)
            loop.run_forever()

    assert seen == ["step"] * START_BATCH + ["other work"] + ["step"] * START_BATCH


def test_a_coroutine_that_ends_in_its_first_step_is_not_observed() -> None:
    observed = AsyncObservations()

    async def work() -> None: ...

    loop = asyncio.new_event_loop()
    with closing(loop):
        loop.call_soon(start_all, loop, [(work(), "a")], observed)
        loop.call_soon(loop.stop)
        loop.run_forever()

    assert (observed.cancels, observed.unstarted_keys) == ({}, [])


async def cancel_others() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@pytest.mark.parametrize("factory", [None, asyncio.Task])
def test_a_coroutine_that_another_cancels_before_its_first_step_is_reported(factory: Any) -> None:
    observed, began = AsyncObservations(), list[str]()

    async def work() -> None:
        began.append("work")

    loop = asyncio.new_event_loop()
    if factory is not None:
        loop.set_task_factory(lambda loop, coroutine, **_: factory(coroutine, loop=loop))
    with closing(loop):
        loop.call_soon(start_all, loop, [(cancel_others(), "a"), (work(), "b"), (work(), "c")], observed)
        for _ in range(3):  # tasks of a factory begin in the second cycle, and are reported in the third
            loop.call_soon(loop.stop)
            loop.run_forever()

    assert (began, observed.unstarted_keys) == ([], ["b", "c"])


def test_the_callbacks_of_a_first_step_that_a_task_factory_runs_are_handles_of_the_loop() -> None:
    handles = list[Any]()

    def create_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **_: Any) -> asyncio.Task[None]:
        handles.append(loop.call_soon(idle))  # as a handler may, if an eager factory runs it
        return asyncio.Task(coroutine, loop=loop)

    async def work() -> None: ...

    loop = asyncio.new_event_loop()
    loop.set_task_factory(create_task)  # type: ignore[arg-type]
    with closing(loop):
        loop.call_soon(start_all, loop, [(work(), "a")], AsyncObservations())
        loop.call_later(0, loop.call_soon, loop.stop)
        loop.run_forever()

    assert [type(each) for each in handles] == [asyncio.Handle]


def test_a_suspended_coroutine_is_cancelled_from_another_thread() -> None:
    observed, ended = AsyncObservations(), SimpleQueue[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.put("cancelled")
            raise

    with closing(ThreadRuntime(sync_threads=1)) as runtime:
        runtime.run_async([(work(), "a")], observed)
        assert observed.is_suspended.wait(LIMIT_SECONDS)
        observed.cancels["a"]()

        assert ended.get(timeout=LIMIT_SECONDS) == "cancelled"
    assert observed.unstarted_keys == []


def test_work_whose_waiter_gave_up_while_the_loop_was_busy_does_not_begin() -> None:
    release, began = threading.Event(), list[str]()

    async def block() -> None:
        release.wait(LIMIT_SECONDS)

    async def work() -> None:
        began.append("work")

    async def answer() -> str:
        return "after it"

    with closing(ThreadRuntime(sync_threads=1)) as runtime:
        runtime.run_async([(block(), "a")], AsyncObservations())
        with pytest.raises(TimeoutError):
            run_coroutine(runtime, work(), timeout=timedelta(milliseconds=1))
        release.set()

        assert run_coroutine(runtime, answer(), timeout=timedelta(seconds=LIMIT_SECONDS)) == "after it"
    assert began == []


def test_a_first_step_that_ends_the_loop_does_not_keep_the_others_from_starting() -> None:
    began = SimpleQueue[str]()

    async def leave() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(asyncio.Task.exception)  # else asyncio logs it in another test, when the task is freed
        raise SystemExit(3)

    async def work() -> None:
        began.put("work")

    works = [work(), leave(), *(work() for _ in range(START_BATCH))]
    with closing(ThreadRuntime(sync_threads=1)) as runtime:
        runtime.run_async([(each, None) for each in works], AsyncObservations())

        assert [began.get(timeout=LIMIT_SECONDS) for _ in range(len(works) - 1)] == ["work"] * (len(works) - 1)


def test_run_coroutine_raises_the_error_of_the_coroutine() -> None:
    async def fail() -> Any:
        raise LookupError("lost")

    with closing(ThreadRuntime(sync_threads=1)) as runtime, pytest.raises(LookupError, match="lost"):
        run_coroutine(runtime, fail(), timeout=timedelta(seconds=LIMIT_SECONDS))


def test_the_runtime_clock_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    if boot is None:
        pytest.skip("this system has no such clock")
    suspended, gettime, jumps = [0.0], time.clock_gettime, list[str]()
    monkeypatch.setattr(time, "clock_gettime", lambda clock: gettime(clock) + suspended[0] * (clock == boot))
    clock = ManualClock()
    driver = MemoryDriver(clock=clock)
    monkeypatch.setattr(driver.maintenance, "report_clock_jump", lambda **_: jumps.append("jumped"))
    with closing(ThreadRuntime(sync_threads=1)) as runtime:
        guard = ClockGuard(runtime, driver, lease=timedelta(seconds=30))
        guard.tick()

        suspended[0] = 3600.0
        clock.advance(timedelta(hours=1))
        guard.tick()

    assert jumps == []
    assert guard.may_reclaim()


def test_a_task_factory_that_raises_leaves_no_coroutine_without_a_report(caplog: pytest.LogCaptureFixture) -> None:
    observed = AsyncObservations()
    loop = asyncio.new_event_loop()
    loop.set_task_factory(lambda _loop, _work: 1 // 0)  # type: ignore[arg-type]

    async def work() -> None:
        pass

    with closing(loop):
        loop.call_soon(start_all, loop, [(work(), name) for name in ("a", "b")], observed)
        loop.call_soon(loop.stop)
        loop.run_forever()

    assert observed.unstarted_keys == ["a", "b"]
    assert "the event loop cannot create a task" in caplog.text
