"""The threads of sync handlers: which of them are woken, and who continues if one blocks."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from functools import partial
from queue import SimpleQueue

import pytest

from taskharbor import handler_threads
from taskharbor.handler_threads import METERED_ITEMS, HandlerThreads
from tests.support.waiting import wait_until

LIMIT_SECONDS = 10.0
THREADS = 8


def idle() -> None:
    """Add no more work."""


def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all items seem brief."""
    monkeypatch.setattr(handler_threads, "_usage", lambda: (0, 0.0))


def run_all(pool: HandlerThreads, count: int) -> set[int]:
    """Run *count* items that do nothing, and return the threads that ran them."""
    seen = SimpleQueue[int]()
    for _ in range(count):
        pool.run(lambda: seen.put(threading.get_ident()), idle)
    return {seen.get(timeout=LIMIT_SECONDS) for _ in range(count)}


def until_brief(pool: HandlerThreads) -> None:
    """Run items in *pool*, of which all threads exist, until it takes them for brief."""
    meeting = threading.Barrier(THREADS + 1)
    for _ in range(THREADS):
        pool.run(partial(_meet, meeting), idle)
    meeting.wait(LIMIT_SECONDS)
    run_all(pool, THREADS * METERED_ITEMS)


def test_brief_items_are_run_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    no_waits(monkeypatch)
    with closing(HandlerThreads(max_threads=THREADS)) as pool:
        until_brief(pool)
        monkeypatch.setattr(handler_threads, "WATCH_SECONDS", LIMIT_SECONDS)  # no thread takes over
        may_begin, seen = threading.Event(), SimpleQueue[int]()

        pool.run(partial(_wait_for, may_begin), idle)
        for _ in range(5 * METERED_ITEMS):
            pool.run(lambda: seen.put(threading.get_ident()), idle)
        may_begin.set()

        assert len({seen.get(timeout=LIMIT_SECONDS) for _ in range(5 * METERED_ITEMS)}) == 1


def test_brief_items_wake_no_thread_while_one_runs_them_and_one_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, woken = HandlerThreads(max_threads=0), SimpleQueue[bool]()
    state = {"_is_brief": True, "_is_watched": True, "_active": 1, "_idle": THREADS - 2, "_wakeups": woken}
    for name, value in state.items():
        monkeypatch.setattr(pool, name, value)

    for _ in range(METERED_ITEMS):
        pool.run(idle, idle)

    assert woken.empty()


def test_a_blocked_item_among_brief_ones_does_not_block_later_items(monkeypatch: pytest.MonkeyPatch) -> None:
    no_waits(monkeypatch)
    with closing(HandlerThreads(max_threads=THREADS)) as pool:
        until_brief(pool)
        may_end, ended = threading.Event(), SimpleQueue[int]()

        for number in range(THREADS - 1):  # each blocks the thread that continues
            pool.run(partial(_wait_for, may_end), idle)
            pool.run(partial(ended.put, number), idle)

        assert sorted(ended.get(timeout=LIMIT_SECONDS) for _ in range(THREADS - 1)) == list(range(THREADS - 1))
        may_end.set()


def test_more_work_is_added_while_the_last_of_brief_items_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    no_waits(monkeypatch)
    with closing(HandlerThreads(max_threads=THREADS)) as pool:
        until_brief(pool)
        monkeypatch.setattr(handler_threads, "WATCH_SECONDS", 0.1)  # one thread runs both items
        may_end, is_blocked, asked = threading.Event(), threading.Event(), SimpleQueue[None]()

        def block() -> None:
            is_blocked.set()
            _wait_for(may_end)

        def add_more() -> None:
            if is_blocked.is_set():
                asked.put(None)

        def add_both() -> None:
            for item in (idle, block):
                pool.run(item, add_more)

        pool.run(add_both, add_more)

        asked.get(timeout=LIMIT_SECONDS / 2)  # before the item ends by itself
        may_end.set()


def test_items_that_wait_run_concurrently_after_brief_ones() -> None:
    with closing(HandlerThreads(max_threads=THREADS)) as pool:
        until_brief(pool)
        for _ in range(20):
            meeting = threading.Barrier(THREADS + 1)
            for _ in range(THREADS):
                pool.run(partial(_meet, meeting), idle)

            meeting.wait(LIMIT_SECONDS)


@pytest.mark.parametrize(
    ("waits", "milliseconds", "are_brief"), [(0, 1.0, True), (7, 3.1, True), (8, 1.0, False), (0, 3.3, False)]
)
def test_32_items_are_brief_if_they_wait_seldom_and_use_little_cpu(
    waits: int, milliseconds: float, *, are_brief: bool
) -> None:
    assert handler_threads._are_brief((5, 1.0), (5 + waits, 1.0 + milliseconds / 1_000)) is are_brief  # noqa: SLF001


def _wait_for(event: threading.Event) -> None:
    event.wait(LIMIT_SECONDS)


def _meet(meeting: threading.Barrier) -> None:
    meeting.wait(LIMIT_SECONDS)


@pytest.mark.parametrize("is_brief", [True, False])
def test_a_thread_without_work_adds_more_before_it_pauses(monkeypatch: pytest.MonkeyPatch, *, is_brief: bool) -> None:
    monkeypatch.setattr(handler_threads, "_are_brief", lambda *_: is_brief)
    left, ended = [*range(10 * METERED_ITEMS)], SimpleQueue[int]()

    def add_more() -> None:
        for _ in range(min(2, len(left))):
            pool.run(partial(ended.put, left.pop()), add_more)

    with closing(HandlerThreads(max_threads=1)) as pool:
        pool.run(partial(ended.put, -1), add_more)

        assert sorted(ended.get(timeout=LIMIT_SECONDS) for _ in range(10 * METERED_ITEMS + 1)) == [
            *range(-1, 10 * METERED_ITEMS)
        ]


def test_an_error_of_an_item_or_of_adding_more_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    ended = SimpleQueue[str]()

    def fail() -> None:
        raise SystemExit

    with closing(HandlerThreads(max_threads=1)) as pool:
        pool.run(fail, fail)
        pool.run(partial(ended.put, "next"), idle)

        assert ended.get(timeout=LIMIT_SECONDS) == "next"
    assert "internal error in a handler thread" in caplog.text


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork beside threads
def test_a_copy_of_the_process_that_an_item_forks_runs_no_items() -> None:
    copies, (readable, writable) = SimpleQueue[int](), os.pipe()

    def fork() -> None:
        if copy := os.fork():
            copies.put(copy)

    def note() -> None:
        os.write(writable, b"x")

    with closing(HandlerThreads(max_threads=1)) as pool:
        may_begin = threading.Event()
        pool.run(partial(_wait_for, may_begin), idle)
        pool.run(fork, idle)
        pool.run(note, idle)
        may_begin.set()
        copy = copies.get(timeout=LIMIT_SECONDS)
        try:
            wait_until(
                lambda: os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, limit=LIMIT_SECONDS
            )
        finally:
            os.kill(copy, signal.SIGKILL)  # if it has not ended
            _, status = os.waitpid(copy, 0)
        run_all(pool, 1)
        os.close(writable)

    assert os.waitstatus_to_exitcode(status) == 0
    assert os.read(readable, 2) == b"x"
    os.close(readable)
