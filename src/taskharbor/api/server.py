"""The API server process, based on uvicorn."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn

from taskharbor.api.app import close_streams, create_app
from taskharbor.api.connections import BoundedProtocol, ConnectionLimits, max_connections
from taskharbor.api.routing import is_local
from taskharbor.api_keys import has_valid_key
from taskharbor.core.codec import CODEC_SETTING, check_codec, codec_name
from taskharbor.core.errors import AddressUnavailable, ApiKeyRequired
from taskharbor.service import SIGNAL_EXIT_BASE, is_same_stop, tuned_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

    from taskharbor.api.app import AppPart
    from taskharbor.api.state import UnknownTypes
    from taskharbor.api.store import ApiBackend

_LOG: Final = logging.getLogger("taskharbor.api")
SHUTDOWN_GRACE_SECONDS: Final = 10
"""How long requests may continue after the first signal."""
KEEP_ALIVE_SECONDS: Final = 75
"""How long a connection may stay idle before it is closed."""
BACKLOG: Final = 2_048
ACCEPT_BATCH: Final = 8
"""Connections that the event loop accepts in one step, before counting them: the limit can be exceeded by this."""


def serve(
    harbor: ApiBackend,
    *,
    host: str,
    port: int,
    unknown_types: UnknownTypes = "refuse",
    registry: CollectorRegistry | None = None,
    read_only: bool = False,
    parts: Sequence[AppPart] = (),
    root_path: str = "",
    forwarded_allow_ips: str | None = None,
) -> None:
    """Serve requests until SIGTERM or SIGINT, then let running requests finish.

    If the store has a valid key, every request needs one. Without any key, only requests from this machine
    are accepted, and every local user has full access (for development) until the first key is created. *registry* is
    exported by ``/metrics``. If *read_only*, nothing can be changed. *parts* are those of `create_app`. *root_path* is
    the prefix that a proxy removes. *forwarded_allow_ips* are the proxies whose ``X-Forwarded`` headers are believed,
    in uvicorn's form; by default only those of this machine.
    """
    check_codec(harbor.driver.inspector.settings().get(CODEC_SETTING, codec_name(harbor.codec)), harbor.codec)
    has_keys = has_valid_key(harbor.driver.inspector)
    if not has_keys and not all(map(is_local, resolve_host(host))):
        raise ApiKeyRequired(host)
    app = create_app(
        harbor,
        needs_keys=has_keys or None,
        only_local_hosts=not has_keys,
        unknown_types=unknown_types,
        registry=registry,
        read_only=read_only,
        parts=parts,
    )
    with closing(open_socket(host, port)) as sock:
        address, bound_port, *_ = sock.getsockname()
        origin = f"http://{f'[{address}]' if ':' in address else address}:{bound_port}"
        _LOG.info("API listening on %s", origin)
        for part in parts:
            _LOG.info("%s at %s%s%s", part.name, origin, root_path, part.path)
        if harbor.tasks:
            others = "accepted unchecked" if unknown_types == "accept" else "rejected"
            _LOG.info(
                "new jobs are checked against the tasks of the app (%d); other types are %s", len(harbor.tasks), others
            )
        if not has_keys:
            _LOG.warning("no API keys: every local user has full access")
        ApiServer(app, root_path=root_path, forwarded_allow_ips=forwarded_allow_ips).run(sockets=[sock])
    _LOG.info("API stopped")


def resolve_host(host: str) -> set[str]:
    """Return the addresses of *host*, or *host* itself if it cannot be resolved."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(host or "0.0.0.0", None)}  # noqa: S104  an empty host means all interfaces
    except OSError:
        return {host}


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket for that address."""
    # Explicitly TCP: asyncio disables Nagle's algorithm only then; otherwise each response waits 40 ms for an ACK.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        raise AddressUnavailable(host, port, str(error)) from error
    return sock


class ApiServer(uvicorn.Server):
    """A uvicorn server that ends streams at shutdown and returns from `run`, so that the store can be closed."""

    def __init__(self, app: FastAPI, *, root_path: str = "", forwarded_allow_ips: str | None = None) -> None:
        self._app = app
        self._stop_requested_at: float | None = None
        super().__init__(
            uvicorn.Config(
                app,
                root_path=root_path,
                forwarded_allow_ips=forwarded_allow_ips,  # if None, uvicorn reads FORWARDED_ALLOW_IPS
                # A WebSocket would leave BoundedProtocol, which would count its connection until the process ends.
                ws="none",
                http=partial(BoundedProtocol, bounds=ConnectionLimits(max_connections())),  # type: ignore[arg-type]
                backlog=ACCEPT_BATCH,
                log_config=None,
                log_level="warning",  # our own log says when the server starts and stops
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_SECONDS,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT inside the context. Uvicorn's version would raise them again at the end."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's signature
        if self._stop_requested_at is None:
            self.should_exit, self._stop_requested_at = True, time.monotonic()
        elif not is_same_stop(self._stop_requested_at):
            os._exit(SIGNAL_EXIT_BASE + sig)  # a second signal ends the process now

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        # With default settings, garbage collections paused all requests for 50 ms, and took a tenth of the
        # time of each page of jobs.
        with tuned_interpreter():
            super().run(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(BACKLOG)  # asyncio uses `backlog` for this, too, and has set ACCEPT_BATCH

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        close_streams(self._app)
        await super().shutdown(sockets)
