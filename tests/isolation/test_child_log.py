"""What a child sends to its worker while several threads log."""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskharbor import Harbor
from taskharbor.isolated.child import AttemptGuard, ChildServer
from taskharbor.isolated.inbox import Inbox
from taskharbor.worker.handlers import HandlerRegistry
from taskharbor.worker.isolation.job_queue import JobQueue
from taskharbor.worker.isolation.wire import Wire
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

RESULT: Final = b"y" * 8_000_000
"""Far more than a socket holds, so that it is sent in many parts."""


def in_thread(call: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=call, args=arguments, daemon=True).start()


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
