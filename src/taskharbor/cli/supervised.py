"""The link of a worker process to its supervisor."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG: Final = logging.getLogger("taskharbor.worker")
READY: Final = b"ready "
BEAT: Final = b"beat"
BEAT_SECONDS: Final = 1.0


class SupervisorLink:
    """A socket that is connected to the supervisor. It ends when the supervisor ends, even if that is killed."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003  processes that handlers start must not hold it open
        self._socket = socket.socket(fileno=descriptor)
        self._socket.settimeout(0)

    def ready(self, text: str) -> None:
        """Report that the worker has started, and what it runs."""
        self._send(READY + " ".join(text.split()).encode())

    def serve(self, is_alive: Callable[[], bool], orphaned: Callable[[], None]) -> None:
        """Report every second that the worker *is_alive*, and call *orphaned* when the supervisor is gone."""
        thread = threading.Thread(
            target=self._run, args=(is_alive, orphaned), name="taskharbor-supervisor", daemon=True
        )
        thread.start()

    def _run(self, is_alive: Callable[[], bool], orphaned: Callable[[], None]) -> None:
        while True:
            readable, _, _ = select.select([self._socket], [], [], BEAT_SECONDS)
            if readable:  # the supervisor never sends anything: this is the end of the connection
                _LOG.error("the supervisor is gone; stopping")
                orphaned()
                return
            if is_alive():
                self._send(BEAT)

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # it is gone, which `_run` notices; or it does not read, and will see a later beat
            self._socket.send(message + b"\n")
