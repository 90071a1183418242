"""What a child sends to its worker while several threads log, or while a signal arrives."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor import Harbor
from taskharbor.isolated.child import AttemptGuard, ChildServer
from taskharbor.isolated.child_log import ForwardHandler
from taskharbor.isolated.inbox import Inbox
from taskharbor.worker.context import AttemptStopped
from taskharbor.worker.execution import StopReason
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.isolation.job_queue import JobQueue
from taskharbor.worker.isolation.wire import Wire
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.isolated.child import ChildExecution

RESULT: Final = b"y" * 8_000_000
"""Far more than a socket holds, so that it is sent in many parts."""


class StoppedExecution:
    """An attempt that the worker has asked to stop."""

    is_asked_to_stop = True

    def read_stop(self) -> StopReason:
        return StopReason.TIMEOUT


class SignalsWhenFormatted:
    """An argument of a log line during whose formatting the signal of a stop arrives."""

    def __str__(self) -> str:
        signal.raise_signal(signal.SIGTERM)
        return "formatted"


def in_thread(call: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=call, args=arguments, daemon=True).start()


@pytest.fixture
def guard() -> Iterator[AttemptGuard]:
    """Return the guard of an attempt that is asked to stop: SIGTERM interrupts its handler."""
    before = signal.getsignal(signal.SIGTERM)
    guard = AttemptGuard()
    guard.begin(cast("ChildExecution", StoppedExecution()), 0)
    guard._is_interruptible = True  # noqa: SLF001  as in its handler
    yield guard
    signal.signal(signal.SIGTERM, before)


def test_a_large_result_is_whole_while_threads_log() -> None:
    link, theirs = socket.socketpair()
    link.settimeout(LIMIT_SECONDS)
    with link, theirs, closing(JobQueue()) as jobs, Path(os.devnull).open("wb") as output:
        inbox = Inbox(Wire(theirs), jobs.exit, output.fileno())
        send = ChildServer(inbox, Harbor(), HandlerRegistry(), AttemptGuard()).send
        in_thread(send, {"ended": None}, RESULT)
        select.select([link], [], [])  # it is being sent, and waits until some of it is read
        for number in range(8):
            in_thread(send, {"log": number})

        worker = Wire(link)
        assert worker.receive() == ({"ended": None}, RESULT)
        assert sorted(frame[0]["log"] for _ in range(8) if (frame := worker.receive())) == [*range(8)]


def test_a_handler_that_is_stopped_while_it_logs_is_interrupted(guard: AttemptGuard) -> None:
    sent: list[Any] = []
    handler = ForwardHandler(sent.append)
    record = logging.makeLogRecord({"msg": "%s", "args": (SignalsWhenFormatted(),)})

    with pytest.raises(AttemptStopped):
        handler.handle(record)

    assert guard is not None
    assert not sent


def test_a_handler_is_interrupted_while_another_thread_logs(guard: AttemptGuard) -> None:
    is_logging, may_end = threading.Event(), threading.Event()

    def log() -> None:
        with guard.uninterrupted():
            is_logging.set()
            may_end.wait()

    in_thread(log)
    is_logging.wait()

    with pytest.raises(AttemptStopped):
        signal.raise_signal(signal.SIGTERM)

    may_end.set()
