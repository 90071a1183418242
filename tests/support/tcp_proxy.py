"""A TCP proxy between a driver and its PostgreSQL server that simulates network faults on request."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from psycopg import conninfo

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_CHUNK_BYTES: Final = 65_536
_TICK_SECONDS: Final = 0.02  # between two checks for requested faults
_RESET: Final = struct.pack("ii", 1, 0)  # close() then sends RST, not FIN


class Cut(Enum):
    """When a connection is cut. The client receives a reset, and the server receives nothing."""

    UNSEEN = auto()
    """The server never received the request."""
    UNDECIDED = auto()
    """The server received the request, and its progress is unknown."""
    UNHEARD = auto()
    """The server executed the request, and its reply is lost."""


@dataclass(eq=False)
class _Link:
    client: socket.socket
    server: socket.socket
    is_ready: bool = False  # the server waits for a request
    loses: bool = False  # the server's messages are dropped
    unread: bytearray = field(default_factory=bytearray)

    def other(self, end: socket.socket) -> socket.socket:
        return self.server if end is self.client else self.client


class Proxy:
    """Forwards all messages until a fault is requested.

    An exchange is a request with all of its messages, and the server's reply up to ReadyForQuery.
    """

    def __init__(self, url: str) -> None:
        self._upstream = conninfo.conninfo_to_dict(url)
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._links: set[_Link] = set()
        self._held: list[socket.socket] = []  # sockets kept open so that their peer does not notice the disconnect
        self._late: deque[tuple[float, socket.socket, bytes]] = deque()
        self._cut: Cut | None = None
        self._exchanges_left = 0
        self._is_closed = False
        self._is_black_hole = False
        self.latency = 0.0
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL for the driver. It disables encryption, which would hide the messages."""
        rest = {name: value for name, value in self._upstream.items() if name in {"user", "dbname", "password"}}
        here = {"host": "127.0.0.1", "port": self.port, "sslmode": "disable", "gssencmode": "disable"}
        return conninfo.make_conninfo("", **rest, **here)

    @property
    def has_cut(self) -> bool:
        return self._cut is None

    def cut(self, when: Cut, *, exchange: int = 1) -> None:
        """Cut the connection that starts the *exchange*-th exchange from now on."""
        with self._lock:
            self._cut, self._exchanges_left = when, exchange

    def black_hole(self) -> None:
        """Accept data and new connections, and forward nothing."""
        self._is_black_hole = True

    def heal(self) -> None:
        """Forward again. Reset the existing connections, because data was lost."""
        with self._lock:
            self._is_black_hole = False
            self.reset()

    def forget(self) -> None:
        """Forward new connections. Existing ones stay open and silent."""
        with self._lock:
            self._is_black_hole = False
            for link in [*self._links]:
                self._links.discard(link)
                for end in (link.client, link.server):
                    with suppress(KeyError):
                        self._selector.unregister(end)
                    self._held.append(end)

    def reset(self) -> None:
        """Reset every connection."""
        with self._lock:
            for link in [*self._links]:
                self._end(link, reset=True)

    def refuse(self) -> None:
        """Close the listening socket, so that new connections are refused."""
        with self._lock:
            self._selector.unregister(self._listener)
            self._listener.close()
            self.reset()

    def accept(self) -> None:
        """Listen again."""
        with self._lock:
            self._listener = self._listen(self.port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_closed = True
        self._thread.join(10)
        self.reset()
        for end in [self._listener, *self._held]:
            end.close()
        self._selector.close()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        self._selector.register(listener, selectors.EVENT_READ)
        return listener

    def _run(self) -> None:
        while not self._is_closed:
            ready = self._selector.select(_TICK_SECONDS)
            with self._lock:
                for key, _ in ready:
                    # A connection that an earlier event of this batch ended is no longer registered.
                    if key.fd in self._selector.get_map() and isinstance(key.fileobj, socket.socket):
                        self._serve(key.fileobj, key.data)
                self._deliver()

    def _serve(self, end: socket.socket, link: _Link | None) -> None:
        if link is None:
            self._open(end.accept()[0])
            return
        try:
            data = end.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if self._is_black_hole:
            if not data:
                self._selector.unregister(end)
        elif not data:
            self._end(link)
        elif end is link.client:
            self._ask(link, data)
        else:
            self._answer(link, data)

    def _open(self, client: socket.socket) -> None:
        try:
            address = (str(self._upstream["host"]), int(self._upstream["port"] or 0))
            link = _Link(client, socket.create_connection(address, timeout=10))
        except OSError:
            client.close()
            return
        self._links.add(link)
        for end in (link.client, link.server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, link)

    def _ask(self, link: _Link, data: bytes) -> None:
        if link.is_ready and not data.startswith(b"X"):
            link.is_ready = False
            if self._cut and not self._is_due():
                self._exchanges_left -= 1
            elif self._cut is Cut.UNHEARD:
                self._cut, link.loses = None, True
            elif self._cut:
                is_seen = self._cut is Cut.UNDECIDED
                self._cut = None
                self._send(link.server, data if is_seen else b"")
                self._lose(link)
                return
        self._send(link.server, data)

    def _is_due(self) -> bool:
        return self._exchanges_left <= 1

    def _answer(self, link: _Link, data: bytes) -> None:
        link.unread += data
        forwarded = bytearray()
        while len(link.unread) > 4:
            length = 1 + int.from_bytes(link.unread[1:5])
            if len(link.unread) < length:
                break
            message = bytes(link.unread[:length])
            del link.unread[:length]
            link.is_ready = message.startswith(b"Z")
            if not link.loses or message.startswith(b"G"):  # G: the server waits for the data of a COPY
                forwarded += message
            elif link.is_ready:
                self._lose(link)
                return
        self._send(link.client, bytes(forwarded))

    def _lose(self, link: _Link) -> None:
        """Reset the client's connection, and keep the server's open."""
        self._selector.unregister(link.server)
        self._held.append(link.server)
        self._links.discard(link)
        self._selector.unregister(link.client)
        _close(link.client, reset=True)

    def _end(self, link: _Link, *, reset: bool = False) -> None:
        self._links.discard(link)
        for end in (link.client, link.server):
            with suppress(KeyError, ValueError):
                self._selector.unregister(end)
            _close(end, reset=reset)

    def _send(self, end: socket.socket, data: bytes) -> None:
        self._late.append((time.monotonic() + self.latency, end, data))
        self._deliver()

    def _deliver(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            _, end, data = self._late.popleft()
            with suppress(OSError):
                end.sendall(data)


def _close(end: socket.socket, *, reset: bool) -> None:
    with suppress(OSError):
        if reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.close()
