"""Connections of the API: how long a client may take for its request, and how many there may be.

Uvicorn closes a connection that is idle between two requests. It has no deadline for a request that was begun, and
none for a client that does not read its answer: without one, half requests that cost nothing fill the process's
open files, and no other client gets in.
"""

from __future__ import annotations

import logging
import resource
import time
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

_LOG: Final = logging.getLogger("taskharbor.api")

HEADER_SECONDS: Final = 10.0
"""From a connection's begin, or a request's first byte, to the end of the request's headers."""
BODY_SECONDS: Final = 30.0
"""From the end of the headers to the end of the body."""
WRITE_SECONDS: Final = 30.0
"""How long a client may read nothing of an answer that waits for it."""
MAX_CONNECTIONS: Final = 4_096
RESERVED_FILES: Final = 64
"""Open files that are left for the store, the log and the rest of the process."""
LOG_EVERY_SECONDS: Final = 10.0
_REQUEST_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class RequestPhase(Enum):
    """What a connection waits for."""

    HEADERS = "headers"
    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"


class ConnectionLimits:
    """The open connections of a server, at most *most* of them.

    If there are more, the oldest one that has sent only a part of its headers is closed, or else the one that has been
    idle for longest: what is being answered is never closed for another, and a newcomer is refused then.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._phases: dict[BoundedProtocol, RequestPhase] = {}
        self._unsettled: dict[RequestPhase, dict[BoundedProtocol, None]] = {
            RequestPhase.HEADERS: {},
            RequestPhase.IDLE: {},
        }  # oldest first
        self._log_at = 0.0

    def __len__(self) -> int:
        return len(self._phases)

    def admit(self, new: BoundedProtocol) -> bool:
        """Count *new*, if need be in place of another; False where it must be closed."""
        if len(self) >= self.most and not self._close_one():
            self._warn("refused a connection: all %d are being answered", self.most)
            return False
        self.note(new, RequestPhase.HEADERS)
        return True

    def note(self, connection: BoundedProtocol, phase: RequestPhase) -> None:
        """Remember what *connection* waits for."""
        self.forget(connection)
        self._phases[connection] = phase
        if phase in self._unsettled:
            self._unsettled[phase][connection] = None

    def forget(self, connection: BoundedProtocol) -> None:
        phase = self._phases.pop(connection, None)
        if phase in self._unsettled:
            self._unsettled[phase].pop(connection, None)

    def _close_one(self) -> bool:
        for phase, connections in self._unsettled.items():
            for oldest in connections:
                self._warn("there are %d connections: closed one that waited for its %s", self.most, phase.value)
                self.forget(oldest)
                oldest.transport.abort()
                return True
        return False

    def _warn(self, text: str, *facts: object) -> None:
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_EVERY_SECONDS
            _LOG.warning(text, *facts)


class BoundedProtocol(H11Protocol):
    """One connection, with a deadline for each part of a request that its client is to send or read."""

    def __init__(self, *args: Any, bounds: ConnectionLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bounds = bounds
        self._waits_for: tuple[RequestPhase, object] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._bounds.admit(self):
            self._follow()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._bounds.forget(self)
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _follow(self) -> None:
        """Begin the deadline of what the connection waits for now; one that runs is not put off by single bytes."""
        if self.transport.is_closing():
            return
        phase = self._phase()
        if self._waits_for == (phase, self.cycle):
            return
        self._waits_for = (phase, self.cycle)
        self._bounds.note(self, phase)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is RequestPhase.HEADERS:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._end_headers)
        elif phase is RequestPhase.BODY:
            self._deadline = self.loop.call_later(BODY_SECONDS, self.transport.abort)

    def _phase(self) -> RequestPhase:
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            return RequestPhase.BODY
        if state is not h11.IDLE:
            return RequestPhase.ANSWER
        last: object = self.cycle  # None before the first request, whatever uvicorn's annotation says
        has_begun = last is None or bool(self.conn.trailing_data[0])
        return RequestPhase.HEADERS if has_begun else RequestPhase.IDLE

    def _end_headers(self) -> None:
        self.transport.write(_REQUEST_TIMEOUT)
        self.transport.close()


def max_connections() -> int:
    """Return how many connections this process has open files for; as many of them are asked for as may be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(MAX_CONNECTIONS, soft - RESERVED_FILES))
