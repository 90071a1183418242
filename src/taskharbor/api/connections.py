"""Connection limits of the API server: deadlines for each part of a request, and a maximum number of connections.

Uvicorn closes a connection that is idle between two requests. It has no deadline for a request that has started, and
none for a client that does not read its response. Without such deadlines, incomplete requests could use up the
process's file descriptors, and other clients could not connect.
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

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

_LOG: Final = logging.getLogger("taskharbor.api")

HEADER_SECONDS: Final = 10.0
"""From the start of the connection, or the first byte of a request, to the end of the request's headers."""
BODY_SECONDS: Final = 30.0
"""From the end of the headers to the end of the body."""
WRITE_SECONDS: Final = 30.0
"""How long a client may leave a response unread."""
MAX_CONNECTIONS: Final = 4_096
RESERVED_FILES: Final = 64
"""File descriptors reserved for the store, the log and the rest of the process."""
LOG_EVERY_SECONDS: Final = 10.0
_REQUEST_TIMEOUT: Final = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class RequestPhase(Enum):
    """What a connection is waiting for."""

    HEADERS = "headers"
    BODY = "body"
    ANSWER = "answer"
    IDLE = "idle"


class ConnectionLimits:
    """The open connections of a server, at most *max_open* of them.

    If there are more, the oldest connection with incomplete headers is closed, or else the one that has been idle
    longest. A connection whose request is being processed is never closed for another; the new one is refused instead.
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._phases: dict[BoundedProtocol, RequestPhase] = {}
        self._closable: dict[RequestPhase, dict[BoundedProtocol, None]] = {
            RequestPhase.HEADERS: {},
            RequestPhase.IDLE: {},
        }  # oldest first
        self._log_at = 0.0

    def __len__(self) -> int:
        return len(self._phases)

    def admit(self, new: BoundedProtocol) -> bool:
        """Count *new*, closing another connection if necessary; return False if *new* must be closed."""
        if len(self) >= self.max_open and not self._close_one():
            self._warn("connection refused: all %d connections are processing requests", self.max_open)
            return False
        self.note(new, RequestPhase.HEADERS)
        return True

    def note(self, connection: BoundedProtocol, phase: RequestPhase) -> None:
        """Record the phase of *connection*."""
        self.forget(connection)
        self._phases[connection] = phase
        if phase in self._closable:
            self._closable[phase][connection] = None

    def forget(self, connection: BoundedProtocol) -> None:
        phase = self._phases.pop(connection, None)
        if phase in self._closable:
            self._closable[phase].pop(connection, None)

    def _close_one(self) -> bool:
        for phase, connections in self._closable.items():
            for oldest in connections:
                self._warn("%d connections are open; closed one in phase %r", self.max_open, phase.value)
                self.forget(oldest)
                oldest.transport.abort()
                return True
        return False

    def _warn(self, text: str, *args: object) -> None:
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_EVERY_SECONDS
            _LOG.warning(text, *args)


class BoundedProtocol(H11Protocol):
    """One connection, with a deadline for each part of a request that its client must send or read."""

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

    def send_400_response(self, msg: str) -> None:
        """Reject a request whose body is malformed, or what follows it. Its own response, if any, ends here.

        Uvicorn's version fails if that response has begun, and makes it fail if it begins later.
        """
        cycle: RequestResponseCycle | None = self.cycle
        may_have_body = True
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            may_have_body = cycle.scope["method"] != "HEAD"
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE} and may_have_body:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _follow(self) -> None:
        """Start the deadline of the current phase; more bytes in the same phase do not extend it."""
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
        last: object = self.cycle  # None before the first request, despite uvicorn's annotation
        has_begun = last is None or bool(self.conn.trailing_data[0])
        return RequestPhase.HEADERS if has_begun else RequestPhase.IDLE

    def _end_headers(self) -> None:
        self.transport.write(_REQUEST_TIMEOUT)
        self.transport.close()


def max_connections() -> int:
    """Return how many connections this process can open; raise its limit of open files if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(MAX_CONNECTIONS, soft - RESERVED_FILES))
