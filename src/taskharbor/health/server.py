"""A small HTTP server for probes and metrics, in threads of its own."""

from __future__ import annotations

import errno
import json
import logging
import selectors
import socket
import threading
import time
from contextlib import closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from taskharbor.core.errors import AddressUnavailable
from taskharbor.health.checks import is_passed
from taskharbor.observability.failure_log import FailureLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.health.checks import Check, ServiceHealth

    Metrics = Callable[[], tuple[bytes, str]]
    """Returns the metrics, and their content type."""

_LOG: Final = logging.getLogger("taskharbor.health")
MAX_CONNECTIONS: Final = 16
"""For one more, the oldest is closed whose request is incomplete. Probes and scrapes need two or three."""
REQUEST_SECONDS: Final = 5.0
"""How long a client may take to send a request, and to receive its response."""
MAX_HEAD_BYTES: Final = 8_192
BEAT_SECONDS: Final = 1.0
ACCEPT_RETRY_SECONDS: Final = 0.1
JOIN_SECONDS: Final = 1.0
TEXT: Final = "text/plain; charset=utf-8"
HEAD_END: Final = b"\r\n\r\n"


class HealthServer:
    """Serves ``/livez``, ``/readyz`` and, if *metrics* is given, ``/metrics``, until it is closed.

    With *port* 0 the system chooses the port. Raises `AddressUnavailable` if the address cannot be used. If *waits*, a
    port that another process uses is no error: it is tried again every second.
    """

    def __init__(
        self, health: ServiceHealth, *, host: str, port: int, metrics: Metrics | None = None, waits: bool = False
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._metrics_lock = threading.Lock()
        self._failures = FailureLog(_LOG)
        self._address = host, port
        self._listener = _listen_if_free(host, port) if waits else _listen(host, port)
        self._woken, self._waker = socket.socketpair()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._incomplete: dict[socket.socket, None] = {}  # connections whose request is awaited, oldest first
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="taskharbor-health", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where probes are answered; empty if the port is still that of another process."""
        if self._listener is None:
            return ""
        address, port, *_ = self._listener.getsockname()
        return f"http://{f'[{address}]' if ':' in address else address}:{port}"

    def close(self) -> None:
        """Stop listening. Requests that are being answered end by themselves within their deadline."""
        self._is_closed = True
        self._waker.send(b"\0")
        self._thread.join(JOIN_SECONDS)
        for each in (self._listener, self._woken, self._waker):
            if each is not None:
                each.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if self._listener is not None:
                selector.register(self._listener, selectors.EVENT_READ)
            beat_at = 0.0
            while not self._is_closed:
                if time.monotonic() >= beat_at:
                    self._health.beat()
                    beat_at = time.monotonic() + BEAT_SECONDS
                    self._take_port(selector)
                is_woken = selector.select(max(0.0, beat_at - time.monotonic()))
                if is_woken and self._listener is not None and not self._is_closed:
                    self._accept(self._listener)

    def _take_port(self, selector: selectors.BaseSelector) -> None:
        """Listen as soon as the other process does not."""
        if self._listener is not None:
            return
        try:
            self._listener = _listen_if_free(*self._address)
        except AddressUnavailable as error:
            self._failures.unexpected("listening for probes", error)
        if self._listener is not None:
            selector.register(self._listener, selectors.EVENT_READ)
            _LOG.info("probes on %s: the other process has ended", self.url)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # the client is gone again
            return
        except OSError as error:  # no file descriptor is free, so the client stays in the backlog
            self._failures.unexpected("accepting a connection", error)
            threading.Event().wait(ACCEPT_RETRY_SECONDS)
            return
        if not self._free.acquire(blocking=False) and not self._take_place():
            connection.close()
            return
        with self._lock:
            self._incomplete[connection] = None
        try:
            threading.Thread(target=self._serve, args=(connection,), name="taskharbor-probe", daemon=True).start()
        except RuntimeError as error:  # no thread can be started
            self._failures.unexpected("answering a probe", error)
            self._completed(connection)
            connection.close()
            self._free.release()

    def _take_place(self) -> bool:
        """Close the oldest connection whose request is incomplete: clients that send nothing must not stop probes."""
        with self._lock:
            oldest = next(iter(self._incomplete), None)
            if oldest is None:
                return False
            del self._incomplete[oldest]
            with suppress(OSError):  # its client is gone
                oldest.shutdown(socket.SHUT_RDWR)  # this ends the wait of its thread
        return self._free.acquire(timeout=JOIN_SECONDS)

    def _completed(self, connection: socket.socket) -> None:
        """Note that the request of *connection* is complete, or that it will never be."""
        with self._lock:
            self._incomplete.pop(connection, None)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with closing(connection), suppress(OSError):  # a client that is slow, or gone, gets no answer
                if head := self._read_head(connection):
                    connection.settimeout(REQUEST_SECONDS)
                    connection.sendall(self._respond(head))
                    connection.shutdown(socket.SHUT_WR)
        finally:
            self._free.release()

    def _read_head(self, connection: socket.socket) -> bytes:
        try:
            return _read_head(connection, time.monotonic() + REQUEST_SECONDS)
        finally:
            self._completed(connection)

    def _respond(self, head: bytes) -> bytes:
        method, target = _request_of(head)
        if method not in {"GET", "HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"use GET\n", TEXT, extra="Allow: GET, HEAD\r\n")
        try:
            status, body, content_type = self._answer(target)
        except Exception as error:  # noqa: BLE001  a check or the metrics failed: the client must be answered
            self._failures.unexpected("answering a probe", error)
            status, body, content_type = HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error; see the log\n", TEXT
        return _response(status, body, content_type, without_body=method == "HEAD")

    def _answer(self, target: str) -> tuple[HTTPStatus, bytes, str]:
        try:
            url = urlsplit(target)
        except ValueError:  # as of "//[": it is no error of ours, and must not fill the log
            return HTTPStatus.BAD_REQUEST, b"malformed request\n", TEXT
        is_verbose = "verbose" in parse_qs(url.query, keep_blank_values=True)
        if url.path == "/livez":
            return _report(self._health.live(), is_verbose=is_verbose)
        if url.path == "/readyz":
            return _report(self._health.ready(), is_verbose=is_verbose)
        if url.path == "/metrics" and self._metrics is not None:
            return self._collect(self._metrics)
        return HTTPStatus.NOT_FOUND, b"not found; there are /livez, /readyz and, if turned on, /metrics\n", TEXT

    def _collect(self, metrics: Metrics) -> tuple[HTTPStatus, bytes, str]:
        """Collect one scrape at a time, so that slow ones do not take the connections of probes."""
        if not self._metrics_lock.acquire(timeout=REQUEST_SECONDS):
            return HTTPStatus.SERVICE_UNAVAILABLE, b"another scrape has not ended\n", TEXT
        try:
            return HTTPStatus.OK, *metrics()
        finally:
            self._metrics_lock.release()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Dual: "::" accepts IPv4, too.
        is_dual = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=is_dual)
    except (OSError, OverflowError) as error:
        raise AddressUnavailable(host, port, str(error), "--health-host or --health-port") from error
    listener.setblocking(False)  # noqa: FBT003  the standard library's signature
    return listener


def _listen_if_free(host: str, port: int) -> socket.socket | None:
    """Return a listening socket; None if another process listens there."""
    try:
        return _listen(host, port)
    except AddressUnavailable as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            return None
        raise


def _read_head(connection: socket.socket, deadline: float) -> bytes:
    """Return the request up to its empty line; empty if it is too long, incomplete, or not there in time."""
    head = b""
    while HEAD_END not in head and len(head) <= MAX_HEAD_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (data := connection.recv(MAX_HEAD_BYTES)):
            return b""
        if time.monotonic() > deadline:
            return b""
        head += data
    return head if HEAD_END in head else b""


def _request_of(head: bytes) -> tuple[str, str]:
    method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    return method, rest.partition(" ")[0]


def _report(checks: Sequence[Check], *, is_verbose: bool) -> tuple[HTTPStatus, bytes, str]:
    status = HTTPStatus.OK if is_passed(checks) else HTTPStatus.SERVICE_UNAVAILABLE
    if is_verbose:
        report = {
            "status": "ok" if is_passed(checks) else "failed",
            "checks": {each.name: each.problem or "ok" for each in checks},
        }
        return status, json.dumps(report, indent=2).encode() + b"\n", "application/json"
    text = "".join(f"{each.name}: {each.problem}\n" for each in checks if each.problem)
    return status, (text or "ok\n").encode(), TEXT


def _response(
    status: HTTPStatus, body: bytes, content_type: str, *, without_body: bool = False, extra: str = ""
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Cache-Control: no-store\r\n{extra}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if without_body else body)
