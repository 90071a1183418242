"""Lifespans: values that handlers share while a worker runs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor import Context, Harbor
from taskharbor.core.errors import UsageError
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def test_all_handlers_share_the_value_that_a_lifespan_yields(quick: Harbor) -> None:
    seen: list[object] = []

    @quick.lifespan
    def resources() -> Iterator[dict[str, int]]:
        seen.append("set up")
        yield {"answer": 42}
        seen.append("torn down")

    @quick.task
    def sync(ctx: Context) -> None:
        seen.append(ctx.state["answer"])

    @quick.task
    async def later(ctx: Context) -> None:
        seen.append(ctx.state["answer"])

    sync.enqueue()
    later.enqueue()
    quick.worker().drain()

    assert seen == ["set up", 42, 42, "torn down"]


def test_an_async_lifespan_lives_on_the_loop_of_the_async_handlers(quick: Harbor) -> None:
    loops = []

    @quick.lifespan
    async def resources() -> AsyncIterator[str]:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        yield "ready"
        loops.append(asyncio.get_running_loop())

    @quick.task
    async def later(ctx: Context) -> str:
        loops.append(asyncio.get_running_loop())
        return str(ctx.state)

    handle = later.enqueue()
    quick.worker().drain()

    assert handle.result() == "ready"
    assert len(loops) == 3
    assert len(set(loops)) == 1


def test_a_lifespan_that_fails_to_begin_keeps_the_worker_from_starting(quick: Harbor) -> None:
    @quick.lifespan
    def resources() -> Iterator[None]:
        if quick.tasks:
            raise ConnectionError("no such host")
        yield

    @quick.task
    def greet() -> None: ...

    handle = greet.enqueue()

    with pytest.raises(ConnectionError, match="no such host"):
        quick.worker().start()
    assert handle.job().attempt_count == 0


def test_an_async_lifespan_that_fails_or_hangs_leaves_no_thread_behind(
    quick: Harbor, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn_down = []

    @quick.lifespan
    async def resources() -> AsyncIterator[None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            torn_down.append("all")

    monkeypatch.setattr("taskharbor.worker.lifespan.LIFESPAN_TIMEOUT", timedelta(milliseconds=50))
    before = set(threading.enumerate())

    with pytest.raises(TimeoutError, match="did not finish within"):
        quick.worker().start()

    assert torn_down == ["all"]
    # Not by their number: threads of earlier tests may end meanwhile.
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_a_lifespan_that_fails_after_its_yield_is_only_logged(quick: Harbor, caplog: pytest.LogCaptureFixture) -> None:
    @quick.lifespan
    def resources() -> Iterator[int]:
        yield 7
        raise ConnectionError("already gone")

    @quick.task
    def greet(ctx: Context) -> int:
        return int(ctx.state)

    handle = greet.enqueue()
    with caplog.at_level(logging.ERROR):
        quick.worker().drain()

    assert handle.result() == 7
    assert "failed after its yield" in caplog.text


def test_a_lifespan_that_awaits_what_it_has_cancelled_is_only_logged(
    quick: Harbor, caplog: pytest.LogCaptureFixture
) -> None:
    @quick.lifespan
    async def resources() -> AsyncIterator[None]:
        background = asyncio.create_task(asyncio.Event().wait())
        yield
        background.cancel()
        await background

    with caplog.at_level(logging.ERROR):
        quick.worker().drain()

    assert caplog.messages == ["lifespan resources failed after its yield"]


def test_a_lifespan_that_exits_after_its_yield_is_only_logged(quick: Harbor, caplog: pytest.LogCaptureFixture) -> None:
    @quick.lifespan
    def resources() -> Iterator[None]:
        yield
        sys.exit(3)

    with caplog.at_level(logging.ERROR):
        quick.worker().drain()

    assert caplog.messages == ["lifespan resources failed after its yield"]


def test_a_lifespan_that_hangs_after_its_yield_is_left_behind(
    quick: Harbor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    @quick.lifespan
    def resources() -> Iterator[None]:
        yield
        assert may_end.wait(LIMIT_SECONDS)

    monkeypatch.setattr("taskharbor.worker.lifespan.LIFESPAN_TIMEOUT", timedelta(milliseconds=50))
    stopping = threading.Thread(target=quick.worker().drain, daemon=True)
    with caplog.at_level(logging.ERROR):
        stopping.start()
        wait_until(lambda: not stopping.is_alive())
    may_end.set()

    assert caplog.messages == ["lifespan resources did not end within 50 ms of its yield"]


def test_a_lifespan_that_does_not_yield_once_or_comes_second_is_refused(quick: Harbor) -> None:
    @quick.lifespan
    def nothing() -> Iterator[None]:
        yield from ()

    with pytest.raises(UsageError, match="lifespan is nothing: it must yield once"):
        quick.worker().start()
    with pytest.raises(UsageError, match="a harbor has one"):
        quick.lifespan(nothing)


def test_a_lifespan_that_is_no_generator_is_refused_where_it_is_defined(quick: Harbor) -> None:
    @contextmanager
    def managed() -> Iterator[int]:
        yield 7

    def needy(app: object) -> Iterator[object]:
        yield app

    with pytest.raises(
        UsageError, match=r"lifespan is managed: must be a generator function .* without @contextmanager"
    ):
        quick.lifespan(managed)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="lifespan is needy: must have no required parameters"):
        quick.lifespan(needy)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="lifespan is simple: must be a generator function"):

        @quick.lifespan  # type: ignore[type-var]
        def simple() -> int:
            return 7
