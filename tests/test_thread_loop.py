"""Threads that call a function repeatedly."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.errors import SchemaOutOfDate
from taskharbor.runtime import ThreadRuntime
from taskharbor.thread_loop import EventPause
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    import pytest


def test_a_schema_that_is_out_of_date_is_logged_once_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskharbor.thread_loop.ERROR_PAUSE", timedelta(milliseconds=1))
    errors = iter([*5 * [SchemaOutOfDate("1", "3", "run 'taskharbor migrate up'")], None])

    def tick() -> timedelta | None:
        if (error := next(errors)) is not None:
            raise error
        return None

    assert ThreadRuntime(sync_threads=1).serve("janitor", tick).join(timedelta(seconds=LIMIT_SECONDS))

    [record] = [record for record in caplog.records if "janitor" in record.getMessage()]
    assert record.getMessage() == (
        "janitor loop failed; retrying: the store's schema is 1, this code needs 3: run 'taskharbor migrate up'"
    )
    assert record.exc_info is None


def test_a_pause_that_raises_is_logged_and_the_loop_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("taskharbor.thread_loop.ERROR_PAUSE", timedelta(milliseconds=1))
    pauses = iter([timedelta(0), timedelta(0), None])

    class BrokenPause(EventPause):
        def wait(self, _pause: timedelta) -> None:
            raise OSError("bad file descriptor")

    loop = ThreadRuntime(sync_threads=1).serve("source", lambda: next(pauses), BrokenPause())

    assert loop.join(timedelta(seconds=LIMIT_SECONDS))
    [record] = [record for record in caplog.records if "source" in record.getMessage()]
    assert record.getMessage() == "pause of the source loop failed; retrying"


def test_a_wake_during_a_tick_ends_the_next_pause() -> None:
    ticked, pauses = threading.Event(), iter([timedelta(seconds=10 * LIMIT_SECONDS), None])

    def tick() -> timedelta | None:
        assert ticked.wait(LIMIT_SECONDS)
        return next(pauses)

    loop = ThreadRuntime(sync_threads=1).serve("source", tick)
    loop.wake()
    ticked.set()

    assert loop.join(timedelta(seconds=LIMIT_SECONDS))
