"""The end of the process of a worker that has stopped."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from taskharbor.cli import process_exit
from taskharbor.cli.process_exit import exit_soon
from tests.support.waiting import LIMIT_SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The codes with which the process would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(process_exit, "EXIT_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["taskharbor", "worker", "shop.py"])
    yield codes
    # While os._exit is replaced: a late thread would end the process of the tests.
    wait_until(lambda: "taskharbor-exit" not in {each.name for each in threading.enumerate()})


@contextmanager
def thread_named(name: str) -> Iterator[None]:
    """Run a thread that does not end by itself."""
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, args=(LIMIT_SECONDS,), name=name)
    thread.start()
    try:
        yield
    finally:
        may_end.set()
        thread.join()


def test_a_process_ends_with_its_code_and_names_the_threads_left(
    codes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with thread_named("asyncio_0"):
        exit_soon(13, ["worker", "shop.py"])
        wait_until(lambda: codes == [13])

    [line] = caplog.messages
    assert line.startswith("exiting although threads are still running: ")
    assert "asyncio_0" in line
    assert "taskharbor-" not in line


@pytest.mark.parametrize("words", [["worker", "other.py"], ["worker"], [], None])
def test_a_command_within_the_process_of_another_one_does_not_end_it(words: list[str] | None, codes: list[int]) -> None:
    before = {*threading.enumerate()}

    exit_soon(0, words)

    assert {*threading.enumerate()} <= before
    assert codes == []


def test_a_process_ends_although_its_log_is_locked(
    codes: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_exit, "LAST_WORDS_SECONDS", 0.05)
    caplog.handler.acquire()  # as a thread that never ends
    try:
        exit_soon(0, ["worker", "shop.py"])
        wait_until(lambda: codes == [0])
    finally:
        caplog.handler.release()
    wait_until(lambda: "taskharbor-last-words" not in {each.name for each in threading.enumerate()})
