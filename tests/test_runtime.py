"""The thread runtime: handler threads, the event loop and the clock."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from contextvars import ContextVar
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NoReturn

import pytest

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.janitor import ClockGuard
from taskharbor.runtime import ThreadRuntime, run_coroutine
from taskharbor.testing.clock import ManualClock

LIMIT_SECONDS = 10.0
THREADS = 8


def test_sync_work_items_that_wait_for_each_other_run_concurrently() -> None:
    with closing(ThreadRuntime(sync_threads=THREADS)) as runtime:
        for _ in range(50):
            meeting = threading.Barrier(THREADS + 1)
            for _ in range(THREADS):
                runtime.run_sync(lambda meeting=meeting: meeting.wait(LIMIT_SECONDS))  # type: ignore[misc]

            meeting.wait(LIMIT_SECONDS)


def test_blocked_sync_work_does_not_block_later_work() -> None:
    may_end, ended = threading.Event(), SimpleQueue[int]()
    with closing(ThreadRuntime(sync_threads=2)) as runtime:
        runtime.run_sync(lambda: ended.put(-1) if may_end.wait(LIMIT_SECONDS) else None)
        for number in range(THREADS):
            runtime.run_sync(lambda number=number: ended.put(number))  # type: ignore[misc]

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
                runtime.run_sync(lambda: done.put("refused"))

        runtime.run_sync(lambda: done.put("run"))

        assert done.get(timeout=LIMIT_SECONDS) == "run"


def test_coroutines_submitted_together_have_separate_contexts() -> None:
    color: ContextVar[str] = ContextVar("color", default="none")
    seen = SimpleQueue[tuple[str, str]]()

    async def paint(name: str) -> None:
        before = color.get()
        color.set(name)
        seen.put((name, before))

    def never() -> None:
        raise AssertionError

    with closing(ThreadRuntime(sync_threads=1)) as runtime:
        color.set("the caller's")
        runtime.run_async([(paint(name), never) for name in ("red", "green", "blue")])

        results = [seen.get(timeout=LIMIT_SECONDS) for _ in range(3)]

        assert results == [(name, "the caller's") for name in ("red", "green", "blue")]


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
